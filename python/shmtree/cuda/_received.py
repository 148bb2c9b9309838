"""Device memory of other processes, from its receipt until the last tensor or array on it is gone.

An allocation is opened once, however many messages contain parts of it, and closed with its last user. When the last
view is dropped, kernels may still be reading it. Therefore an event is recorded at that moment, and the memory is
released once the event has completed. The next receive or release checks this, because a destructor must not block.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from .. import _core
from .._codec import checks, optional
from .._process import lifetime
from .._public import made_by
from ..errors import CorruptMessage, DeviceError, PeerDied
from . import _driver, _events


class _Sender(NamedTuple):
    """The sending process, and the token that shows which processes use the memory."""

    uuid: bytes
    block: int
    identity: int
    pid: int


class _Location(NamedTuple):
    """Bytes [first, first + nbytes) of an allocation; the event completes when they are written."""

    device: bytes
    handle: bytes
    first: int
    nbytes: int
    event: bytes


class _Allocation:
    """An allocation of another process, opened in this one."""

    def __init__(self, driver: _driver.Driver, device: int, handle: bytes) -> None:
        with driver.on(device):
            self.base = driver.open_memory(handle)
            self.nbytes = driver.allocation_of(self.base)[1]
        self.device = device
        self.users = 0


_opened: dict[tuple[int, bytes], _Allocation] = {}
_departed: deque[_Departure] = deque()
_alive: weakref.WeakSet[Memory] = weakref.WeakSet()
_free_events = _events.Pool(is_shared=False)
_senders_events = _events.Opened()
_lock = threading.Lock()  # a destructor may run while this thread holds the lock, so settle() only tries to lock


def find_own(uuid: bytes, block: int) -> Any:
    """Returns the memory that this process has lent with that token. `_sent` replaces this function."""


def has_opened(device: int, base: int) -> bool:
    with _lock:
        return any(known.base == base and known.device == device for known in _opened.values())


class Memory:
    """Bytes on a device, which this process keeps while the object lives. Torch sees it as an array of bytes."""

    def __init__(self, driver: _driver.Driver, device: int, location: _Location, lease: Any) -> None:
        self.device = device
        self.nbytes = location.nbytes
        self._lease = lease
        self._driver = driver
        self._pid = os.getpid()
        self._key = device, location.handle
        self._allocation: _Allocation | None = None
        with _lock:
            allocation = _opened.get(self._key)
            if allocation is None:
                allocation = _opened[self._key] = _Allocation(driver, device, location.handle)
            allocation.users += 1
        self._allocation = allocation
        _alive.add(self)
        self.pointer = allocation.base + location.first
        if location.first + location.nbytes > allocation.nbytes:
            raise CorruptMessage("the device memory of a message exceeds the allocation that the message names")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return _interface("|u1", (self.nbytes,), None, self.pointer, False)

    def __del__(self) -> None:
        if self._allocation is None or self._pid != os.getpid() or sys.is_finalizing():
            return
        _departed.append(_Departure(self._driver, self._key, self._allocation, self._lease))
        settle()

    def forget(self) -> None:
        """Drops the lease in a forked child, which can neither use nor keep the memory."""
        self._lease = None


class _Departure:
    """Memory to be released once the device has finished the work that was submitted before."""

    def __init__(self, driver: _driver.Driver, key: tuple[int, bytes], allocation: _Allocation, lease: Any) -> None:
        self._driver = driver
        self._key = key
        self._allocation = allocation
        self._lease = lease
        self.stream: tuple[int, int] | None = None  # device and stream of the event, if one is recorded
        self._event: _events.Event | None = None
        # No event can be recorded in a stream under capture, so a later check tries again.
        with contextlib.suppress(DeviceError):
            self._record()

    def _record(self) -> _events.Event:
        device = self._allocation.device
        stream = current_stream(device)
        with self._driver.on(device):
            self._event = _free_events.record(self._driver, device, stream)
        self.stream = device, stream
        return self._event

    def has_passed(self) -> bool:
        try:
            event = self._event or self._record()
            with self._driver.on(self._allocation.device):
                return self._driver.has_passed(event.number)
        except DeviceError:
            # A graph may have captured the event, so the next check records another one.
            self._event = self.stream = None
            return False

    def wait(self) -> None:
        with contextlib.suppress(DeviceError):
            event = self._event or self._record()
            with self._driver.on(self._allocation.device):
                self._driver.wait_for(event.number)

    def end(self) -> None:
        """Releases the memory. The caller holds the lock."""
        self._allocation.users -= 1
        is_last = self._allocation.users == 0
        if is_last:
            del _opened[self._key]
        if self._event is not None:
            _free_events.put_back(self._allocation.device, self._event)
        if is_last:
            with contextlib.suppress(DeviceError), self._driver.on(self._allocation.device):
                self._driver.close_memory(self._allocation.base)
        self._lease = None


def settle() -> int:
    """Releases memory that the device no longer uses. Returns how many pieces are left to be released. Never blocks.

    Streams complete in order. So after the first pending departure of a stream, the later ones are not checked.
    """
    if _departed and _lock.acquire(blocking=False):
        try:
            pending: set[tuple[int, int]] = set()
            for _ in range(len(_departed)):
                one = _departed[0]  # stays in the queue if has_passed() raises
                if one.stream not in pending and one.has_passed():
                    _departed.popleft()
                    one.end()
                    continue
                if one.stream is not None:
                    pending.add(one.stream)
                _departed.rotate(-1)
        finally:
            _lock.release()
    return len(_departed)


def _at_exit() -> None:
    for one in list(_departed):
        one.wait()
    settle()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    for memory in list(_alive):
        memory.forget()
    _opened.clear()
    _departed.clear()
    _free_events.clear()
    _senders_events.clear()


def current_stream(device: int) -> int:
    """Returns torch's current stream, or the default stream without torch."""
    torch = _torch_with_cuda()
    if torch is None or not torch.cuda.is_initialized():
        return 0
    number = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # makes no Stream object
    return int(torch.cuda.current_stream(device).cuda_stream if number is None else number(device))


def _torch_with_cuda() -> Any:
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.backends.cuda.is_built() else None


# --- receiving --------------------------------------------------------------------------------------------------------


def receive(about: tuple[Any, ...], sent_by: tuple[Any, ...] | None, place: tuple[Any, ...] | None) -> Any:
    """Returns the tensor or array of a `DeviceLeaf`; `checks.device` has checked its parts.

    Raises PeerDied if the process that owns the memory is gone, and DeviceError if it cannot be used here.
    """
    settle()
    if sent_by is None or place is None:
        check_fits(about, None)
        return _make(about, None)
    sender, location = _Sender(*sent_by), _Location(*place)
    arena = _core.find_arena(sender.uuid)
    if arena is None:
        raise CorruptMessage("a message has device memory of an arena that this process is not attached to")
    if sender.identity == arena.identity:
        return _receive_own(about, sender)
    check_fits(about, location.nbytes)
    return _make(about, _open(arena, sender, location, about[0] == "array"))


def _token(arena: _core.Arena, block: int) -> Any:
    try:
        return arena.open_array(block, 1, np.uint8, "C").base
    except (ValueError, OverflowError, FileNotFoundError) as error:
        raise CorruptMessage(f"the message lacks the token of its device memory: {error}") from error


def _open(arena: _core.Arena, sender: _Sender, location: _Location, is_array: bool) -> Memory:
    _check_alive(arena, sender)
    # The message refers to the token, so the token exists. From here on, this process holds it as well.
    lease = _token(arena, sender.block)
    driver = _driver.driver()
    device = driver.device_with(location.device)
    try:
        memory = Memory(driver, device, location, lease)
        stream = current_stream(device)
        # An array reports that it is ready in the default stream, see _interface.
        streams = {stream, 0} if is_array else {stream}
        with driver.on(device):
            _senders_events.wait(driver, device, (sender.uuid, sender.identity), location.event, streams)
    except DeviceError:
        _check_alive(arena, sender)
        raise
    _check_alive(arena, sender)  # the sender may have died between the first check and the opening
    return memory


def _check_alive(arena: _core.Arena, sender: _Sender) -> None:
    if arena.is_alive(sender.identity):
        return
    error = PeerDied(f"process {sender.pid} exited before its device memory was received; the memory was freed")
    error.pids = (sender.pid,)
    raise error


def _receive_own(about: Any, sender: _Sender) -> Any:
    lent = find_own(sender.uuid, sender.block)
    if lent is None:
        raise CorruptMessage("a message names device memory that this process has not sent")
    driver = _driver.driver()
    with driver.on(lent.device):
        driver.wait_in_stream(current_stream(lent.device), lent.event.number)
    torch = sys.modules.get("torch")
    if (about[0] == "torch") != (torch is not None and isinstance(lent.owner, torch.Tensor)):
        raise CorruptMessage("the message describes device memory of this process as another kind of array")
    return _finish(lent.owner.detach(), *about[5:]) if about[0] == "torch" else lent.owner


# --- tensors and arrays -----------------------------------------------------------------------------------------------


@made_by("Receiver.get()")
class DeviceArray:
    """An array on a device, for libraries that accept ``__cuda_array_interface__``: CuPy, Numba, torch.as_tensor.

    The memory belongs to another process, which keeps it while this object, or one that was made from it, lives.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    _memory: Memory | None
    _first: int
    _read_only: bool

    @classmethod
    def _of(
        cls, memory: Memory | None, dtype: Any, first: int, shape: Any, strides: Any, read_only: bool
    ) -> DeviceArray:
        self = cls.__new__(cls)
        self.dtype = np.dtype(dtype)
        self.shape = tuple(shape)
        self.strides = None if strides is None else tuple(strides)
        self._memory = memory
        self._first = first
        self._read_only = read_only
        return self

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        pointer = 0 if self._memory is None else self._memory.pointer + self._first
        return _interface(self.dtype.str, self.shape, self.strides, pointer, self._read_only)

    def __repr__(self) -> str:
        return f"<DeviceArray of {self.dtype}, shape {self.shape}>"


def _interface(typestr: str, shape: Any, strides: Any, pointer: int, read_only: bool) -> dict[str, Any]:
    # Stream 1 is the default one, which waits for the sender's event.
    data = (pointer, read_only)
    return {"typestr": typestr, "shape": shape, "strides": strides, "data": data, "stream": 1, "version": 3}


def build(about: Any, memory: Memory | None) -> Any:
    """Returns the tensor or array on this memory (None: it has no bytes). Raises CorruptMessage if it does not fit."""
    checks.check_about(about)
    check_fits(about, None if memory is None else memory.nbytes)
    return _make(about, memory)


def _make(about: Any, memory: Memory | None) -> Any:
    try:
        kind, *rest = about
        return _build_tensor(memory, *rest) if kind == "torch" else _build_array(memory, *rest)
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:  # RuntimeError: torch's own
        raise CorruptMessage(f"the description of device memory is invalid: {error}") from None


def _build_array(memory: Memory | None, typestr: str, first: int, shape: Any, strides: Any, read_only: bool) -> Any:
    array = DeviceArray._of(memory, typestr, first, shape, strides, read_only)
    if array.dtype.kind not in "biufc":
        raise ValueError(f"the dtype is {typestr!r}")
    torch = _torch_with_cuda()
    if torch is None or memory is None or read_only:  # torch has no read-only tensors
        return array
    return torch.as_tensor(array, device=f"cuda:{memory.device}")


def check_fits(about: tuple[Any, ...], nbytes: int | None) -> None:
    """Raises CorruptMessage unless `nbytes` of memory contain all elements; None is no memory."""
    kind, dtype, first, shape, strides = about[:5]
    if kind == "torch":
        size = optional.torch_dtype(optional.imported_torch(False), dtype).itemsize
        first, steps = first * size, tuple(step * size for step in strides)
    else:
        size = np.dtype(dtype).itemsize
        steps = contiguous_steps(shape, size) if strides is None else strides
    if 0 in shape:
        return
    low, high = extent(shape, steps, size)
    if nbytes is None or first + low < 0 or first + high > nbytes:
        raise CorruptMessage("a message has elements outside of its device memory")


def contiguous_steps(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    steps = [itemsize] * len(shape)
    for i in range(len(shape) - 1, 0, -1):
        steps[i - 1] = steps[i] * shape[i]
    return tuple(steps)


def extent(shape: Any, steps: Any, itemsize: int) -> tuple[int, int]:
    """Returns the first and the end byte of a non-empty array, relative to its first element."""
    reaches = [(count - 1) * step for count, step in zip(shape, steps, strict=True)]
    return sum(min(0, reach) for reach in reaches), sum(max(0, reach) for reach in reaches) + itemsize


def _build_tensor(
    memory: Memory | None, name: str, first: int, shape: Any, strides: Any, requires_grad: bool, is_parameter: bool
) -> Any:
    import torch

    dtype = optional.torch_dtype(torch, name)
    if memory is None:
        tensor = torch.empty_strided(shape, strides, dtype=dtype, device="cuda")
    else:
        tensor = on_storage(as_bytes(torch, memory), dtype, first, shape, strides)
    return _finish(tensor, requires_grad, is_parameter)


def as_bytes(torch: Any, memory: Memory) -> Any:
    """Returns a tensor of the memory's bytes. Its storage keeps the memory alive."""
    return torch.as_tensor(memory, device=f"cuda:{memory.device}")


def on_storage(memory: Any, dtype: Any, first: int, shape: Any, strides: Any) -> Any:
    """Returns a tensor on the storage of another one; `first` and `strides` count elements."""
    return memory.new_empty(0, dtype=dtype).set_(memory.untyped_storage(), first, tuple(shape), tuple(strides))


def _finish(tensor: Any, requires_grad: bool, is_parameter: bool) -> Any:
    if is_parameter:
        import torch

        return torch.nn.Parameter(tensor, requires_grad=bool(requires_grad))
    return tensor.requires_grad_() if requires_grad else tensor


lifetime.before_end(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
