"""Batches of a DataLoader, stacked where the training process reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import default_collate, get_worker_info

# The traversal of torch's own collate function, with another way to stack; there since 1.13.
from torch.utils.data._utils.collate import collate as _collate
from torch.utils.data._utils.collate import default_collate_fn_map

from .._ipc import arrays
from .._process import arenas

#: Smaller batches than this cost less as a part of the message than as memory of their own.
_LEAST_BYTES = 16 << 10


def collate(samples: list[Any]) -> Any:
    """`torch.utils.data.default_collate`, which stacks into the arena of the loader's queue when a worker calls it.

    A batch is then written once, where the training process reads it: no copy into a queue, no file descriptor, no
    segment in ``/dev/shm``. That takes a DataLoader whose ``multiprocessing_context`` is one of
    `shmtree.multiprocessing`; anywhere else it is an ordinary batch. What it makes, and raises, is as with torch's.

    The batch belongs to whom the worker sends it to: a worker that keeps it finds it changing.
    """
    if get_worker_info() is None:
        return default_collate(samples)
    return _collate(samples, collate_fn_map=_IN_ARENA)


def _stack(tensors: list[torch.Tensor], *, collate_fn_map: dict[Any, Callable[..., Any]] | None = None) -> torch.Tensor:
    first = tensors[0]
    nbytes = first.numel() * first.element_size() * len(tensors)
    plain = first.layout is torch.strided and first.device.type == "cpu" and not first.is_nested
    if not plain or any(each.requires_grad or each.dtype != first.dtype for each in tensors):
        stacked: torch.Tensor = default_collate_fn_map[torch.Tensor](tensors, collate_fn_map=collate_fn_map)
        return stacked
    arena = arenas.home_arena()
    if arena is None or nbytes < _LEAST_BYTES:
        return torch.stack(tensors, 0)  # and not, as torch does, in a segment of its own
    shape = (len(tensors), *first.shape)
    out: torch.Tensor = arrays.new_array(arena, shape, first.dtype, "C", False, gift=True)
    return torch.stack(tensors, 0, out=out)


_IN_ARENA: dict[Any, Callable[..., Any]] = {**default_collate_fn_map, torch.Tensor: _stack}
