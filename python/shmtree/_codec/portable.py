"""What means something on one machine only, and is refused in what is to be portable."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from .. import _core
from ..errors import NotPortable
from . import tensors
from .paths import walk

# Ends, shared arrays, arenas: whatever is known by a handle. Filled by those who know how.
handles: list[type] = []

# What multiprocessing reduces for processes of one machine is refused, but for what plain pickle can do as well: bound
# methods and functions, and torch's own, whose memory goes by value then.
_PLAIN_MODULES = {"builtins", "functools", "torch", "torch.storage", "torch.nn.parameter"}

# Classes of arrays on devices, in modules that are looked into if they are there.
DEVICE_ARRAYS = (("cupy", "ndarray"), ("numba.cuda.cudadrv.devicearray", "DeviceNDArray"))


def refuse(thing: Any) -> NoReturn:
    name = type(thing).__qualname__
    raise NotPortable(f"a {name} means something on this machine only, and what is sent here is to be portable")


def is_on_device(thing: Any) -> bool:
    """Whether a tensor, or an array of one of the classes above, lies in the memory of a device."""
    if tensors.library.is_on_device(thing):
        return True
    return any(type(thing) is getattr(sys.modules.get(module), name, None) for module, name in DEVICE_ARRAYS)


def is_local(thing: Any) -> bool:
    if isinstance(thing, _core.Frame):
        return not thing.portable
    return isinstance(thing, tuple(handles)) or type(thing) in refused() or is_on_device(thing)


def refused() -> dict[type, Callable[[Any], Any]]:
    """Reducers that refuse, by exact class, of what else processes of one machine can send each other."""
    forking = getattr(sys.modules.get("multiprocessing.reduction"), "ForkingPickler", None)
    extra = getattr(forking, "_extra_reducers", {})
    made: dict[type, Callable[[Any], Any]] = {cls: refuse for cls in extra if cls.__module__ not in _PLAIN_MODULES}
    made[_core.Frame] = _reduce_frame
    return made


def _reduce_frame(frame: _core.Frame) -> Any:
    return frame.__reduce_ex__(pickle.HIGHEST_PROTOCOL) if frame.portable else refuse(frame)


def path_of_local(thing: Any) -> str | None:
    """Where the first of what is refused lies in an object; None when it is not found, as inside of what is pickled."""
    return next((place.path for place in walk(thing, is_local) if is_local(place.value)), None)
