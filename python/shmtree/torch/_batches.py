"""Batches of a DataLoader, stacked in the memory from which the training process reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

# The traversal of torch's own collate function, with another way to stack; exists since 1.13.
from torch.utils.data._utils.collate import collate as _collate
from torch.utils.data._utils.collate import default_collate_fn_map

from .._ipc import arrays
from .._process import arenas

#: A batch smaller than this costs less as a part of the message than as a block of its own.
_MIN_BYTES = 16 << 10


def collate(samples: list[Any]) -> Any:
    """Collates like `torch.utils.data.default_collate`; in a worker, stacks into the arena of the loader's queue.

    A batch is then written once, in the memory from which the training process reads it: no copy into a queue, no file
    descriptor, no segment in ``/dev/shm``. This requires a DataLoader with a ``multiprocessing_context`` of
    `shmtree.multiprocessing`; otherwise the result is an ordinary batch.

    The batch belongs to the process to which the worker sends it. A worker that keeps a reference sees the batch
    change.

    Read-only arrays, such as those of a `shmtree.SharedList`, are stacked without a warning.

    Args:
        samples: The samples of the batch.

    Returns:
        The same batch as torch's function. Errors are the same, too.
    """
    if get_worker_info() is None:
        return _collate(samples, collate_fn_map={**default_collate_fn_map, np.ndarray: _stack_arrays})
    return _collate(samples, collate_fn_map=_IN_ARENA)


def _stack(tensors: list[torch.Tensor], *, collate_fn_map: dict[Any, Callable[..., Any]] | None = None) -> torch.Tensor:
    first = tensors[0]
    nbytes = first.numel() * first.element_size() * len(tensors)
    plain = first.layout is torch.strided and first.device.type == "cpu" and not first.is_nested
    if not plain or any(each.requires_grad or each.dtype != first.dtype for each in tensors):
        stacked: torch.Tensor = default_collate_fn_map[torch.Tensor](tensors, collate_fn_map=collate_fn_map)
        return stacked
    arena = arenas.home_arena()
    if arena is None or nbytes < _MIN_BYTES:
        return torch.stack(tensors, 0)  # torch would make a separate segment for it
    shape = (len(tensors), *first.shape)
    out: torch.Tensor = arrays.new_array(arena, shape, first.dtype, "C", False, gift=True)
    return torch.stack(tensors, 0, out=out)


def _stack_arrays(batch: list[Any], *, collate_fn_map: dict[Any, Callable[..., Any]] | None = None) -> Any:
    return default_collate_fn_map[np.ndarray]([_for_reading(each) for each in batch], collate_fn_map=collate_fn_map)


class _Writable:
    """Another view of a read-only array, which torch takes without a warning."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array  # keeps the memory
        described = array.__array_interface__
        self.__array_interface__ = {**described, "data": (described["data"][0], False)}


def _for_reading(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    is_plain = array.dtype.isbuiltin == 1 and not array.dtype.hasobject
    return np.asarray(_Writable(array)) if is_plain and not array.flags.writeable else array


_IN_ARENA: dict[Any, Callable[..., Any]] = {
    **default_collate_fn_map,
    torch.Tensor: _stack,
    np.ndarray: _stack_arrays,
}
