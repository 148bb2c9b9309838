"""Tensors and modules in shared memory: as one version that is sent by reference, and in place."""

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
from .._ipc.arena import Arena, default_arena
from .._ipc.shared_array import SharedArray
from .._process import arenas
from .._torch.tensors import check_tensor_dtype

_T = TypeVar("_T", bound="torch.Tensor | torch.nn.Module")


def _reduce_ordinary(tensor: Any, protocol: Any) -> Any:
    return _ordinary(tensor).__reduce_ex__(protocol)


def _copy_ordinary(tensor: Any, memo: dict[int, Any]) -> Any:
    """A tensor of its own."""
    return copy.deepcopy(_ordinary(tensor), memo)


class SharedTensor(torch.Tensor):
    """A tensor on memory that processes share; see `share_`. What is computed from it is an ordinary tensor."""

    __torch_function__: Any = torch._C._disabled_torch_function_impl  # as torch's own Parameter
    __reduce_ex__ = _reduce_ordinary
    __deepcopy__ = _copy_ordinary

    def detach(self) -> Any:
        """The same memory without gradients; of this class, which torch wants for a Parameter made of it."""
        return _become_shared(super().detach(), getattr(self, "_shmtree", None))


class SharedParameter(torch.nn.Parameter):
    """A parameter on memory that processes share; see `share_`."""

    __reduce_ex__ = _reduce_ordinary
    __deepcopy__ = _copy_ordinary


def _ordinary(tensor: torch.Tensor) -> Any:
    """A tensor of torch's own class on the same memory: what is written to a file, or copied."""
    plain = torch.Tensor.detach(tensor).requires_grad_(tensor.requires_grad)
    made = torch.nn.Parameter(plain, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else plain
    made.grad = tensor.grad if tensor.is_leaf else None
    return made


def share(thing: Any, arena: Arena | None = None) -> Any:
    """A copy that lies in `arena`, and that any number of channels of the arena then send as a reference.

    Of a module that is its state dict, a plain dict; of a tensor a tensor; of dicts, lists and tuples, nested, the same
    with their tensors copied (from any device, without gradients, contiguous) and all else as it is. A tensor that is
    in it twice is copied once. Without `arena` it is the one that this process's channels without an arena are in;
    channels of another copy it.

    It is one version, for all time: whoever receives it has the same memory, so what anybody writes to it the others
    see, half-written. Make the next version with another call, and drop this one: its memory is used again as soon as
    nobody has a tensor of it. TypeError for tensors that are not strided, or quantized.
    """
    nest = thing.state_dict() if isinstance(thing, torch.nn.Module) else thing
    places = _Places()
    _map_tensors(nest, places.add)
    memory = (arena or default_arena())._open().new_array(max(places.nbytes, 1), np.uint8, "C", False)
    copies = places.copy_to(memory)
    _core.show(memory)
    shared = _map_tensors(nest, lambda tensor: copies[_identity(tensor)])
    return dict(shared) if isinstance(thing, torch.nn.Module) else shared


def _map_tensors(nest: Any, made_of: Callable[[torch.Tensor], Any]) -> Any:
    """The same nest with what `made_of` makes of its tensors."""
    if isinstance(nest, torch.Tensor):
        return made_of(nest)
    if isinstance(nest, dict):
        made = OrderedDict() if type(nest) is OrderedDict else copy.copy(nest)  # without what torch attaches to it
        made.update((key, _map_tensors(value, made_of)) for key, value in nest.items())
        return made
    if isinstance(nest, tuple) and hasattr(nest, "_make"):
        return nest._make(_map_tensors(value, made_of) for value in nest)
    if type(nest) in (list, tuple):
        return type(nest)(_map_tensors(value, made_of) for value in nest)
    return nest


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for tensors that are the same elements in the same order."""
    bits = tensor.is_conj(), tensor.is_neg()
    return tensor.device, tensor.dtype, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), bits


class _Places:
    """Where in one piece of memory each tensor goes."""

    _ALIGNMENT = 64

    def __init__(self) -> None:
        self.nbytes = 0
        self._first: dict[tuple[Any, ...], tuple[torch.Tensor, int]] = {}

    def add(self, tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            raise TypeError(
                f"a tensor of layout {tensor.layout} and {tensor.dtype} cannot be shared; a strided tensor "
                "that is neither quantized nor nested can"
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
        # On a piece of its own, so that torch.save() of one tensor does not write all of them.
        piece = memory[first : first + tensor.numel() * tensor.element_size()]
        made = torch.from_numpy(piece).view(tensor.dtype).reshape(tensor.shape)
        with torch.no_grad():
            return made.copy_(torch.Tensor.detach(tensor))


def share_(thing: _T) -> _T:
    """Moves a tensor, or the parameters and buffers of a module, into shared memory, in place; returns it.

    Given to another process (as an argument of its Process, through a queue or pipe, over fork), it is the same memory
    there: what one writes the others see, until the last of them lets go. There is no locking: sums of gradients and
    Hogwild-like training live with that, other uses need a lock. Optimizers made before keep their parameters. Copies,
    and files of ``torch.save``, have the values.

    A shared tensor's gradient is not shared: `share_` it as well where it should be. TypeError for tensors that are not
    plain ones on the CPU, and for results of a computation with gradients; then nothing was shared.
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
        raise TypeError(f"a {type(tensor).__name__} cannot be shared; a Tensor, a Parameter or a Module can")
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise TypeError(
            f"a tensor of layout {tensor.layout} and {tensor.dtype} on {tensor.device} cannot be shared in place; only "
            "strided CPU tensors that are not quantized can"
        )
    if not tensor.is_leaf:
        raise TypeError("a tensor that was computed with gradients cannot be shared; its detach() can")


class _Storages:
    """Where each storage went, so that tensors on one storage stay so."""

    def __init__(self) -> None:
        self._arena = Arena._of(arenas.default_arena(), None)
        self._moved: dict[int, tuple[Any, SharedArray]] = {}  # with the old one, which keeps its address

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
    """A tensor on it; `first` and `strides` count elements."""
    storage = torch.from_numpy(memory.array).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, first, shape, strides)  # type: ignore[call-overload]


def _become_shared(tensor: Any, memory: SharedArray | None) -> Any:
    tensor.__class__ = SharedParameter if isinstance(tensor, torch.nn.Parameter) else SharedTensor
    tensor._shmtree = memory
    return tensor


def _reduce(tensor: Any) -> Any:
    """What is sent to another process: the place. Whoever replaced `data` since has replaced the memory."""
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


# As torch does for its own: only what goes to another process is a reference.
ForkingPickler.register(SharedTensor, _reduce)
ForkingPickler.register(SharedParameter, _reduce)
