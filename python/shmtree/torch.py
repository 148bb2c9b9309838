"""For programs that train with PyTorch: batches that are written once, shared tensors and modules.

    loader = DataLoader(data, batch_size=64, num_workers=4, collate_fn=shmtree.torch.collate,
                        multiprocessing_context=shmtree.multiprocessing.get_context("spawn"))
    model = shmtree.torch.share_(model)      # its parameters are the same memory in every process it is given to

Tensors themselves need nothing of this: channels and queues carry them like arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import default_collate, get_worker_info

# The traversal of torch's own collate function, with another way to stack; there since 1.13.
from torch.utils.data._utils.collate import collate as _collate
from torch.utils.data._utils.collate import default_collate_fn_map

from . import _arena, _arrays, _process

__all__ = ["SharedParameter", "SharedTensor", "collate", "move_to", "share_"]

_T = TypeVar("_T", bound="torch.Tensor | torch.nn.Module")

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
    arena = _process.home_arena()
    if arena is None or not plain or nbytes < _LEAST_BYTES or any(each.requires_grad for each in tensors):
        stacked: torch.Tensor = default_collate_fn_map[torch.Tensor](tensors, collate_fn_map=collate_fn_map)
        return stacked
    shape = (len(tensors), *first.shape)
    out: torch.Tensor = _arrays.new_array(arena, shape, first.dtype, "C", False, gift=True)
    return torch.stack(tensors, 0, out=out)


_IN_ARENA: dict[Any, Callable[..., Any]] = {**default_collate_fn_map, torch.Tensor: _stack}


def move_to(item: Any, device: Any) -> Any:
    """The same nest of dicts, lists and tuples with its tensors, and numeric arrays, as tensors on `device`.

    All of them are copies, also on the CPU, so that nothing of a received item is held any more.
    """
    if isinstance(item, torch.Tensor):
        return item.to(device, copy=True)
    if isinstance(item, np.ndarray) and item.dtype.kind in "biufc":
        return torch.tensor(item, device=device)
    if isinstance(item, dict):
        return type(item)({key: move_to(value, device) for key, value in item.items()})
    if isinstance(item, tuple) and hasattr(item, "_make"):
        return item._make(move_to(value, device) for value in item)
    if type(item) in (list, tuple):
        return type(item)(move_to(value, device) for value in item)
    return item


class SharedTensor(torch.Tensor):
    """A tensor on memory that processes share; see `share_`. What is computed from it is an ordinary tensor."""

    __torch_function__: Any = torch._C._disabled_torch_function_impl  # as torch's own Parameter

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _reduce(self, super().__reduce_ex__, protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        """A tensor of its own."""
        if id(self) not in memo:
            memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
        copied: torch.Tensor = memo[id(self)]
        return copied


class SharedParameter(torch.nn.Parameter):
    """A parameter on memory that processes share; see `share_`."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _reduce(self, super().__reduce_ex__, protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Parameter:
        """A parameter of its own."""
        if id(self) not in memo:
            memo[id(self)] = torch.nn.Parameter(self.detach().clone(), self.requires_grad)
        copied: torch.nn.Parameter = memo[id(self)]
        return copied


def share_(thing: _T) -> _T:
    """Moves a tensor, or the parameters and buffers of a module, into shared memory, in place; returns it.

    Given to another process (as an argument of its Process, through a queue or pipe, over fork), it is the same memory
    there: what one writes the others see, until the last of them lets go. There is no locking: sums of gradients and
    Hogwild-like training live with that, other uses need a lock. Optimizers made before keep their parameters.

    A shared tensor's gradient is not shared: `share_` it as well where it should be. TypeError for tensors that are not
    plain ones on the CPU, and for views that need gradients.
    """
    if isinstance(thing, torch.nn.Module):
        for tensor in {id(each): each for each in [*thing.parameters(), *thing.buffers()]}.values():
            _share(tensor)
    else:
        _share(thing)
    return thing


def _share(tensor: torch.Tensor) -> None:
    if isinstance(tensor, (SharedTensor, SharedParameter)) or tensor.numel() == 0:
        return
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(f"a {type(tensor).__name__} cannot be shared; a Tensor or Parameter can")
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise TypeError(f"a tensor of layout {tensor.layout} on {tensor.device} cannot be shared; a strided one can")
    if not tensor.is_leaf:
        raise TypeError("a tensor that was computed with gradients cannot be shared; its detach() can")
    with torch.no_grad():
        arena = _arena.Arena._of(_process.default_arena(), None)
        memory = arena.array(tensor.numel() * tensor.element_size(), np.uint8)
        dense = torch.empty_like(tensor)  # its strides: those of the tensor where it has no gaps
        shared = _on(memory, tensor.dtype, tuple(tensor.shape), dense.stride())
        shared.copy_(tensor)
        tensor.data = shared
    tensor.__class__ = SharedParameter if isinstance(tensor, torch.nn.Parameter) else SharedTensor
    tensor._shmtree = memory  # type: ignore[attr-defined]


def _on(memory: _arena.SharedArray, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    return torch.from_numpy(memory.array).view(dtype).as_strided(shape, strides)


def _reduce(tensor: Any, ordinary: Callable[[Any], Any], protocol: Any) -> Any:
    memory = getattr(tensor, "_shmtree", None)
    # Whoever replaced `data` since has replaced the memory.
    if memory is None or tensor.data_ptr() != memory.array.ctypes.data:
        return ordinary(protocol)
    parts = (type(tensor), memory, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.requires_grad)
    return _open_shared, parts


def _open_shared(
    cls: type[torch.Tensor],
    memory: _arena.SharedArray,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    requires_grad: bool,
) -> Any:
    tensor: Any = _on(memory, dtype, shape, strides)
    if issubclass(cls, torch.nn.Parameter):
        tensor = torch.nn.Parameter(tensor, requires_grad)
    else:
        tensor.requires_grad_(requires_grad)
    tensor.__class__ = cls
    tensor._shmtree = memory
    return tensor
