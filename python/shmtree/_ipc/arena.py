"""Arenas: shared memory that several channels have in common."""

from __future__ import annotations

import os
import warnings
from typing import Any, NamedTuple

from .. import _core
from .._process import arenas, handles, names
from .._process.names import ARENA, open_known
from ..errors import ChannelClosed
from . import arrays
from .arguments import whole
from .channel import Behind, OnPeerDeath, Receiver, Sender, make_pair, pair_terms
from .queue import JoinableQueue, Queue, SimpleQueue
from .shared_array import SharedArray


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
            groups have left. Memory is taken only as messages need it; RuntimeWarning for more than the machine has.
        name: makes it known to the user's other processes, for `Arena.open`; FileExistsError when the name is in use.
        prefault: bytes to take from the machine at once, so that the first messages find warm memory.
        huge_pages: asks for huge pages, where the machine has them enabled for shared memory.
        exist_ok: with a name that an arena has already, opens that one; ValueError, with both numbers, when it has
            another budget than a `max_bytes` that is given. `prefault` and `huge_pages` are for a new one.

    An arena lives as long as any process has it, a channel in it, or a view of what was in it.
    """

    _pins = False

    def __init__(
        self,
        max_bytes: int | None = None,
        *,
        name: str | None = None,
        prefault: int = 0,
        huge_pages: bool = False,
        exist_ok: bool = False,
    ) -> None:
        if max_bytes is not None and whole("max_bytes", max_bytes) <= 0:
            raise ValueError(f"max_bytes is {max_bytes}; it must be positive, or None")
        if whole("prefault", prefault) < 0:
            raise ValueError(f"prefault is {prefault}; it must not be negative")
        if max_bytes is not None and prefault > max_bytes:
            raise ValueError(f"prefault is {prefault}; it must not be more than max_bytes, {max_bytes}")
        if name is not None:
            names.check_name(name)

        def make() -> tuple[_core.Arena, _core.Name | None]:
            made = _core.Arena.create(max_bytes or 0, prefault, huge_pages)
            return made, names.create_name(name, ARENA, made) if name is not None else None

        def known(name: str) -> tuple[_core.Arena, _core.Name | None]:
            found = open_known(name, ARENA)
            is_asked = max_bytes is None or found.arena.max_bytes == max_bytes
            if not is_asked:
                text = f"an arena with other options: max_bytes {found.arena.max_bytes}, not {max_bytes}"
                raise ValueError(f'the name "{name}": it belongs to {text}')
            return found.arena, found

        self._core: _core.Arena | None
        self._core, self._name = names.open_or_make(name, exist_ok, known, make)
        if max_bytes is not None and max_bytes > (memory := os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")):
            text = f"the budget of {max_bytes} bytes is over the machine's memory, {memory} bytes: before it is used up"
            warnings.warn(f"{text}, the kernel may kill processes", RuntimeWarning, stacklevel=2)

    @classmethod
    def _of(cls, core: _core.Arena | None, name: _core.Name | None) -> Arena:
        self = cls.__new__(cls)
        self._core = core
        self._name = name
        return self

    @classmethod
    def open(cls, name: str, timeout: float | None = 0.0) -> Arena:
        """The arena that another process of this user made with this name, or made a named channel or array in.

        A named channel, queue or array that was made without an arena has one of its own: by its name that can be
        looked at (`stats`, `holders`), trimmed, and used for more channels and arrays. FileNotFoundError when there is
        none; TimeoutError when there is still none after `timeout` seconds, if that is more than 0 (None waits
        indefinitely).
        """
        known = names.open_name(name, timeout)
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
        behind: Behind = "block",
        keep_open: bool = False,
        portable: bool = False,
        exist_ok: bool = False,
    ) -> tuple[Sender, Receiver]:
        """A channel in this arena; see `shmtree.create_pair`."""
        terms = pair_terms(capacity, max_bytes, max_unsettled, max_attempts, on_peer_death, behind, keep_open, portable)
        return make_pair(self._open(), terms, name, allow_pickle, exist_ok)

    def Queue(
        self,
        maxsize: int = 0,
        *,
        max_bytes: int | None = None,
        name: str | None = None,
        allow_pickle: bool | None = None,
        portable: bool = False,
        exist_ok: bool = False,
    ) -> Queue[Any]:
        """A queue in this arena; see `shmtree.Queue`."""
        how: dict[str, Any] = {"allow_pickle": allow_pickle, "portable": portable, "exist_ok": exist_ok}
        return Queue(maxsize, max_bytes=max_bytes, name=name, arena=self, **how)

    def JoinableQueue(
        self,
        maxsize: int = 0,
        *,
        max_bytes: int | None = None,
        name: str | None = None,
        allow_pickle: bool | None = None,
        portable: bool = False,
        exist_ok: bool = False,
    ) -> JoinableQueue[Any]:
        """A joinable queue in this arena; see `shmtree.JoinableQueue`."""
        how: dict[str, Any] = {"allow_pickle": allow_pickle, "portable": portable, "exist_ok": exist_ok}
        return JoinableQueue(maxsize, max_bytes=max_bytes, name=name, arena=self, **how)

    def SimpleQueue(
        self,
        *,
        max_bytes: int | None = None,
        name: str | None = None,
        allow_pickle: bool | None = None,
        exist_ok: bool = False,
    ) -> SimpleQueue[Any]:
        """A simple queue in this arena; see `shmtree.SimpleQueue`."""
        return SimpleQueue(max_bytes=max_bytes, name=name, arena=self, allow_pickle=allow_pickle, exist_ok=exist_ok)

    def new_empty(self, shape: Any, dtype: Any = float, order: str = "C") -> Any:
        """An uninitialised ndarray in this arena; see Sender.new_empty. Any channel of the arena sends it uncopied."""
        return arrays.new_array(self._open(), shape, dtype, order, False)

    def new_zeros(self, shape: Any, dtype: Any = float, order: str = "C") -> Any:
        """`new_empty` filled with zeros."""
        return arrays.new_array(self._open(), shape, dtype, order, True)

    def new_empty_like(self, prototype: Any, dtype: Any = None, order: str = "K") -> Any:
        """`new_empty` with the shape, dtype and order of another array or tensor."""
        return arrays.new_like(self._open(), prototype, dtype, order)

    def array(self, shape: Any, dtype: Any = float, name: str | None = None, *, exist_ok: bool = False) -> SharedArray:
        """An array of zeros that every process given it reads and writes at the same time; see `SharedArray`.

        `dtype` may be one of torch: `SharedArray.tensor` is then what it is, as with `new_empty`.
        With a name, `SharedArray.open` finds it from any process of this user; FileExistsError when that is in use.
        With `exist_ok` too, an array of this arena that has the name already is opened, with what is in it; ValueError,
        with the values of both, when it has another shape or dtype.
        """
        return SharedArray._make(self._open(), shape, dtype, name, exist_ok)

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
        from ..cuda import _pinned

        _pinned.pin(self._open())
        self._pins = True

    def unpin(self) -> None:
        """Ends `pin`, after the copies that `Receiver.get_to` has begun."""
        from ..cuda import _pinned

        self._pins = False
        _pinned.unpin(self._open())

    @property
    def pinned_bytes(self) -> int:
        """Of the memory that is registered."""
        from ..cuda import _pinned

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
        _core.sweep_transfers()

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_arena, (type(self), *handles.reduce_memory(self._open(), 0, self._name))

    def __repr__(self) -> str:
        core = self._core
        return f"<Arena of {core.max_bytes} bytes>" if core is not None else "<Arena, closed>"


def default_arena() -> Arena:
    """The arena of channels and queues that this process makes without one, to look at it or to trim it.

    One per process: a forked child makes its own.
    """
    return Arena._of(arenas.default_arena(), None)


def home_for(arena: Arena | None, name: str | None) -> _core.Arena:
    """Where something new lives: in the arena it was given; else in one of its own if it has a name, and with the
    process's channels if it has none.
    """
    if arena is not None:
        return arena._open()
    return arenas.default_arena() if name is None else _core.Arena.create(0, 0, False)


def _open_arena(cls: type[Arena], handle: bytes, inheritance: Any) -> Arena:
    return handles.open_memory(handle, inheritance, lambda arena, _, name: cls._of(arena, name))
