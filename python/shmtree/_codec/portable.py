"""Objects that are valid on one machine only, which portable channels refuse."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from .. import _core
from ..errors import NotPortable
from . import tensors

# Classes that are sent as handles: ends, shared arrays, arenas. The modules that define them add to the list.
handles: list[type] = []

# Classes for which multiprocessing has reducers are refused, because these reducers work on one machine only.
# Exceptions are the classes of the modules below (bound methods, functions, classes of torch), which plain pickle sends
# by value.
_PLAIN_MODULES = {"builtins", "functools", "torch", "torch.storage", "torch.nn.parameter"}

# Classes of device arrays, by modules that are used only if they are imported.
DEVICE_ARRAYS = (("cupy", "ndarray"), ("numba.cuda.cudadrv.devicearray", "DeviceNDArray"))


def refuse(thing: Any) -> NoReturn:
    name = type(thing).__qualname__
    raise NotPortable(f"a {name} is valid on this machine only, but what is sent here must be portable")


def is_on_device(thing: Any) -> bool:
    """Returns True if a tensor, or an array of one of the classes above, is in device memory."""
    if tensors.library.is_on_device(thing):
        return True
    return any(type(thing) is getattr(sys.modules.get(module), name, None) for module, name in DEVICE_ARRAYS)


def is_local(thing: Any) -> bool:
    if isinstance(thing, _core.Frame):
        return not thing.portable
    return isinstance(thing, tuple(handles)) or type(thing) in refused() or is_on_device(thing)


def refused() -> dict[type, Callable[[Any], Any]]:
    """Returns reducers that refuse, by exact class, other objects that only processes of one machine can exchange."""
    forking = getattr(sys.modules.get("multiprocessing.reduction"), "ForkingPickler", None)
    extra = getattr(forking, "_extra_reducers", {})
    reducers: dict[type, Callable[[Any], Any]] = {cls: refuse for cls in extra if cls.__module__ not in _PLAIN_MODULES}
    reducers[_core.Frame] = _reduce_frame
    return reducers


def _reduce_frame(frame: _core.Frame) -> Any:
    return frame.__reduce_ex__(pickle.HIGHEST_PROTOCOL) if frame.portable else refuse(frame)
