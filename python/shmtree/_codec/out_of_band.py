"""Reducers for classes of other packages that would copy their memory into the pickle.

These are images of Pillow, and frames and series of polars. The reducers keep that memory out of the pickle. This
module imports no package, and ignores packages that the program has not imported.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from collections.abc import Callable
from typing import Any

from .pickle_names import known_as

_MODULE = "shmtree._out_of_band"  # module by which pickles name the functions below

Reducer = Callable[[Any], Any]

_KEPT_IN_BAND = 1024  # number of bytes; copying fewer costs less than a separate buffer

# Number and list of image classes at the last search. It is repeated if the number has changed, because plugins are
# loaded late.
_image_classes: tuple[int, list[type]] = (0, [])


def reducers() -> dict[type, Reducer]:
    """Returns the reducers of imported packages by exact class, unless the program has its own reducer for a class."""
    reducers_by_class = _all()
    if reducers_by_class:
        forking = getattr(sys.modules.get("multiprocessing.reduction"), "ForkingPickler", None)
        for own in (copyreg.dispatch_table, getattr(forking, "_extra_reducers", {})):
            for cls in [cls for cls in reducers_by_class if cls in own]:
                del reducers_by_class[cls]
    return reducers_by_class


def _all() -> dict[type, Reducer]:
    reducers_by_class: dict[type, Reducer] = {}
    image_file = getattr(sys.modules.get("PIL.ImageFile"), "ImageFile", None)
    image = getattr(sys.modules.get("PIL.Image"), "Image", None)
    if image is not None:
        reducers_by_class[image] = _reduce_image
        reducers_by_class.update(
            dict.fromkeys(_subclasses(image_file), _reduce_image) if image_file is not None else {}
        )
    polars = sys.modules.get("polars")
    for name in ("DataFrame", "Series"):
        cls = getattr(polars, name, None)
        if cls is not None:
            reducers_by_class[cls] = _reduce_frame if name == "DataFrame" else _reduce_series
    return reducers_by_class


def _subclasses(image_file: type) -> list[type]:
    global _image_classes
    direct: list[type] = image_file.__subclasses__()
    if len(direct) != _image_classes[0]:
        _image_classes = (len(direct), [image_file, *direct])
    return _image_classes[1]


def _buffer(data: bytes) -> Any:
    return pickle.PickleBuffer(data) if len(data) > _KEPT_IN_BAND else data


def _reduce_image(image: Any) -> Any:
    """Reduces an image like pickle, but with the pixels out of band: `__setstate__` takes them from any buffer."""
    cls: Any = type(image)
    if cls.__reduce_ex__ is not object.__reduce_ex__ or cls.__reduce__ is not object.__reduce__:
        return image.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    state = image.__getstate__()
    if type(state) is list:
        state = [_buffer(part) if type(part) is bytes else part for part in state]
    return copyreg.__newobj__, (cls,), state  # type: ignore[attr-defined]


def _reduce_frame(frame: Any) -> Any:
    return _build_frame, (type(frame), _buffer(frame.serialize()))


@known_as(_MODULE, "_build_frame")
def _build_frame(cls: Any, memory: Any) -> Any:
    return cls.deserialize(io.BytesIO(memory))


def _reduce_series(series: Any) -> Any:
    state = series.__getstate__()
    if type(state) is not bytes:
        return series.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    return _build_series, (type(series), _buffer(state))


@known_as(_MODULE, "_build_series")
def _build_series(cls: Any, memory: Any) -> Any:
    image = cls.__new__(cls)
    image.__setstate__(bytes(memory))
    return image
