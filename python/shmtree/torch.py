"""For programs that train with PyTorch: batches that are written once, shared tensors and modules.

    loader = DataLoader(data, batch_size=64, num_workers=4, collate_fn=shmtree.torch.collate,
                        multiprocessing_context=shmtree.multiprocessing.get_context("spawn"))
    model = shmtree.torch.share_(model)      # its parameters are the same memory in every process it is given to
    weights = shmtree.torch.share(model)     # a copy of them that each put() sends as a reference
    shmtree.torch.publish(latest, model)     # the newest weights for everybody, in a shmtree.Latest
    shmtree.torch.load_into(model, value)    # and what an actor got of it, without allocating

Tensors themselves need nothing of this: channels and queues carry them like arrays.

With this module imported, a torch.profiler that runs shows the spans ``shmtree.put``, ``put_many``, ``get``,
``get_many`` and ``take``, the time they wait included.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict, deque
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar

import numpy as np
import torch
import torch.autograd.profiler
import torch.multiprocessing.reductions
import torch.profiler
from torch.utils.data import default_collate, get_worker_info

# The traversal of torch's own collate function, with another way to stack; there since 1.13.
from torch.utils.data._utils.collate import collate as _collate
from torch.utils.data._utils.collate import default_collate_fn_map

from . import _arena, _arrays, _core, _leaves, _pinned, _process, _shared_array
from ._weights import load_into, publish
from .errors import DeviceError

__all__ = ["SharedParameter", "SharedTensor", "collate", "load_into", "move_to", "publish", "share", "share_"]

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
    if not plain or any(each.requires_grad or each.dtype != first.dtype for each in tensors):
        stacked: torch.Tensor = default_collate_fn_map[torch.Tensor](tensors, collate_fn_map=collate_fn_map)
        return stacked
    arena = _process.home_arena()
    if arena is None or nbytes < _LEAST_BYTES:
        return torch.stack(tensors, 0)  # and not, as torch does, in a segment of its own
    shape = (len(tensors), *first.shape)
    out: torch.Tensor = _arrays.new_array(arena, shape, first.dtype, "C", False, gift=True)
    return torch.stack(tensors, 0, out=out)


_IN_ARENA: dict[Any, Callable[..., Any]] = {**default_collate_fn_map, torch.Tensor: _stack}


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


def share(thing: Any, arena: _arena.Arena | None = None) -> Any:
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
    memory = (arena or _arena.default_arena())._open().new_array(max(places.nbytes, 1), np.uint8, "C", False)
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
        _leaves.check_tensor_dtype(tensor.dtype)
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
        self._arena = _arena.Arena._of(_process.default_arena(), None)
        self._moved: dict[int, tuple[Any, _shared_array.SharedArray]] = {}  # with the old one, which keeps its address

    def share(self, tensor: torch.Tensor) -> None:
        if tensor.numel() == 0:
            return
        with torch.no_grad():
            source = tensor.detach().resolve_conj().resolve_neg()
            memory = self._memory(source.untyped_storage())
            tensor.data = _on(memory, source.dtype, source.storage_offset(), tuple(source.shape), source.stride())
        _become_shared(tensor, memory)

    def _memory(self, storage: Any) -> _shared_array.SharedArray:
        if storage.data_ptr() not in self._moved:
            memory = self._arena.array(storage.nbytes(), np.uint8)
            torch.from_numpy(memory.array).copy_(torch.empty(0, dtype=torch.uint8).set_(storage))
            self._moved[storage.data_ptr()] = storage, memory
        return self._moved[storage.data_ptr()][1]


def _on(
    memory: _shared_array.SharedArray, dtype: torch.dtype, first: Any, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Any:
    """A tensor on it; `first` and `strides` count elements."""
    storage = torch.from_numpy(memory.array).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, first, shape, strides)  # type: ignore[call-overload]


def _become_shared(tensor: Any, memory: _shared_array.SharedArray | None) -> Any:
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


def _open_shared(is_parameter: bool, requires_grad: bool, memory: _shared_array.SharedArray, *place: Any) -> Any:
    tensor = _on(memory, *place)
    if is_parameter:
        tensor = torch.nn.Parameter(tensor, requires_grad)
    return _become_shared(tensor.requires_grad_(requires_grad), memory)


# As torch does for its own: only what goes to another process is a reference.
ForkingPickler.register(SharedTensor, _reduce)
ForkingPickler.register(SharedParameter, _reduce)


def _begin_span(name: str) -> Any:
    span: Any = torch.profiler.record_function(name)
    span.__enter__()
    return span


_core.set_spans(vars(torch.autograd.profiler), "_is_profiler_enabled", _begin_span)  # since torch 2.2
