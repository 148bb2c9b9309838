"""Arenas, what lies in them, and the making of channels."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any, Literal, NamedTuple

import numpy as np

from . import _arrays, _core, _handles, _pinned, _process
from ._arguments import limit, whole
from ._channel import ARENA, ARRAY, CHANNEL, KINDS, Limits, Receiver, Sender, new_channel, open_known
from ._queue import JoinableQueue, Queue, SimpleQueue
from .errors import ChannelClosed

OnPeerDeath = Literal["raise", "wait"]


class Holder(NamedTuple):
    """Who keeps a block from being used again."""

    block: int  #: number of the block, unique while it is held
    nbytes: int  #: of memory
    pid: int  #: of the process that holds it
    age: float  #: seconds since it was last taken hold of


class Arena:
    """Shared memory that several channels have in common, so that data passes from one to the next without a copy.

    Args:
        max_bytes: budget for everything in it, 1 MiB to 2 TiB; None takes half of what the machine and its control
            groups have left. Memory is taken only as messages need it.
        name: makes it known to the user's other processes, for `Arena.open`; FileExistsError when the name is in use.
        prefault: bytes to take from the machine at once, so that the first messages find warm memory.
        huge_pages: asks for huge pages, where the machine has them enabled for shared memory.

    An arena lives as long as any process has it, a channel in it, or a view of what was in it.
    """

    _pins = False

    def __init__(
        self, max_bytes: int | None = None, *, name: str | None = None, prefault: int = 0, huge_pages: bool = False
    ) -> None:
        if max_bytes is not None and whole("max_bytes", max_bytes) <= 0:
            raise ValueError(f"max_bytes is {max_bytes}; it must be positive, or None")
        if whole("prefault", prefault) < 0:
            raise ValueError(f"prefault is {prefault}; it must not be negative")
        if max_bytes is not None and prefault > max_bytes:
            raise ValueError(f"prefault is {prefault}; it must not be more than max_bytes, {max_bytes}")
        if name is not None:
            _process.check_name(name)
        self._core: _core.Arena | None = _core.Arena.create(max_bytes or 0, prefault, huge_pages)
        self._name = _process.create_name(name, ARENA, self._core) if name is not None else None

    @classmethod
    def _of(cls, core: _core.Arena, name: _core.Name | None) -> Arena:
        self = cls.__new__(cls)
        self._core = core
        self._name = name
        return self

    @classmethod
    def open(cls, name: str) -> Arena:
        """The arena that another process of this user made with this name, or made a named channel or array in.

        FileNotFoundError when there is none.
        """
        known = _process.open_name(name)
        return cls._of(known.arena, known)

    def _open(self) -> _core.Arena:
        core = self._core
        if core is None:
            raise ChannelClosed("this arena was closed in this process")
        return core

    def create_pair(
        self,
        capacity: int | None = 8,
        *,
        max_bytes: int | None = None,
        name: str | None = None,
        allow_pickle: bool | None = None,
        on_peer_death: OnPeerDeath = "raise",
        max_unsettled: int | None = None,
        max_attempts: int | None = None,
    ) -> tuple[Sender, Receiver]:
        """A channel in this arena; see `shmtree.create_pair`."""
        limits = pair_limits(capacity, max_bytes, max_unsettled, max_attempts)
        return make_pair(self._open(), limits, name, allow_pickle, on_peer_death)

    def Queue(
        self,
        maxsize: int = 0,
        *,
        max_bytes: int | None = None,
        name: str | None = None,
        allow_pickle: bool | None = None,
    ) -> Queue[Any]:
        """A queue in this arena; see `shmtree.Queue`."""
        return Queue(maxsize, max_bytes=max_bytes, name=name, arena=self, allow_pickle=allow_pickle)

    def JoinableQueue(
        self,
        maxsize: int = 0,
        *,
        max_bytes: int | None = None,
        name: str | None = None,
        allow_pickle: bool | None = None,
    ) -> JoinableQueue[Any]:
        """A joinable queue in this arena; see `shmtree.JoinableQueue`."""
        return JoinableQueue(maxsize, max_bytes=max_bytes, name=name, arena=self, allow_pickle=allow_pickle)

    def SimpleQueue(
        self, *, max_bytes: int | None = None, name: str | None = None, allow_pickle: bool | None = None
    ) -> SimpleQueue[Any]:
        """A simple queue in this arena; see `shmtree.SimpleQueue`."""
        return SimpleQueue(max_bytes=max_bytes, name=name, arena=self, allow_pickle=allow_pickle)

    def new_empty(self, shape: Any, dtype: Any = float, order: str = "C") -> Any:
        """An uninitialised ndarray in this arena; see Sender.new_empty. Any channel of the arena sends it uncopied."""
        return _arrays.new_array(self._open(), shape, dtype, order, False)

    def new_zeros(self, shape: Any, dtype: Any = float, order: str = "C") -> Any:
        """`new_empty` filled with zeros."""
        return _arrays.new_array(self._open(), shape, dtype, order, True)

    def new_empty_like(self, prototype: Any, dtype: Any = None, order: str = "K") -> Any:
        """`new_empty` with the shape, dtype and order of another array or tensor."""
        return _arrays.new_like(self._open(), prototype, dtype, order)

    def array(self, shape: Any, dtype: Any = float, name: str | None = None) -> SharedArray:
        """An array of zeros that every process given it reads and writes at the same time.

        With a name, `SharedArray.open` finds it from any process of this user; FileExistsError when that is in use.
        """
        core = self._open()
        memory = core.new_array(shape, dtype, "C", True)
        if memory.nbytes == 0:
            raise ValueError(f"an array of shape {shape} has no memory to share")
        memory = core.open_array(_core.block_of(memory), memory.shape, memory.dtype, "C")
        known = None
        if name is not None:
            note = json.dumps({"shape": memory.shape, "dtype": _dtype_text(memory.dtype)})
            known = _process.create_name(name, ARRAY, core, _core.block_of(memory), note)
        return SharedArray._of(core, memory, known)

    @property
    def max_bytes(self) -> int:
        """The budget."""
        return self._open().max_bytes

    def stats(self) -> dict[str, Any]:
        """Counts and bytes.

        max_bytes: the budget. committed_bytes: taken from the machine; of them used_bytes are in use, and of those
        held_bytes held by processes, or by channels for themselves. blocks: in use. participants: processes.
        reconciles: how often something was tidied up after a death.
        """
        return self._open().stats()

    def holders(self) -> list[Holder]:
        """Each block that views or arrays keep, once for each process that holds it."""
        return [Holder(*each) for each in self._open().holders()]

    def trim(self) -> int:
        """Gives the memory of what is not in use back to the machine; returns how many bytes."""
        return self._open().trim()

    def pin(self) -> None:
        """Registers memory of the arena with CUDA, in this process: copies from it to a device are then one DMA.

        That is each block which this process receives a view of, or makes an array in, from now on; it is registered
        once, however often it is used again. `Receiver.get_to` then copies without waiting. Other processes need no
        CUDA for it. Until `unpin`, `close` or the end of this process nobody gives memory of the arena back to the
        machine, and memory that was used for messages of one size is not there for those of another.

        DeviceError where there is no CUDA. What the driver cannot register, it copies as ever.
        """
        _pinned.pin(self._open())
        self._pins = True

    def unpin(self) -> None:
        """Ends `pin`, after the copies that `Receiver.get_to` has begun."""
        self._pins = False
        _pinned.unpin(self._open())

    @property
    def pinned_bytes(self) -> int:
        """Of the memory that is registered."""
        return _pinned.pinned_bytes(self._open())

    @property
    def closed(self) -> bool:
        return self._core is None

    def close(self) -> None:
        """Ends the use of this object, its part in the arena's name, and `pin`. Channels and views of it go on.

        With the last of them the memory and the descriptor go from this process. May be called again.
        """
        if self._pins:
            self.unpin()
        self._name = None
        self._core = None

    def __enter__(self) -> Arena:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_arena, (type(self), *_handles.reduce_memory(self._open(), 0, self._name))

    def __repr__(self) -> str:
        core = self._core
        return f"<Arena of {core.max_bytes} bytes>" if core is not None else "<Arena, closed>"


class SharedArray:
    """One array in several processes: what one writes the others see. Made by `Arena.array`.

    It pickles as a reference, and its memory lives as long as any process has it, or a view of it. A process that is
    sent it through a pipe or queue has to get it before the last one that has it lets go. There is no locking.
    """

    _home: _core.Arena
    _name: _core.Name | None
    _array: np.ndarray[Any, Any]

    def __init__(self) -> None:
        raise TypeError("shared arrays are made by Arena.array()")

    @classmethod
    def _of(cls, core: _core.Arena, array: Any, name: _core.Name | None) -> SharedArray:
        self = cls.__new__(cls)
        self._home = core
        self._name = name
        self._array = array
        return self

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The memory as a writable ndarray, the same one each time."""
        return self._array

    @array.setter
    def array(self, array: np.ndarray[Any, Any]) -> None:
        # ``shared.array += 1`` ends by assigning what is there already.
        if array is not self._array:
            raise AttributeError("the memory of a shared array stays; write into it with array[...] = values")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        wanted = self._array.dtype if dtype is None else np.dtype(dtype)
        if copy is False and wanted != self._array.dtype:
            raise ValueError(f"a shared array of {self._array.dtype} cannot be had as {wanted} without a copy")
        return self._array.astype(wanted, copy=bool(copy))

    @classmethod
    def open(cls, name: str) -> SharedArray:
        """The array of that name; FileNotFoundError when there is none."""
        known = open_known(name, ARRAY)
        note = json.loads(known.note)
        dtype = _dtype_of(note["dtype"])
        return cls._of(known.arena, known.arena.open_array(known.block, tuple(note["shape"]), dtype, "C"), known)

    def __reduce__(self) -> tuple[Any, ...]:
        handle = _handles.reduce_memory(self._home, _core.block_of(self.array), self._name)
        return _open_array, (type(self), *handle, self.array.shape, self.array.dtype)

    def __repr__(self) -> str:
        return f"<SharedArray of {self.array.dtype}, shape {self.array.shape}>"


def _dtype_text(dtype: np.dtype[Any]) -> Any:
    return np.lib.format.dtype_to_descr(dtype)


def _dtype_of(text: Any) -> np.dtype[Any]:
    def rebuilt(part: Any) -> Any:
        if isinstance(part, list):
            return [tuple(tuple(item) if i == 2 else rebuilt(item) for i, item in enumerate(field)) for field in part]
        return part

    dtype: np.dtype[Any] = np.dtype(rebuilt(text))
    return dtype


def _open_arena(cls: type[Arena], handle: bytes, inheritance: Any) -> Arena:
    arena, _, name = _handles.open_memory(handle, inheritance)
    return cls._of(arena, name)


def _open_array(cls: type[SharedArray], handle: bytes, inheritance: Any, shape: Any, dtype: Any) -> SharedArray:
    arena, block, name = _handles.open_memory(handle, inheritance)
    return cls._of(arena, arena.open_array(block, shape, dtype, "C"), name)


def pair_limits(
    capacity: int | None, max_bytes: int | None, max_unsettled: int | None, max_attempts: int | None
) -> Limits:
    return Limits(
        limit("capacity", capacity),
        limit("max_bytes", max_bytes),
        limit("max_unsettled", max_unsettled),
        limit("max_attempts", max_attempts),
    )


def make_pair(
    arena: _core.Arena | None,
    limits: Limits,
    name: str | None,
    allow_pickle: bool | None,
    ending: str,
) -> tuple[Sender, Receiver]:
    """`arena` None: one of its own for a named pair, else the process's."""
    if ending not in ("raise", "wait"):
        raise ValueError(f"on_peer_death is {ending!r}; it must be 'raise' or 'wait'")
    channel, allow = new_channel(arena, limits, name, allow_pickle, ending)
    sender, receiver = Sender(channel, allow), Receiver(channel, allow)
    if name is not None:
        sender._name = receiver._name = _process.create_name(name, CHANNEL, channel.arena, channel.block)
    return sender, receiver


def create_pair(
    capacity: int | None = 8,
    *,
    max_bytes: int | None = None,
    name: str | None = None,
    arena: Arena | None = None,
    allow_pickle: bool | None = None,
    on_peer_death: OnPeerDeath = "raise",
    max_unsettled: int | None = None,
    max_attempts: int | None = None,
) -> tuple[Sender, Receiver]:
    """A new channel: the end to put into, and the end to get from.

    Args:
        capacity: messages put and not yet received before `put` waits; None or 0 is unlimited. One that was taken and
            given back counts again, which may exceed it: `put` waits until there is less.
        max_bytes: bytes queued before `put` waits; a larger message is refused with MessageTooLarge.
        name: makes the channel known to the user's other processes, for `open_sender` and `open_receiver`. It gets an
            arena of its own unless one is given. FileExistsError when the name is in use.
        arena: where messages lie; None is the arena that this process makes for all such channels.
        allow_pickle: whether objects without a native kind may be pickled; None is yes for unnamed and no for named
            channels, where both sides have to say yes.
        on_peer_death: "raise" reports killed senders to receivers, and killed receivers to senders, as PeerDied when
            nobody else is left; "wait" waits for others to come.
        max_unsettled: messages taken and not settled, by all takers together, before `take` waits; None or 0 is
            unlimited.
        max_attempts: how often a message is taken before it is given up, when nobody acknowledges it. It comes to
            nobody then and is among `Receiver.rejected`. None or 0 is no limit.
    """
    if arena is not None and not isinstance(arena, Arena):
        raise TypeError(f"arena is {arena!r}; it must be an Arena, or None")
    limits = pair_limits(capacity, max_bytes, max_unsettled, max_attempts)
    return make_pair(arena._open() if arena is not None else None, limits, name, allow_pickle, on_peer_death)


def create_shared_memory_pair(capacity: int | None = 0) -> tuple[Sender, Receiver]:
    """`create_pair`, for those who come from py-sharedmemory."""
    return create_pair(capacity)


def _open_channel(name: str, allow_pickle: bool | None) -> tuple[_core.Name, _core.Channel, bool]:
    known = open_known(name, CHANNEL)
    return known, _core.Channel.open(known.arena, known.block), bool(allow_pickle)


def open_sender(name: str, *, allow_pickle: bool | None = None) -> Sender:
    """The sending end of a named channel.

    FileNotFoundError when nobody has one of that name, ValueError when it is that of something else. Pickles are sent
    only if both this call and the maker of the channel say allow_pickle=True.
    """
    known, channel, allow = _open_channel(name, allow_pickle)
    sender = Sender(channel, allow)
    sender._name = known
    return sender


def open_receiver(name: str, *, allow_pickle: bool | None = None) -> Receiver:
    """The receiving end of a named channel. Errors as of `open_sender`; pickles are loaded on the same condition."""
    known, channel, allow = _open_channel(name, allow_pickle)
    receiver = Receiver(channel, allow)
    receiver._name = known
    return receiver


class Known(NamedTuple):
    """A name, and who has it."""

    name: str  #: as it was given
    kind: str  #: what it is the name of
    #: Of the processes that have it; 0 for those out of sight (in another PID namespace), none for what a kill left.
    pids: tuple[int, ...]


def list_names() -> list[Known]:
    """The names of this user's arenas, channels and arrays. Those that a kill left over are shown once, and removed."""
    return [Known(name, KINDS.get(kind, "something"), tuple(pids)) for name, _, kind, pids in _core.list_names()]


def clean_names() -> list[str]:
    """Removes the names that nobody alive has; returns them. Never needed: `list_names` or using any name does it."""
    return _core.clean_names()
