"""Tensors and modules in shared memory: as a fixed version that is sent by reference, or in place."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar

import numpy as np
import torch
import torch.multiprocessing.reductions

from .. import _core
from .._ipc.arena import Arena
from .._ipc.arguments import core_of
from .._ipc.shared_array import SharedArray
from .._process import arenas
from .._public import made_by
from .._torch.tensors import check_tensor_dtype

_T = TypeVar("_T", bound="torch.Tensor | torch.nn.Module")


def _reduce_ordinary(tensor: Any, protocol: Any) -> Any:
    return _ordinary(tensor).__reduce_ex__(protocol)


def _copy_ordinary(tensor: Any, memo: dict[int, Any]) -> Any:
    """Returns a deep copy with its own memory."""
    return copy.deepcopy(_ordinary(tensor), memo)


@made_by("shmtree.torch.share_()")
class SharedTensor(torch.Tensor):
    """A tensor on memory that processes share; see `share_`. Operations on it return ordinary tensors."""

    __torch_function__: Any = torch._C._disabled_torch_function_impl  # as in torch's own Parameter
    __reduce_ex__ = _reduce_ordinary
    __deepcopy__ = _copy_ordinary

    def detach(self) -> Any:
        """Returns a tensor on the same memory without gradients.

        The result is of this class, because torch requires that for a Parameter.
        """
        return _become_shared(super().detach(), getattr(self, "_shmtree", None))


@made_by("shmtree.torch.share_()")
class SharedParameter(torch.nn.Parameter):
    """A parameter on memory that processes share; see `share_`."""

    __reduce_ex__ = _reduce_ordinary
    __deepcopy__ = _copy_ordinary


def _ordinary(tensor: torch.Tensor) -> Any:
    """Returns a tensor of torch's own class on the same memory, for copies and files."""
    plain = torch.Tensor.detach(tensor).requires_grad_(tensor.requires_grad)
    result = torch.nn.Parameter(plain, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else plain
    result.grad = tensor.grad if tensor.is_leaf else None
    return result


def share(thing: Any, arena: Arena | None = None) -> Any:
    """Returns a copy in `arena` that any number of channels of that arena then send by reference.

    The copy is one version that never changes its place: every receiver has the same memory, so a write of one process
    is visible to the others, possibly half-done. Make the next version with another call, and drop this one: its memory
    is reused as soon as no process has a tensor of it.

    Args:
        thing: A tensor, a module, or nested dicts, lists and tuples with tensors.
        arena: Arena for the copy. None takes the arena of this process's channels without an arena. Channels of another
            arena copy the tensors.

    Returns:
        For a module, its state dict as a plain dict. For a tensor, a tensor. For a pytree, the same pytree with its
        tensors copied (from any device, without gradients, contiguous) and everything else unchanged. A tensor that
        occurs twice is copied once.

    Raises:
        TypeError: A tensor is not strided, or is quantized or nested.
    """
    nest = thing.state_dict() if isinstance(thing, torch.nn.Module) else thing
    places = _Places()
    _map_tensors(nest, places.add)
    memory = (core_of(arena) or arenas.default_arena()).new_array(max(places.nbytes, 1), np.uint8, "C", False)
    copies = places.copy_to(memory)
    _core.show(memory)
    shared = _map_tensors(nest, lambda tensor: copies[_identity(tensor)])
    return dict(shared) if isinstance(thing, torch.nn.Module) else shared


def _map_tensors(nest: Any, made_of: Callable[[torch.Tensor], Any]) -> Any:
    """Returns the same pytree, with `made_of(tensor)` in place of each tensor."""
    if isinstance(nest, torch.Tensor):
        return made_of(nest)
    if isinstance(nest, dict):
        result = (
            OrderedDict() if type(nest) is OrderedDict else copy.copy(nest)
        )  # without the attributes that torch adds
        result.update((key, _map_tensors(value, made_of)) for key, value in nest.items())
        return result
    if isinstance(nest, tuple) and hasattr(nest, "_make"):
        return nest._make(_map_tensors(value, made_of) for value in nest)
    if type(nest) in (list, tuple):
        return type(nest)(_map_tensors(value, made_of) for value in nest)
    return nest


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Returns a key that is equal for tensors with the same elements in the same order."""
    bits = tensor.is_conj(), tensor.is_neg()
    return tensor.device, tensor.dtype, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), bits


class _Places:
    """Positions of tensors in one block of memory."""

    _ALIGNMENT = 64

    def __init__(self) -> None:
        self.nbytes = 0
        self._first: dict[tuple[Any, ...], tuple[torch.Tensor, int]] = {}

    def add(self, tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            raise TypeError(
                f"a tensor of layout {tensor.layout} and {tensor.dtype} cannot be shared; only strided tensors "
                "that are neither quantized nor nested can"
            )
        check_tensor_dtype(tensor.dtype)
        if _identity(tensor) not in self._first:
            self._first[_identity(tensor)] = tensor, self.nbytes
            nbytes = tensor.numel() * tensor.element_size()
            self.nbytes += -(-nbytes // self._ALIGNMENT) * self._ALIGNMENT

    def copy_to(self, memory: np.ndarray[Any, Any]) -> dict[tuple[Any, ...], torch.Tensor]:
        return {identity: self._copy(*each, memory) for identity, each in self._first.items()}

    @staticmethod
    def _copy(tensor: torch.Tensor, first: int, memory: np.ndarray[Any, Any]) -> torch.Tensor:
        # Each tensor gets its own slice, so that torch.save() of one tensor does not write all of them.
        piece = memory[first : first + tensor.numel() * tensor.element_size()]
        result = torch.from_numpy(piece).view(tensor.dtype).reshape(tensor.shape)
        with torch.no_grad():
            return result.copy_(torch.Tensor.detach(tensor))


def share_(thing: _T) -> _T:
    """Moves a tensor, or the parameters and buffers of a module, into shared memory, in place.

    If you pass it to another process (as an argument of its Process, through a queue or pipe, over fork), that process
    uses the same memory, and sees all writes. The memory lives until the last process drops it. There is no locking,
    and a process that is killed during a write leaves a part of it without a mark. Hogwild-like training tolerates
    that; for other uses, write to an `Arena.array` in `write` blocks. Optimizers that were made before keep their
    parameters. Copies, and files of ``torch.save``, contain the values.

    The gradient of a shared tensor is not shared; call `share_` for it as well if you need that.

    Args:
        thing: A tensor or a module.

    Returns:
        The same tensor or module.

    Raises:
        TypeError: A tensor is not a plain one on the CPU, or is a result of a computation with gradients. Nothing is
            shared then.
    """
    tensors = [*thing.parameters(), *thing.buffers()] if isinstance(thing, torch.nn.Module) else [thing]
    wanted = [each for each in tensors if not isinstance(each, (SharedTensor, SharedParameter))]
    for tensor in wanted:
        _check_sharable(tensor)
    storages = _Storages()
    for tensor in {id(each): each for each in wanted}.values():
        storages.share(tensor)
    return thing


def _check_sharable(tensor: Any) -> None:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(f"a {type(tensor).__name__} cannot be shared; pass a Tensor, a Parameter or a Module")
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise TypeError(
            f"a tensor of layout {tensor.layout} and {tensor.dtype} on {tensor.device} cannot be shared in place; only "
            "strided CPU tensors that are not quantized can"
        )
    if not tensor.is_leaf:
        raise TypeError("a tensor that was computed with gradients cannot be shared; share its detach()")


class _Storages:
    """The shared memory of each storage, so that tensors on one storage stay on one storage."""

    def __init__(self) -> None:
        self._arena = Arena._of(arenas.default_arena(), None)
        self._moved: dict[int, tuple[Any, SharedArray]] = {}  # keeps the old storage, so that its address is not reused

    def share(self, tensor: torch.Tensor) -> None:
        if tensor.numel() == 0:
            return
        with torch.no_grad():
            source = tensor.detach().resolve_conj().resolve_neg()
            memory = self._memory(source.untyped_storage())
            tensor.data = _on(memory, source.dtype, source.storage_offset(), tuple(source.shape), source.stride())
        _become_shared(tensor, memory)

    def _memory(self, storage: Any) -> SharedArray:
        if storage.data_ptr() not in self._moved:
            memory = self._arena.array(storage.nbytes(), np.uint8)
            torch.from_numpy(memory.array).copy_(torch.empty(0, dtype=torch.uint8).set_(storage))
            self._moved[storage.data_ptr()] = storage, memory
        return self._moved[storage.data_ptr()][1]


def _on(memory: SharedArray, dtype: torch.dtype, first: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """Returns a tensor on `memory`; `first` and `strides` count elements."""
    storage = torch.from_numpy(memory.array).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, first, shape, strides)  # type: ignore[call-overload]


def _become_shared(tensor: Any, memory: SharedArray | None) -> Any:
    tensor.__class__ = SharedParameter if isinstance(tensor, torch.nn.Parameter) else SharedTensor
    tensor._shmtree = memory
    return tensor


def _reduce(tensor: Any) -> Any:
    """Reduces a tensor to its position in shared memory.

    If the program has replaced `data`, the tensor is on other memory.
    """
    memory = getattr(tensor, "_shmtree", None)
    if memory is None or tensor.untyped_storage().data_ptr() != memory.array.ctypes.data:
        return torch.multiprocessing.reductions.reduce_tensor(_ordinary(tensor))  # type: ignore[no-untyped-call]
    place = (tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
    return _open_shared, (isinstance(tensor, torch.nn.Parameter), tensor.requires_grad, memory, *place)


def _open_shared(is_parameter: bool, requires_grad: bool, memory: SharedArray, *place: Any) -> Any:
    tensor = _on(memory, *place)
    if is_parameter:
        tensor = torch.nn.Parameter(tensor, requires_grad)
    return _become_shared(tensor.requires_grad_(requires_grad), memory)


# Only other processes get a reference, as with torch's own tensors; files and copies get the values.
ForkingPickler.register(SharedTensor, _reduce)
ForkingPickler.register(SharedParameter, _reduce)
