"""Copies of items on a device. Imported only by code that needs torch itself: `get_to`, and `shmtree.torch`."""

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
    """Raises DeviceError if there is no such device here, and torch's own error if the text is not a device."""
    torch.device(device)
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError, NotImplementedError) as error:  # torch is built without it, or finds none
        raise DeviceError(f"no device {str(device)!r} in this process: {error}") from error


def receive_to(arena: _core.Arena, item: Any, device: Any) -> Any:
    """Calls `move_to` for an item received in `arena`; without waiting, if the arena is pinned in this process."""
    _pinned.settle()
    if not (arena.is_pinned_here and _has_streams(device)):
        return move_to(item, device)
    moved = move_to(item, device, without_waiting=True)
    _pinned.keep(_mark(device), item)
    return moved


def _has_streams(device: Any) -> bool:
    return str(torch.device(device).type) == "cuda"


def _mark(device: Any) -> Any:
    """Returns an event that completes after the work that is in the device's current stream now."""
    with torch.cuda.device(device):
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
    return event


def move_to(item: Any, device: Any, without_waiting: bool = False) -> Any:
    """Returns the same pytree with its tensors, and its numeric arrays as tensors, on `device`.

    It copies tensors inside dicts, lists, tuples, deques and dataclasses. All tensors of the result are copies, also on
    the CPU, so that the result pins no memory of a received item.

    Args:
        item: The pytree.
        device: A device, as torch takes it.
        without_waiting: If True, the copies are complete only when the device's current stream reaches this point;
            until then, keep `item` alive.

    Raises:
        RuntimeError: Torch cannot copy to the device, for example because it has no memory.
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
        moved: Any = copy.copy(item)  # keeps the default factory or the maximum length
        for key, value in item.items() if isinstance(item, dict) else enumerate(item):
            moved[key] = move_to(value, device, without_waiting)
        return moved
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        moved = copy.copy(item)
        for field in dataclasses.fields(item):
            object.__setattr__(moved, field.name, move_to(getattr(item, field.name), device, without_waiting))
        return moved
    return item


def _move_array(array: np.ndarray[Any, Any], device: Any, without_waiting: bool) -> Any:
    """Moves an array.

    Returns the array itself if torch has no such dtype: text, dates, structures, masks, long doubles.
    """
    if array.dtype.kind not in "biufc" or array.dtype.char in "gG" or isinstance(array, np.ma.MaskedArray):
        return array
    native = array.dtype.newbyteorder("=")
    if array.dtype != native or any(stride < 0 for stride in array.strides):
        copied = np.array(array, dtype=native, order="C", subok=False)
        return torch.from_numpy(copied).to(device)
    if without_waiting and array.flags.writeable:  # torch has no read-only tensors
        return torch.from_numpy(array).to(device, copy=True, non_blocking=True)
    return torch.tensor(array, device=device)
