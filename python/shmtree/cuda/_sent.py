"""Device memory that is in transit to other processes, or that they have not released yet.

The memory is not copied. A message contains the location of the memory, and refers to a *token*: a small block of the
channel's arena. A receiver pins the token while it uses the memory, so the arena knows the users, even if they are
killed. This process keeps the memory, with an event that receivers wait for on the device, until no other process pins
the token. It checks tokens at every later put, and at its exit.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
import weakref
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np

from .. import _core
from .._codec.device_leaf import DeviceLeaf
from .._process import lifetime
from ..errors import DeviceError
from . import _driver, _events, _received

#: Seconds for which an exiting process waits for receivers to release its memory.
exit_timeout = 30.0

_TOKEN_BYTES = 64
_INVALID_VALUE = 1
_MAX_HANDLES = 1024  # maximum number of cached handles of exported allocations
_CHECKS = 4  # number of tokens to check for each token that is sent
_STEP_S = 0.005


class Source(NamedTuple):
    """Memory to be sent."""

    owner: Any  #: keeps the memory alive
    pointer: int
    nbytes: int
    stream: int  #: stream in which it is being written
    about: tuple[Any, ...]  #: description from which the receiver builds the value, see _received.build


class Lent:
    """Memory that other processes may be using."""

    def __init__(self, source: Source, arena: _core.Arena, token: Any, device: int, event: _events.Event) -> None:
        self.owner = source.owner
        self.device = device
        self.event = event
        self._arena = arena
        self._token = weakref.ref(token)  # alive while an unfinished put refers to it
        self._block = _core.block_of(token)
        self._lease = token.base  # keeps the block

    def is_out(self) -> bool:
        return self._token() is not None or self._arena.is_shared(self._block)

    def has_others(self) -> bool:
        """Returns True if another process is attached that could release the memory."""
        return self._arena.stats()["participants"] > 1

    def forget(self) -> None:
        _free_events.put_back(self.device, self.event)


_free_events = _events.Pool(is_shared=True)
_handles: dict[tuple[int, int], bytes] = {}  # handles of allocations by base and by the driver's number

# by arena and token; the most recently checked ones are at the end
_lent: OrderedDict[tuple[bytes, int], Lent] = OrderedDict()
_of_parent: list[Any] = []
_lock = threading.RLock()  # protects _lent; never held while waiting; recursive, because a destructor may run under it


def leaf_of(obj: Any, arena: _core.Arena) -> DeviceLeaf | None:
    """Returns the value to send in place of a CUDA tensor or an array with ``__cuda_array_interface__``; else None.

    Raises DeviceError if its memory cannot be transferred to another process.
    """
    torch = sys.modules.get("torch")
    source = None
    if torch is not None and isinstance(obj, torch.Tensor):
        if obj.is_cuda:
            source = _source_of_tensor(torch, obj)
    else:
        source = _source_of_array(obj)
    return None if source is None else _lend(source, arena)


def _source_of_tensor(torch: Any, tensor: Any) -> Source | None:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.__dict__ or tensor._backward_hooks:
        return None
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return None
    owner = tensor.detach().resolve_conj().resolve_neg()
    stream = _received.current_stream(owner.device.index)
    return source_of_storage(owner, stream, tensor.requires_grad, type(tensor) is torch.nn.Parameter)


def source_of_storage(owner: Any, stream: int, requires_grad: bool, is_parameter: bool) -> Source:
    """Returns a source for the whole storage of a tensor, so that the tensor keeps its offset in it."""
    storage = owner.untyped_storage()
    dtype = str(owner.dtype).removeprefix("torch.")
    place = (owner.storage_offset(), tuple(owner.shape), tuple(owner.stride()))
    about = ("torch", dtype, *place, requires_grad, is_parameter)
    return Source(owner, storage.data_ptr(), storage.nbytes(), stream, about)


def _source_of_array(array: Any) -> Source | None:
    if type(array).__module__.startswith("jax"):
        return None  # arrays of JAX go through pickle, so that they arrive as arrays of JAX
    try:
        known = array.__cuda_array_interface__
    except AttributeError:
        return None
    dtype = np.dtype(known["typestr"])
    if known.get("mask") is not None or dtype.kind not in "biufc":
        raise TypeError(f"a device array of {dtype} cannot be sent if it has a mask or other elements than numbers")
    shape, (pointer, read_only) = tuple(known["shape"]), known["data"]
    strides = known.get("strides")
    low = high = 0
    if 0 not in shape:
        steps = strides if strides is not None else _received.contiguous_steps(shape, dtype.itemsize)
        low, high = _received.extent(shape, steps, dtype.itemsize)
    about = ("array", dtype.str, -low, shape, None if strides is None else tuple(strides), bool(read_only))
    return Source(array, pointer + low, high - low, known.get("stream") or 0, about)


def _lend(source: Source, arena: _core.Arena) -> DeviceLeaf:
    look(_CHECKS)
    if source.nbytes == 0:
        return DeviceLeaf((source.about,))
    driver = _driver.driver()
    device = driver.device_of(source.pointer)
    token = arena.new_array(_TOKEN_BYTES, np.uint8, "C", True, True)
    block = _core.block_of(token)
    with driver.on(device):
        base, _ = driver.allocation_of(source.pointer)
        if _received.has_opened(device, base):
            raise DeviceError(
                "this device memory belongs to the process that sent it, so it cannot be forwarded; send a copy"
                " (clone())"
            )
        handle = _handle_of(driver, base)
        event = _free_events.record(driver, device, source.stream)
        with _lock:
            _lent[arena.uuid, block] = Lent(source, arena, token, device, event)
    sender = (arena.uuid, block, arena.identity, os.getpid())
    location = (driver.uuid(device), handle, source.pointer - base, source.nbytes, event.handle)
    return DeviceLeaf((source.about, sender, location, token))


def _handle_of(driver: _driver.Driver, base: int) -> bytes:
    try:
        key = base, driver.buffer_of(base)
        handle = _handles.get(key)
        if handle is None:
            handle = driver.memory_handle(base)
            if len(_handles) >= _MAX_HANDLES:
                _handles.clear()
            _handles[key] = handle
        return handle
    except DeviceError as error:
        if error.code != _INVALID_VALUE:
            raise
        raise DeviceError(
            "the driver can share only memory that cudaMalloc allocated, and this memory was allocated in another way; "
            "if torch allocated it, start the sending process without expandable_segments:True and "
            f"backend:cudaMallocAsync in PYTORCH_CUDA_ALLOC_CONF ({error})",
            code=error.code,
        ) from None


def own(uuid: bytes, block: int) -> Lent | None:
    """Returns the memory that this process has lent with that token. Used if a message arrives in the process that sent
    it."""
    with _lock:
        return _lent.get((uuid, block))


# --- getting it back --------------------------------------------------------------------------------------------------


def look(most: int | None = None) -> int:
    """Drops the memory that all receivers have released, among the `most` least recently checked ones.

    Returns the number that is left.
    """
    released = []
    with _lock:
        for key in list(itertools.islice(_lent, most)):
            lent = _lent.get(key)
            if lent is None:  # a destructor, which may run at any allocation, has dropped it
                continue
            is_out = lent.is_out()
            if _lent.get(key) is not lent:
                continue
            if is_out:
                _lent.move_to_end(key)
            else:
                del _lent[key]
                released.append(lent)
    for lent in released:  # called without the lock, since this drops the owners
        lent.forget()
    return len(_lent)


def wait(timeout: float | None, only_from_others: bool = False) -> bool:
    """Returns True if all memory was released in time.

    With `only_from_others`, gives up once no other process is attached that could release the rest.
    """
    seconds = _core.parse_timeout(timeout)
    end = None if seconds is None else time.monotonic() + seconds
    while look():
        if only_from_others:
            with _lock:
                left = list(_lent.values())
            if not any(lent.has_others() for lent in left):
                return False
        if end is not None and time.monotonic() >= end:
            return False
        time.sleep(_STEP_S)
    return True


def _at_exit() -> None:
    if _lent and _driver.is_in_use():
        wait(exit_timeout, only_from_others=True)


def _before_fork() -> None:
    _lock.acquire()


def _after_fork() -> None:
    _lock.release()


def _after_fork_in_child() -> None:
    # The child must not free the memory, and does not count as a user of it.
    _of_parent.extend(lent.owner for lent in _lent.values())
    _lent.clear()
    _free_events.clear()
    _handles.clear()
    _lock.release()


_received.find_own = own
lifetime.wait_at_end(_at_exit)
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
