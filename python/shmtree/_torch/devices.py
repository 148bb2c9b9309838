"""Items that are moved to a device. Imported by what needs torch itself: `get_to`, and `shmtree.torch`."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from typing import Any

import numpy as np
import torch

from .. import _core
from ..cuda import _pinned
from ..errors import DeviceError


def check_device(device: Any) -> None:
    """DeviceError when there is no such device here; what torch raises for what names none."""
    torch.device(device)
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError, NotImplementedError) as error:  # torch is built without it, or finds none
        raise DeviceError(f"there is no device {str(device)!r} here: {error}") from error


def receive_to(arena: _core.Arena, item: Any, device: Any) -> Any:
    """`move_to` of an item that was received in `arena`: without waiting, where that is pinned here."""
    _pinned.settle()
    if not (arena.is_pinned_here and _has_streams(device)):
        return move_to(item, device)
    moved = move_to(item, device, without_waiting=True)
    _pinned.keep(_mark(device), item)
    return moved


def _has_streams(device: Any) -> bool:
    return str(torch.device(device).type) == "cuda"


def _mark(device: Any) -> Any:
    """An event that passes after what is in the device's current stream now."""
    with torch.cuda.device(device):
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
    return event


def move_to(item: Any, device: Any, without_waiting: bool = False) -> Any:
    """The same nest with its tensors, and numeric arrays, as tensors on `device`.

    Looked into are dicts, lists, tuples, deques and dataclasses. All tensors are copies, also on the CPU, so that
    nothing of a received item is held any more; but see `without_waiting`: then they are complete when the device's
    current stream gets there.
    """
    if isinstance(item, torch.Tensor):
        return item.to(device, copy=True, non_blocking=without_waiting)
    if isinstance(item, np.ndarray):
        return _move_array(item, device, without_waiting)
    if isinstance(item, tuple) and hasattr(item, "_make"):
        return item._make(move_to(value, device, without_waiting) for value in item)
    if type(item) in (list, tuple):
        return type(item)(move_to(value, device, without_waiting) for value in item)
    if isinstance(item, (dict, deque)):
        made: Any = copy.copy(item)  # with its factory, or its greatest length
        for key, value in item.items() if isinstance(item, dict) else enumerate(item):
            made[key] = move_to(value, device, without_waiting)
        return made
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        made = copy.copy(item)
        for field in dataclasses.fields(item):
            object.__setattr__(made, field.name, move_to(getattr(item, field.name), device, without_waiting))
        return made
    return item


def _move_array(array: np.ndarray[Any, Any], device: Any, without_waiting: bool) -> Any:
    """The array itself where torch has nothing like it: texts, dates, structures, masks, long doubles."""
    if array.dtype.kind not in "biufc" or array.dtype.char in "gG" or isinstance(array, np.ma.MaskedArray):
        return array
    native = array.dtype.newbyteorder("=")
    if array.dtype != native or any(stride < 0 for stride in array.strides):
        copied = np.array(array, dtype=native, order="C", subok=False)
        return torch.from_numpy(copied).to(device)
    if without_waiting and array.flags.writeable:  # torch has no read-only tensors
        return torch.from_numpy(array).to(device, copy=True, non_blocking=True)
    return torch.tensor(array, device=device)
