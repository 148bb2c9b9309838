"""Arenas: regions of shared memory that several channels and arrays use together."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from .. import _core
from .._process import arenas, handles, names
from .._process.names import ARENA, open_name
from .._public import made_by
from ..errors import ChannelClosed
from . import arrays
from .arguments import natural, whole
from .channel import PairOptions, Receiver, Sender
from .item_type import T
from .pairs import create_pair
from .queue import JoinableQueue, Queue, QueueOptions, SimpleQueue
from .shared_array import SharedArray
from .stats import ArenaStats

if TYPE_CHECKING:
    from typing_extensions import Unpack


@made_by("Arena.holders()")
class HolderInfo(NamedTuple):
    """One block of an arena and one process that keeps it allocated."""

    block: int  #: block number, unique while the block is pinned
    nbytes: int  #: size in bytes
    pid: int  #: process that has pinned the block
    age: float  #: seconds since that process last pinned it


class Arena:
    """A region of shared memory for several channels, so that data passes from one to the next without a copy.

    An arena lives as long as any process has it, a channel in it, or a view of what was in it. Pickling an arena passes
    a reference to it.

    Args:
        max_bytes: Budget in bytes for everything in the arena, 1 MiB to 2 TiB. None takes half of the memory that the
            machine and its control groups have left. The arena takes memory from the machine only when messages need
            it.
        name: Name under which the user's other processes find the arena with `Arena.open`.
        prefault: Bytes to take from the machine at once, so that the first messages find warm memory.
        huge_pages: Asks for huge pages, if the machine has them enabled for shared memory.
        exist_ok: If an arena has this name already, opens that arena instead. `prefault` and `huge_pages` apply to a
            new arena only.
        spin: Seconds for which each wait of this process, at an end that it makes in the arena from now on, polls
            before it sleeps. None takes the environment variable SHMTREE_SPIN, or 0. Each end has a property `spin`.

    Raises:
        FileExistsError: The name is in use and `exist_ok` is False.
        ValueError: The arena of that name has another budget than the given `max_bytes` (the error has both numbers),
            or an argument is out of range. Also if SHMTREE_SPIN is not a number of seconds.

    Warns:
        RuntimeWarning: `max_bytes` is more than the memory of the machine.

    Example::

        arena = shmtree.Arena(max_bytes=1 << 30)
        sender, receiver = arena.create_pair(capacity=4)
        image = arena.new_empty((480, 640, 3), np.uint8)  # sent without a copy
        sender.put({"image": image})
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
        spin: float | None = None,
    ) -> None:
        if max_bytes is not None and whole("max_bytes", max_bytes) <= 0:
            raise ValueError(f"max_bytes is {max_bytes}; it must be positive, or None")
        natural("prefault", prefault)
        if max_bytes is not None and prefault > max_bytes:
            raise ValueError(f"prefault is {prefault}; it must not be more than max_bytes, {max_bytes}")
        if name is not None:
            names.check_name(name)

        def make() -> tuple[_core.Arena, _core.Name | None]:
            made = _core.Arena.create(max_bytes or 0, prefault, huge_pages)
            return made, names.create_name(name, ARENA, made) if name is not None else None

        def known(name: str) -> tuple[_core.Arena, _core.Name | None]:
            found = open_name(name, ARENA)
            is_asked = max_bytes is None or found.arena.max_bytes == max_bytes
            if not is_asked:
                text = f"an arena with other options: max_bytes {found.arena.max_bytes}, not {max_bytes}"
                raise ValueError(f'the name "{name}": it belongs to {text}')
            return found.arena, found

        self._core: _core.Arena | None
        self._core, self._name = names.open_or_make(name, exist_ok, known, make)
        if spin is not None:
            self.spin = spin
        if max_bytes is not None and max_bytes > (memory := os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")):
            text = f"max_bytes is {max_bytes}, but this machine has only {memory} bytes of memory"
            remedy = "the kernel may kill processes before the arena is full; pass a smaller max_bytes"
            warnings.warn(f"{text}: {remedy}", RuntimeWarning, stacklevel=2)

    @classmethod
    def _of(cls, core: _core.Arena | None, name: _core.Name | None) -> Arena:
        self = cls.__new__(cls)
        self._core = core
        self._name = name
        return self

    @classmethod
    def _opened(cls, core: _core.Arena, block: int, name: _core.Name | None) -> Arena:
        if block != 0:
            raise ValueError("the handle belongs to an object in an arena, not to the arena")
        return cls._of(core, name)

    @classmethod
    def open(cls, name: str, timeout: float | None = 0.0) -> Arena:
        """Opens the arena of this name, or the arena that a named channel, queue or array of this user is in.

        A named channel, queue or array that was made without an arena has an arena of its own. Open that arena by the
        same name to inspect it (`stats`, `holders`), to trim it, or to put more channels and arrays into it.

        Args:
            name: Name of an arena, channel, queue or array.
            timeout: Seconds to wait for the name; 0 does not wait, None waits indefinitely.

        Raises:
            FileNotFoundError: There is no such name and `timeout` is 0.
            TimeoutError: There is still no such name after `timeout` seconds.
        """
        known = open_name(name, timeout=timeout)
        return cls._of(known.arena, known)

    def _open(self) -> _core.Arena:
        core = self._core
        if core is None:
            raise ChannelClosed("this arena was closed in this process")
        return core

    def create_pair(self, capacity: int | None = 8, **options: Unpack[PairOptions]) -> tuple[Sender[T], Receiver[T]]:
        """Makes a channel in this arena; see `shmtree.create_pair`, which has the same options."""
        return create_pair(capacity, arena=self, **options)

    def Queue(self, maxsize: int = 0, **options: Unpack[QueueOptions]) -> Queue[Any]:
        """Makes a queue in this arena; see `shmtree.Queue`, which has the same options."""
        return Queue(maxsize, arena=self, **options)

    def JoinableQueue(self, maxsize: int = 0, **options: Unpack[QueueOptions]) -> JoinableQueue[Any]:
        """Makes a joinable queue in this arena; see `shmtree.JoinableQueue`, which has the same options."""
        return JoinableQueue(maxsize, arena=self, **options)

    def SimpleQueue(self, **options: Unpack[QueueOptions]) -> SimpleQueue[Any]:
        """Makes a simple queue in this arena; see `shmtree.SimpleQueue`, which has the same options."""
        return SimpleQueue(arena=self, **options)

    def new_empty(self, shape: Any, dtype: Any = float, order: str = "C") -> Any:
        """Returns an uninitialised array in this arena, which any channel of the arena sends without a copy.

        After the put the array is read-only here. Views that were made of it before (rows, slices) stay writable; do
        not use them any more.

        Args:
            shape: Dimensions: an int or a sequence of ints.
            dtype: Type of the elements; with a dtype of torch the result is a tensor.
            order: Memory order, "C" or "F".

        Returns:
            A writable ndarray, or a tensor.

        Raises:
            TypeError: Elements of `dtype` contain Python objects.
            MessageTooLarge: The array exceeds the arena's budget.
            OutOfSharedMemory: Messages and pinned views leave no memory for the array.

        Example::

            image = arena.new_empty((480, 640, 3), np.uint8)
            camera.read(image)            # writes into shared memory
            sender.put({"image": image})  # a sender of a channel in this arena copies nothing
        """
        return arrays.new_array(self._open(), shape, dtype, order, False)

    def new_zeros(self, shape: Any, dtype: Any = float, order: str = "C") -> Any:
        """Returns an array like `new_empty`, filled with zeros."""
        return arrays.new_array(self._open(), shape, dtype, order, True)

    def new_empty_like(self, prototype: Any, dtype: Any = None, order: str = "K") -> Any:
        """Returns an array like `new_empty`, with the shape, dtype and order of another array or tensor."""
        return arrays.new_like(self._open(), prototype, dtype, order)

    def array(self, shape: Any, dtype: Any = float, name: str | None = None, *, exist_ok: bool = False) -> SharedArray:
        """Makes an array of zeros that several processes read and write at the same time; see `SharedArray`.

        Args:
            shape: Shape of the array. It must have at least one item.
            dtype: A dtype of NumPy or of torch. For a dtype of torch, `SharedArray.tensor` is the value, as with
                `new_empty`.
            name: Name under which any process of this user finds the array with `SharedArray.open`.
            exist_ok: If an array of this arena has this name already, opens that array with its contents.

        Raises:
            FileExistsError: The name is in use and `exist_ok` is False.
            ValueError: The array of that name has another shape or dtype (the error has both), or the shape has no
                items.
        """
        return SharedArray._make(self._open(), shape, dtype, name, exist_ok)

    @property
    def max_bytes(self) -> int:
        """Budget of the arena in bytes."""
        return self._open().max_bytes

    @property
    def spin(self) -> float:
        """Seconds for which each wait polls before it sleeps, at ends that this process makes in the arena from now on.

        SHMTREE_SPIN sets the first value. Each end has a property `spin` of its own.
        """
        return self._open().spin

    @spin.setter
    def spin(self, seconds: float) -> None:
        self._open().spin = seconds

    def stats(self) -> ArenaStats:
        """Returns counts and byte totals of the arena.

        Returns:
            A dict. `max_bytes` is the budget. `committed_bytes` were taken from the machine; of these, `used_bytes` are
            in use, and of these, `held_bytes` are pinned by processes or reserved by channels. `blocks` is the number
            of blocks in use, `participants` the number of attached processes, and `reconciles` the number of recoveries
            after deaths.
        """
        return cast("ArenaStats", self._open().stats())

    def holders(self) -> list[HolderInfo]:
        """Returns one entry per pinned block and process, for all blocks that views or arrays keep allocated."""
        return [HolderInfo._make(each) for each in self._open().holders()]

    def trim(self) -> int:
        """Returns unused memory to the machine, and returns the number of bytes."""
        return self._open().trim()

    def pin(self) -> None:
        """Registers memory of the arena with CUDA in this process, so that each copy from it to a device is one DMA.

        From now on, each block that this process receives a view of, or makes an array in, is registered. That happens
        once per block, however often the block is used again. `Receiver.get_to` then copies without waiting. Other
        processes do not need CUDA. The driver copies memory that it cannot register in the ordinary way.
        The `is_pinned` of torch's tensors returns False for all memory until this process has initialised `torch.cuda`.

        Until `unpin`, `close` or the exit of this process, no process returns memory of the arena to the machine.
        Memory that was used for messages of one size then cannot be reused for messages of another size.

        Raises:
            DeviceError: CUDA is not available.
        """
        from ..cuda import _pinned

        _pinned.pin(self._open())
        self._pins = True

    def unpin(self) -> None:
        """Undoes `pin`, after the copies that `Receiver.get_to` has started are done."""
        from ..cuda import _pinned

        self._pins = False
        _pinned.unpin(self._open())

    @property
    def pinned_bytes(self) -> int:
        """Number of bytes that `pin` has registered with CUDA."""
        from ..cuda import _pinned

        return _pinned.pinned_bytes(self._open())

    @property
    def closed(self) -> bool:
        """True if `close` was called on this object."""
        return self._core is None

    def close(self) -> None:
        """Closes this object, releases its share of the arena's name, and undoes `pin`. Idempotent.

        Channels in the arena and views of its data stay usable. When the last of them is gone, this process unmaps the
        memory and closes the descriptor.
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
    """Returns the arena in which this process makes channels and queues if none is given, to inspect or trim it.

    Each process has its own default arena. A forked child makes a new one.
    """
    return Arena._of(arenas.default_arena(), None)


def _open_arena(cls: type[Arena], handle: bytes, inheritance: Any) -> Arena:
    return handles.open_memory(handle, inheritance, cls._opened)
