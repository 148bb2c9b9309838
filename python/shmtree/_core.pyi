from collections.abc import Callable, Iterable, Sequence
from types import GenericAlias, TracebackType
from typing import Any, Generic, Literal, SupportsIndex, final

from typing_extensions import Buffer, Self, TypeVar, disjoint_base

_T = TypeVar("_T", default=Any)
_S = TypeVar("_S")

VERSION: str
DTYPES: tuple[str, ...]

@final
class Frame(Buffer):
    """An encoded value: read-only bytes with the buffer protocol.

    `pack` makes one, `Receiver.take_frames` takes them from a channel, and a pickle can contain one. ``put(frame)``
    and ``put_frame(frame)`` send the value without encoding it again; the receiver gets the value.
    ``unpack(frame)`` returns the value here. ``len(frame)`` and ``frame.nbytes`` are its size in bytes;
    ``bytes(frame)`` copies it. A frame that was taken has the methods of a `Delivery`, and its message returns to
    the channel unless you ack it.

    Example::

        frame = shmtree.pack({"obs": np.zeros((64, 8))})
        for sender in senders:
            sender.put(frame)
    """
    @property
    def nbytes(self) -> int:
        """Size of the frame in bytes."""
    @property
    def portable(self) -> bool:
        """True if the frame is valid on every machine: it has no ends, shared arrays or device memory, and no pickle
        that was not made to be portable.
        """
    @property
    def ticket(self) -> int | None:
        """Ticket of the message, as `put` returned it. None if the frame was not taken."""
    @property
    def attempts(self) -> int | None:
        """Number of deliveries of the message, including this one. None if the frame was not taken."""
    @property
    def redelivered(self) -> bool | None:
        """True if another receiver took the message before and did not ack it. None if the frame was not taken."""
    @property
    def settled(self) -> bool | None:
        """True if the message was acked or returned. None if the frame was not taken."""
    def __len__(self) -> int: ...
    def ack(self) -> None:
        """Counts the message as received. The bytes of the frame stay.

        Raises:
            ValueError: The message was acked or returned before, or the frame was not taken from a channel.
        """
    def nack(self) -> None:
        """Returns the message to the channel, like `Delivery.nack`.

        Raises:
            ValueError: The message was acked or returned before, or the frame was not taken from a channel.
        """
    def requeue(self) -> None:
        """Returns the message to the channel as if it had never been taken, like `Delivery.requeue`.

        Raises:
            ValueError: The message was acked or returned before, or the frame was not taken from a channel.
        """
    def __enter__(self) -> Frame:
        """Returns the frame itself."""
    def __exit__(self, exc_type: object, exc_value: object, traceback: object, /) -> None:
        """Acks a message that was taken, or nacks it after an exception. Does nothing if the block has done either."""
    def __reduce_ex__(self, protocol: SupportsIndex, /) -> tuple[Any, ...]:
        """Pickles the frame. From protocol 5 on its bytes are one out-of-band buffer.

        The loaded Frame views the buffer that the unpickler gets. It is not a message and cannot be acked.
        """

@final
class ViewOwner(Buffer):
    """Owns the memory that arrays are views of. Dropping the last view releases the memory.

    It is the `base` of such arrays; programs do not create one.
    """
    @property
    def nbytes(self) -> int:
        """Size of the memory in bytes."""
    @property
    def given(self) -> bool:
        """Whether put() gave the memory away."""

def pack(obj: object, allow_pickle: bool = True, *, portable: bool = False) -> Frame:
    """Encodes a nested object as a Frame, a read-only buffer.

    If a part has no native kind, the whole object is pickled (protocol 5, with its buffers out of band), so that
    identities are kept as with pickle.

    Args:
        obj: Object to encode.
        allow_pickle: False raises PickleRefused instead of pickling.
        portable: If True, the frame is valid on every machine.

    Returns:
        A Frame.

    Raises:
        PickleRefused: A part of the object needs pickle, and `allow_pickle` is False.
        NotPortable: `portable` is True, and a part of the object is valid on this machine only: ends, shared
            arrays, arenas, device memory, or what pickle sends by descriptor. The text has the path.
        ValueError: The object is nested deeper than 1,000 levels.

    Example::

        frame = shmtree.pack({"obs": np.zeros((64, 8)), "step": 3})
        value = shmtree.unpack(frame)
    """

def _pack_aside(obj: object, /) -> Frame:
    """Works like pack(), but the frame may contain ends. Records no transfer of them; for inspection only."""

def _first_refused(obj: object, known: list[Any], /) -> tuple[str, Any, str] | None:
    """Returns (path, part, outer path) for the first part that has no native kind and is not in `known`.

    The outer path differs if the part contains itself: it is where the part first occurs.
    """

def _load_frame(buffer: Buffer, portable: bool, trusted: bool, /) -> Frame:
    """Returns the Frame on a buffer, for pickle."""

def unpack(buffer: Buffer, *, copy: bool | None = None, allow_pickle: bool = False) -> Any:
    """Decodes the object in a frame.

    A Frame of this process is trusted. In any other buffer, pickles need `allow_pickle`, and so do classes of
    modules that are not imported yet.

    Args:
        buffer: A Frame, or any contiguous buffer with the bytes of one.
        copy: None (default) views arrays of 4 KiB and more in frames over 16 KiB and copies the rest. True copies
            all arrays, False views all. Views keep the buffer alive. They are writable if the buffer is and the
            array was.
        allow_pickle: True loads pickles, and imports modules, for bytes from elsewhere. Such bytes can then run any
            code.

    Returns:
        The object.

    Raises:
        PickleRefused: The frame needs pickle or an import, and `allow_pickle` is False.
        CorruptMessage: The buffer has no valid frame.
    """

def _describe(buffer: Buffer, /) -> str:
    """Returns the tree of a frame as text. Raises CorruptMessage if the bytes are not a frame."""

def _register(
    cls: type[_T], flatten: Callable[[_T], object], unflatten: Callable[..., Any], in_channels: bool = False, /
) -> None:
    """Registers a class; see shmtree.register. If the fourth argument is true, only messages of channels may have
    instances, and `unflatten` gets a second argument: True if it may import modules.
    """

def _register_end(
    cls: type[_T], name: str, flatten: Callable[[_T], object], unflatten: Callable[[Any, bool], _T], /
) -> None:
    """Registers, under a given name, a class whose instances only messages of channels may have. The second function
    also gets whether the channel allows pickles.
    """

def _add_kind(
    name: str,
    cls: type[_T],
    parts: Callable[[_T], tuple[Any, ...] | None],
    build: Callable[..., _T],
    copied_bytes: Callable[..., int] = ...,
    /,
) -> None:
    """parts(object) returns the tuple that its rule in docs/internals/frame.md needs, and build(*parts, trusted)
    returns the object. If `build` copies memory of the message when it does not trust the sender, copied_bytes(*parts)
    returns how many bytes.
    """

def _imported_module(name: str, /) -> Any:
    """Returns the module of that name, or None if it is not imported. Waits while another thread imports it."""

def _unflatten(name: str, flat: object, /) -> Any:
    """Rebuilds an instance of a registered class by name."""

class Arena:
    """One arena, as this process has it."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    @staticmethod
    def create(max_bytes: int, prefault: int, huge_pages: bool) -> Arena: ...
    @property
    def uuid(self) -> bytes: ...
    @property
    def fd(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...
    @property
    def held_bytes(self) -> int: ...
    def stats(self) -> dict[str, int]: ...
    def holders(self) -> list[tuple[int, int, int, float]]: ...
    def trim(self) -> int: ...
    @property
    def identity(self) -> int: ...
    def is_alive(self, identity: int) -> bool: ...
    def is_shared(self, block: int) -> bool: ...
    @property
    def spin(self) -> float: ...
    @spin.setter
    def spin(self, seconds: float, /) -> None: ...
    def detach(self) -> None: ...
    def set_pinned(self, pinned: bool) -> None: ...
    @property
    def is_pinned_here(self) -> bool: ...
    def new_array(self, shape: object, dtype: object, order: str, zeroed: bool, gift: bool = False) -> Any: ...
    def new_shared_array(self, shape: object, dtype: object) -> Any: ...
    def open_array(self, block: int, shape: object, dtype: object, order: str) -> Any: ...
    def reserve_slot(self) -> tuple[int, int]: ...
    def abandon_slot(self, identity: int, lock: int) -> None: ...
    def note_started(self, identity: int, pid: int) -> None: ...
    def hold_for(self, identity: int, block: int) -> None: ...

class ReplyLine:
    """The requests of a Client that wait at one reply channel. Lists of lost requests are [(number, error)]."""
    def __init__(self, requests: Channel, replies: Channel, waits: bool) -> None: ...
    def add(self, serve_by: float) -> int | None: ...
    def remove(self, number: int) -> bool: ...
    def end(self) -> list[int]: ...
    @property
    def ended(self) -> bool: ...
    @property
    def deaths(self) -> int: ...
    def count_death(self) -> None: ...
    def note_sent(self, number: int, ticket: int, deaths: int) -> list[tuple[int, Exception]]: ...
    def lose_begun(self, death: Exception | None) -> list[tuple[int, Exception]]: ...
    def lose_all(self, death: Exception | None) -> list[tuple[int, Exception]]: ...
    def check(self) -> tuple[bool, list[tuple[int, Exception]], Exception | None]: ...

class ServiceClient:
    """A client, as a server has it: `sender` puts into its reply channel."""
    def __init__(self, sender: SenderBase[Any]) -> None: ...
    @property
    def sender(self) -> SenderBase[Any]: ...
    @property
    def is_there(self) -> bool: ...
    def send(self, message: object, timeout: float | None, move: bool = False) -> bool: ...

class ServiceClients:
    """The clients of a server. `find` returns a request's client and number, also if it cannot be loaded."""
    def __init__(self) -> None: ...
    def find(
        self, delivery: Delivery, open: Callable[[bytes], SenderBase[Any] | None]
    ) -> tuple[ServiceClient, int, float | None] | None: ...
    def clear(self) -> None: ...

class Channel:
    """One channel, as this process has it."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    @staticmethod
    def open(arena: Arena, block: int) -> Channel: ...
    @property
    def arena(self) -> Arena: ...
    @property
    def block(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def allows_pickle(self) -> bool: ...
    def count_puts(self) -> None: ...
    @property
    def counted(self) -> int: ...
    def leave_to_successor(self) -> None: ...
    def become_successor(self) -> None: ...
    def unacked(self) -> list[int]: ...
    @property
    def is_awaited(self) -> bool: ...
    def note_asked(self) -> None: ...
    @property
    def asked_ns(self) -> int: ...
    def note_named(self) -> None: ...
    def require_portable(self) -> None: ...
    def note_killed_receiver(self, pid: int) -> None: ...
    @property
    def dropped(self) -> int: ...
    @property
    def is_queue(self) -> bool: ...
    @property
    def takes_requests(self) -> bool: ...
    @property
    def waits_for_receivers(self) -> bool: ...
    def stats(self) -> dict[str, Any]: ...
    def begin_transfer(self, receiving: bool, name: Name | None = None) -> int: ...
    def check_transfer(self, number: int, receiving: bool, giver_pid: int) -> None: ...
    def end_transfer(self, number: int, receiving: bool, name: Name | None = None) -> None: ...
    def give_to(self, identity: int, receiving: bool) -> None: ...

def has_inherited() -> bool:
    """True if this process inherited ends through fork."""

def keep_given(
    process: object,
    library_folders: list[str],
    own_packages: list[str],
    global_ops: dict[int, int],
    import_name: int,
    extended_arg: int,
    uncertain: list[Any],
) -> bool:
    """Makes those inherited ends passive that a search from the process object does not reach.

    Returns False, and changes nothing, if the search is inconclusive.
    """

def keep_only(ends: list[Any]) -> None:
    """Makes every inherited end passive except these."""

@final
class Tap:
    """Records the messages of a channel without receiving them."""
    def __init__(self, channel: Channel, times_only: bool = False) -> None: ...
    def take_times(self, most: int, also_queued: bool) -> list[tuple[int, int, int, int, int, int, int]]: ...
    def take(self, most: int) -> list[tuple[int, int, memoryview]]: ...
    def release(self) -> None: ...
    @property
    def missed(self) -> int: ...
    @property
    def is_over(self) -> bool: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...

class _End:
    @property
    def closed(self) -> bool:
        """True if `close` was called on this object."""
    @property
    def allow_pickle(self) -> bool:
        """True if this object may send and load pickles."""
    @property
    def spin(self) -> float:
        """Seconds for which each wait of this object polls before it sleeps.

        With 0.0, only puts and gets of channels spin, adaptively. The setting belongs to this object in this process.
        Its arena, or the environment variable SHMTREE_SPIN, sets the first value. See "Spinning" in the documentation
        before you set it, because a spin occupies a core.
        """
    @spin.setter
    def spin(self, seconds: float, /) -> None: ...
    @property
    def _pickled(self) -> int:
        """Number of objects given to put() or publish() of this object that needed a pickle."""
    @property
    def _arena(self) -> Arena:
        """The arena of this end."""
    def __class_getitem__(cls, item: Any, /) -> GenericAlias:
        """Returns the generic type for type checkers."""

class _Publishing(_End):
    def fail(self) -> None:
        """Closes this object as `close` does, and reports a failure of this process.

        When no other sender or publisher is left, readers get what is unread (of a Latest, the newest version), and
        then WorkerFailed instead of the end of the stream. Does nothing if this object is closed.
        """
    def _fail(self, exit_code: int, /) -> None:
        """Does what fail() does. An exit code other than 0 is reported."""
    def new_empty(self, shape: Any, dtype: Any = "float64", order: str = "C") -> Any:
        """Returns an uninitialised array in this end's arena. Sending the array gives it away instead of copying it.

        After that, the array is read-only here. Views that were made of it before (rows, slices) stay writable, and
        what they write appears in the receiver's array; do not use them any more. The call blocks while unread messages
        occupy the memory.

        Args:
            shape: Dimensions: an int or a sequence of ints.
            dtype: Type of the elements; with a dtype of torch the result is a tensor.
            order: Memory order, "C" or "F".

        Returns:
            A writable ndarray, or a tensor.

        Raises:
            TypeError: Elements of `dtype` contain Python objects.
            MessageTooLarge: The array exceeds the arena's budget.
            OutOfSharedMemory: Pinned views leave no memory for the array.
            ChannelClosed: This end is closed, or another thread closes it meanwhile.
        """
    def new_zeros(self, shape: Any, dtype: Any = "float64", order: str = "C") -> Any:
        """Returns an array like `new_empty`, filled with zeros.

        Args:
            shape: Dimensions: an int or a sequence of ints.
            dtype: Type of the elements; with a dtype of torch the result is a tensor.
            order: Memory order, "C" or "F".

        Returns:
            A writable ndarray, or a tensor.
        """

class _ChannelEnd(_End):
    def close(self) -> None:
        """Detaches this object from the channel. Later calls do nothing.

        The object releases the channel when no other thread is in a call of it. With the process's last object of the
        channel its name, memory and descriptors are released. Messages that were put stay in the channel, and views
        stay valid. `close` does not wait for a put in another thread: that message is delivered before the end of the
        stream, or the put fails.
        """
    @property
    def _channel(self) -> Channel:
        """The channel of this end."""
    _name: Name | None
    """The Name that this end keeps, or None."""
    def _attach_inherited(self) -> None:
        """Attaches the passive ends of this object."""
    def _expect_no_end(self) -> None:
        """Suppresses UnusedEndWarning for this object."""

@final
class WakeHub:
    """One descriptor for all ends that tasks of this process wait for."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    @staticmethod
    def of_this_process() -> WakeHub: ...
    def fileno(self) -> int: ...
    def take(self) -> list[bytes] | None:
        """Returns the names of the ends that were reported; None if any end may have been."""

class _Sending(_ChannelEnd, Generic[_T]):
    def _fileno_to_put(self) -> int:
        """Returns a descriptor that is readable while _ready_to_put() is true."""
    def _ready_to_put(self) -> bool:
        """Returns True if put() of a small message would return or raise at once."""
    def _note_wait_to_put(self, seconds: float) -> None:
        """Counts seconds that the caller has spent waiting for this end outside of its methods."""
    def _name_to_put(self) -> bytes:
        """Returns the bytes by which a WakeHub reports this end."""
    def _await_to_put(self, hub: WakeHub) -> bool:
        """Asks a WakeHub to report once when put() would return or raise. Returns True if it already would."""
    def put_many(self, iterable: Iterable[_T], timeout: float | None = None) -> int:
        """Sends the items of an iterable in order.

        Args:
            iterable: Objects to send.
            timeout: Seconds to wait for space, for all items together; None waits indefinitely.

        Returns:
            The number of items that were sent.

        Raises:
            queue.Full: Not all items were sent within `timeout` seconds. This and every other error (those of `put`,
                and those of the iterable) has the number of items that were sent as its attribute `sent`.
        """

class _Receiving(_ChannelEnd, Generic[_T]):
    def __iter__(self) -> Self: ...
    def qsize(self) -> int:
        """Returns the number of messages that can be received now. The number is exact.

        A closed queue of which this process has no other object returns the number at the time of `close`.

        Raises:
            ChannelClosed: This end is closed, and not a queue.
        """
    def empty(self) -> bool:
        """Returns True if no message can be received now. The result is exact.

        Raises:
            ChannelClosed: This end is closed.
        """
    def full(self) -> bool:
        """Returns True if a put would have to wait now; of a queue, if it has `maxsize` objects. The result is exact.

        A closed queue returns what it was at the time of `close`, as with `qsize`.

        Raises:
            ChannelClosed: This end is closed, and not a queue.
        """
    def fileno(self) -> int:
        """Returns a file descriptor for poll loops, readable while there is a message or the stream has ended.

        The descriptor belongs to this object, and `close` closes it. The death of the last sender makes it readable if
        that process had the end when this was called, or when something was last received. See docs/limits.md for the
        processes that can make it readable.

        Raises:
            ChannelClosed: This end is closed.
            shmtree.Error: This process already watches 4,096 ends of channels of the arena.
        """
    def _ready(self) -> bool:
        """Returns True if get() would return or raise at once."""
    def _open_to_wait(self) -> tuple[int, bool]:
        """Returns a descriptor that is readable while _ready() is true, and whether this call has opened it. The caller
        also polls _ready().
        """
    def _close_after_wait(self) -> None:
        """Closes the descriptor of _open_to_wait()."""
    def _note_wait_to_get(self, seconds: float) -> None:
        """Counts seconds that the caller has spent waiting for this end outside of its methods."""
    def _name_to_get(self) -> bytes:
        """Returns the bytes by which a WakeHub reports this end."""
    def _await_to_get(self, hub: WakeHub) -> bool:
        """Asks a WakeHub to report once when get() would return or raise. Returns True if it already would."""
    def get_nowait(self, *, copy: bool | None = None) -> _T:
        """Receives the next object like `get` if there is one.

        Args:
            copy: As in `get`.

        Returns:
            The object that was sent.

        Raises:
            queue.Empty: There is no message. The other errors are those of `get`.
        """
    def get_many(
        self, n: int, timeout: float | None = None, *, copy: bool | None = None, within: float | None = 0.0
    ) -> list[_T]:
        """Receives up to `n` objects: waits for the first as `get` does, and takes the others that are there.

        Args:
            n: Maximum number of objects, at least 1.
            timeout: Seconds to wait for the first one; None waits indefinitely.
            copy: As in `get`.
            within: Seconds to wait for more after the first one; None waits until there are `n`.

        Returns:
            A list of 1 to `n` objects.

        Raises:
            queue.Empty: There is no message after `timeout` seconds. The other errors are those of `get`. An error
                after the first object is kept, and the next call raises it. So is an exception of a signal handler.
        """
    def take_frames(self, n: int, timeout: float | None = None) -> list[Frame]:
        """Receives up to `n` messages as frames, without building their objects.

        It waits for the first as `take` does, and takes the others that are there. A message returns to the channel
        unless its frame is acked: at `Frame.nack`, when the frame and all views of it are gone, or when this process
        dies. Arrays in other memory are copied into the frame. A large frame without such arrays is in the memory of
        the message.

        Args:
            n: Maximum number of messages, at least 1.
            timeout: Seconds to wait for the first one; None waits indefinitely.

        Returns:
            A list of 1 to `n` Frames.

        Raises:
            queue.Empty: There is no message after `timeout` seconds. The other errors are those of `take`.
            CorruptMessage: The message has no valid frame. It is consumed.
        """
    def dead_letters(self) -> list[Delivery]:
        """Returns the dead letters: messages that no call of `get` or `take` delivers any more.

        A message becomes one after `max_attempts` deliveries, or if receivers had no memory for it eight times in a
        row. `Delivery.item` is loaded, as a copy, when it is read. `ack` removes the message, and `requeue` returns it
        to the channel. `nack`, or dropping the Delivery, leaves it a dead letter.

        The call does not count as use of this end. `JoinableQueue.join` counts dead letters as done until `requeue`.

        Returns:
            A list of Deliveries, the oldest first, without those that another process has open.

        Raises:
            ChannelClosed: This end is closed.
        """
    def _inherited_frames(self) -> list[Frame]:
        """Returns the messages that a killed process left to its successor, as a list of Frames, the oldest first."""
    def __next__(self) -> _T: ...

@disjoint_base
class SenderBase(_Sending[_T], _Publishing):
    """Base of Sender."""
    def _writable_fileno(self) -> int:
        """Returns a descriptor that is always writable, and readable once no receiver is attached any more."""
    def put(self, obj: _T, block: bool = True, timeout: float | None = None, *, move: bool = False) -> int:
        """Sends an object.

        When `put` returns, every process sees the message in the channel, and you may change the object. Arrays from
        `new_empty` are the exception. A sender gives a whole one away without a copy, and it becomes read-only here. A
        sender copies a part of one. Views that were made of such an array before the put (rows, slices) stay writable;
        do not use them any more.

        Args:
            obj: Object to send.
            block: If False, raises ``queue.Full`` at once when the channel is full.
            timeout: Seconds to wait while the channel is full; None waits indefinitely, 0 and less does not wait.
            move: If True, also gives away parts of arrays from `new_empty`, and arrays that were received.

        Returns:
            The ticket of the message for `wait_for_ack`, an int.

        Raises:
            queue.Full: The channel is still full after `timeout` seconds.
            ChannelClosed: This end is closed, or the channel is a full pair and no receiver is attached. Also if all
                processes that have one are blocked and never used it (a deadlock).
            shmtree.PeerDied: The channel is a full pair, no receiver is attached any more, and one died or failed.
            MessageTooLarge: The message exceeds `max_bytes` or the arena's budget.
            OutOfSharedMemory: Pinned views, or the machine, leave no memory for the message.
            PickleRefused: A part of the object needs pickle, and this end or the channel refuses it.
            NotPortable: The channel is portable and a part of the object is not.
            ValueError: The object is nested deeper than 1,000 levels.

        An exception from the object's own code is raised as it is. After any error the object was not sent.

        Example::

            ticket = sender.put({"obs": np.zeros((64, 8), np.float32), "reward": 1.0}, timeout=5)
            sender.wait_for_ack(ticket, timeout=5)
        """
    def put_nowait(self, obj: _T, *, move: bool = False) -> int:
        """Sends an object like `put` if the channel is not full.

        Args:
            obj: Object to send.
            move: As in `put`.

        Returns:
            The ticket of the message, an int.

        Raises:
            queue.Full: The channel is full. The other errors are those of `put`.

        Example::

            with contextlib.suppress(queue.Full):
                sender.put_nowait({"frame": frame})  # skips the frame if the receiver lags
        """
    def put_frame(self, buffer: Buffer, block: bool = True, timeout: float | None = None) -> int:
        """Sends the value in a frame without building it.

        The bytes are checked first. Bytes behind the frame are not sent.

        Args:
            buffer: A `Frame`, or any contiguous buffer with the bytes of one.
            block: If False, raises ``queue.Full`` at once when the channel is full.
            timeout: Seconds to wait while the channel is full; None waits indefinitely.

        Returns:
            The ticket of the message, an int.

        Raises:
            CorruptMessage: The buffer has no valid frame. The text says what is wrong, and at which node.
            ValueError: The frame has a handle: an end, a shared array or device memory. Only its receiver may load
                that. The text has the path.
            PickleRefused: The frame has a pickle, and this end or the channel refuses it.
            queue.Full: The channel is still full after `timeout` seconds. The other errors are those of `put`.
        """
    def has_space(self) -> bool:
        """Returns True if a small message could be put without waiting.

        Raises:
            ChannelClosed: This end is closed.
        """
    def _check_receivers(self) -> None:
        """Raises ChannelClosed or PeerDied if no receiver is attached, even if the channel is not full."""
    def wait_for_receivers(self, n: int, timeout: float | None = None) -> None:
        """Blocks until at least `n` processes are attached as receivers, whether they have received or not.

        From this call on, a process that has both ends and has never received counts as a sender only.

        Args:
            n: Number of processes.
            timeout: Seconds to wait; None waits indefinitely.

        Raises:
            TimeoutError: Fewer are attached after `timeout` seconds; the error has both numbers.
            ChannelClosed: This object is closed.
        """
    def _send_requests(self) -> None:
        """Lets this object put into the channel of a Service."""
    def wait_for_all_ack(self, timeout: float | None = None) -> None:
        """Blocks until every message that this process has put was received or, if it was taken, acked.

        Args:
            timeout: Seconds to wait; None waits indefinitely.

        Raises:
            TimeoutError: Some messages are still unacked after `timeout` seconds.
            shmtree.PeerDied: No receiver is attached that could receive the rest, and one was killed or failed.
            ChannelClosed: No receiver is attached that could receive the rest, or another thread has closed this
                object. A call after `close` waits as long as this process has another object of the channel.
        """
    def flush(self, timeout: float | None = None) -> None:
        """Blocks until every message that this process has put was received or, if it was taken, acked.

        It does the same as `wait_for_all_ack`.

        Args:
            timeout: Seconds to wait; None waits indefinitely.

        Raises:
            TimeoutError: Some messages are still unacked after `timeout` seconds.
            shmtree.PeerDied: No receiver is attached that could receive the rest, and one was killed or failed.
            ChannelClosed: No receiver is attached that could receive the rest, or another thread has closed this
                object. A call after `close` waits as long as this process has another object of the channel.

        With ``keep_open="both"``, it waits for the next receiver instead.

        Example::

            sender.put_many(samples)
            sender.flush(timeout=60)  # now the receivers have all samples
        """
    def wait_for_ack(self, ticket: int, timeout: float | None = None) -> None:
        """Blocks until the message with this ticket was received or, if it was taken, acked.

        Args:
            ticket: Result of `put`.
            timeout: Seconds to wait; None waits indefinitely.

        Raises:
            TimeoutError: The message is still unacked after `timeout` seconds.
            ValueError: `put` has returned no such ticket.
            shmtree.PeerDied: No receiver is attached that could receive it, and one was killed or failed.
            ChannelClosed: No receiver is attached that could receive it, or another thread has closed this object. A
                call after `close` waits as long as this process has another object of the channel.
        """
    @property
    def pending_acks(self) -> int:
        """Number of messages of this process that are still in the channel, or were taken and are unacked."""

@disjoint_base
class ReceiverBase(_Receiving[_T]):
    """Base of Receiver."""
    def _writable_fileno(self) -> int:
        """Returns a descriptor like that of fileno(), which is also always writable."""
    def get(self, block: bool = True, timeout: float | None = None, *, copy: bool | None = None) -> _T:
        """Receives the next object.

        Args:
            block: If False, raises ``queue.Empty`` at once when there is no message.
            timeout: Seconds to wait for a message; None waits indefinitely, 0 and less does not wait.
            copy: None (default) views arrays of 4 KiB and more in messages over 16 KiB and copies the rest. It copies
                everything while more than half of the arena's budget is pinned. True copies all arrays, False views
                all, except in messages of up to about 1 KiB, which the channel itself stores. A view is writable
                unless the array was sent read-only, and pins its block until the last view of it is gone.

        Returns:
            The object that was sent.

        Raises:
            queue.Empty: There is no message after `timeout` seconds.
            ChannelClosed: This end is closed, or the stream has ended: every message is received and no sender is
                attached. Also if all processes that have one are blocked and never used it (a deadlock).
            shmtree.PeerDied: The stream has ended and a sender was killed or failed. Raised once, then ChannelClosed.
            MemoryError: This process has no memory or no addresses for the object (OutOfSharedMemory is one kind of
                it). The message stays in the channel, or returns to it. After the eighth failure in a row it moves to
                `dead_letters`, so that receivers reach the next message. The same holds for SystemExit and
                GeneratorExit from code that unpickles.
            CorruptMessage: The message has bytes that no sender writes. It is consumed; the error has its `ticket`.
            PickleRefused: The message needs pickle, and this end or the channel refuses it. It is consumed.

        Example::

            sample = receiver.get(timeout=3)  # arrays in it may be views of shared memory
            mean = sample["obs"].mean()
        """
    def take(self, block: bool = True, timeout: float | None = None, *, copy: bool | None = None) -> Delivery:
        """Receives the next object as a `Delivery`, which counts as received when it is acked.

        If this process nacks it, drops the Delivery or dies before the ack, another receiver gets the message. After
        `max_attempts` deliveries it moves to `dead_letters`. `take` also waits while `max_unacked` messages are in
        flight.

        Args:
            block: If False, raises ``queue.Empty`` at once when there is no message.
            timeout: Seconds to wait for a message; None waits indefinitely.
            copy: As in `get`.

        Returns:
            A Delivery.

        Raises:
            queue.Empty: There is no message after `timeout` seconds. The other errors are those of `get`.

        Example::

            with receiver.take() as delivery:  # acks at the end of the block, nacks after an exception
                train_on(delivery.item)
        """
    def _take_unloaded(self, block: bool = True, timeout: float | None = None, *, copy: bool | None = None) -> Delivery:
        """Works like take(), but the Delivery loads its item only when the item is first read."""
    def _take_failed_reply(self) -> int:
        """Returns the number of the last reply that could not be loaded, and forgets it; 0 if there is none."""
    def _wait_until_ready(self, timeout: float | None, /) -> bool:
        """Waits up to so many seconds until get() would return or raise at once. Returns True if get() would."""

@disjoint_base
class QueueBase(_Sending[_T], _Receiving[_T]):
    """Base of the queues."""
    def __new__(cls, *args: Any, **kwargs: Any) -> Self: ...
    def put(self, obj: _T, block: bool = True, timeout: float | None = None, *, move: bool = False) -> None:
        """Puts an object into the queue.

        When `put` returns, every process sees the object in the queue, and you may change it.

        Args:
            obj: Object to put.
            block: If False, raises ``queue.Full`` at once when the queue is full.
            timeout: Seconds to wait while the queue is full; None waits indefinitely, 0 and less does not wait.
            move: If True, hands over arrays from `Arena.new_empty`, and arrays that were received, without a copy.
                They become read-only here. Without it, a queue copies all arrays except those that
                `shmtree.torch.collate` made.

        Raises:
            queue.Full: The queue is still full after `timeout` seconds.
            ChannelClosed: This object is closed, or every process has closed the end from which objects are got.
            shmtree.PeerDied: The queue is full, has ``on_peer_death="raise"``, and no process is left that could get:
                one of them was killed or failed (`WorkerFailed`).
            ShutDown: The queue was shut down.
            MessageTooLarge: The object exceeds `max_bytes` or the arena's budget.
            OutOfSharedMemory: Pinned views, or the machine, leave no memory for the object.
            PickleRefused: A part of the object needs pickle, and this queue refuses it.
            NotPortable: The queue is portable and a part of the object is not.
            ValueError: The object is nested deeper than 1,000 levels.

        An exception from the object's own code is raised as it is. After any error the object was not put.

        Example::

            queue.put({"obs": np.zeros((64, 8), np.float32), "reward": 1.0}, timeout=5)
        """
    def put_nowait(self, obj: _T, *, move: bool = False) -> None:
        """Puts an object into the queue like `put` if the queue is not full.

        Args:
            obj: Object to put.
            move: As in `put`.

        Raises:
            queue.Full: The queue is full. The other errors are those of `put`.

        Example::

            with contextlib.suppress(queue.Full):
                frames.put_nowait({"frame": frame})  # skips the frame if the consumer lags
        """
    def put_frame(self, buffer: Buffer, block: bool = True, timeout: float | None = None) -> None:
        """Puts the value in a frame without building it, like `Sender.put_frame`.

        Args:
            buffer: A `Frame`, or any contiguous buffer with the bytes of one.
            block: If False, raises ``queue.Full`` at once when the queue is full.
            timeout: Seconds to wait while the queue is full; None waits indefinitely.

        Raises:
            queue.Full: The queue is still full after `timeout` seconds. The other errors are those of
                `Sender.put_frame`.
        """
    def get(self, block: bool = True, timeout: float | None = None, *, copy: bool | None = None) -> _T:
        """Removes the oldest object from the queue and returns it.

        Args:
            block: If False, raises ``queue.Empty`` at once when the queue is empty.
            timeout: Seconds to wait for an object; None waits indefinitely, 0 and less does not wait.
            copy: As in `Receiver.get`.

        Returns:
            The object that was put.

        Raises:
            queue.Empty: There is no object after `timeout` seconds.
            ChannelClosed: This object is closed.
            shmtree.PeerDied: The queue is empty, has ``on_peer_death="raise"``, and no process is left that could put:
                one of them was killed or failed (`WorkerFailed`).
            ShutDown: The queue was shut down and is empty.
            MemoryError: This process has no memory for the object. The queue keeps it; see `Receiver.get`.
            CorruptMessage: The message has bytes that no sender writes. It is consumed.
            PickleRefused: The message needs pickle, and this queue refuses it. It is consumed.

        Example::

            sample = queue.get(timeout=3)  # arrays in it may be views of shared memory
            mean = sample["obs"].mean()
        """
    def shutdown(self, immediate: bool = False) -> None:
        """Shuts the queue down in all processes: `put` raises ShutDown from now on, `get` once the queue is empty.

        Args:
            immediate: If True, drops the messages in the queue; `JoinableQueue.join` counts them as done.

        Raises:
            ChannelClosed: This process has closed the queue.
        """
    def _attach(self, channel: Channel, allow_pickle: bool, /) -> None:
        """Attaches this object to a channel."""
    def _close_end(self, receiving: bool, /) -> None:
        """Closes the receiving end if the argument is true, otherwise the sending one."""
    def _end_closed(self, receiving: bool, /) -> bool:
        """Returns True if the receiving end, or the sending one, is closed."""
    def _task_done(self) -> None:
        """Counts one received object as done."""
    def _join_tasks(self, timeout: float | None, /) -> None:
        """Waits until all objects are done, for at most this many seconds."""
    def _reserve(self, receiving: bool, block: bool, timeout: float | None, /) -> bool:
        """Keeps other processes from using an end. Returns False if another one has reserved it."""
    def _release(self, receiving: bool, /) -> bool:
        """Ends a reservation. Returns False if there was none."""

@final
class Delivery:
    """A message from `Receiver.take` or `Receiver.dead_letters`. Ack it with `ack`, or return it with `nack`.

    As a context manager it is acked at the end of the block, and nacked after an exception. It is also nacked if
    you drop it, or if the process dies. For a message from `dead_letters`, `ack` removes it, and `nack` leaves it
    a dead letter.

    Example::

        delivery = receiver.take()
        process(delivery.item)
        delivery.ack()
    """
    @property
    def item(self) -> Any:
        """The object that was sent."""
    @property
    def ticket(self) -> int:
        """Ticket of the message, as `put` returned it."""
    @property
    def attempts(self) -> int:
        """Number of deliveries of the message, including this one."""
    @property
    def redelivered(self) -> bool:
        """True if another receiver took the message before and did not ack it."""
    @property
    def settled(self) -> bool:
        """True if the message was acked or returned."""
    @property
    def _may_retry(self) -> bool:
        """True if `item` could not be read for lack of memory or because a signal handler raised, and nack() does not
        make the message a dead letter.
        """
    def ack(self) -> None:
        """Counts the message as received.

        Raises:
            ValueError: The message was acked or returned before.
        """
    def nack(self) -> None:
        """Returns the message to the channel, for any receiver.

        After `max_attempts` deliveries it moves to `Receiver.dead_letters` instead.

        Raises:
            ValueError: The message was acked or returned before.
        """
    def requeue(self) -> None:
        """Returns the message to the channel as if it had never been taken; its attempts are counted anew.

        Raises:
            ValueError: The message was acked or returned before.
        """
    def __enter__(self) -> Delivery:
        """Returns the delivery itself."""
    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        """Acks the message, or nacks it after an exception. Does nothing if the block has done either."""

class Name:
    """This process's share in a name. The name ends with the last process that holds it."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    @staticmethod
    def create(name: str, kind: int, arena: Arena, block: int, note: str) -> Name: ...
    @staticmethod
    def open(name: str, timeout: float | None, kind: int | None = None) -> Name: ...
    @staticmethod
    def join(path: str, arena: Arena, part: int = -1) -> Name | None: ...
    def part_for_child(self) -> int:
        """Returns a descriptor by which a process that is being started becomes an owner of this name."""
    @property
    def path(self) -> str: ...
    @property
    def kind(self) -> int: ...
    @property
    def kind_in_sentence(self) -> str:
        """The kind with its article, for an error message."""
    @property
    def arena(self) -> Arena: ...
    @property
    def block(self) -> int: ...
    @property
    def note(self) -> bytes: ...

def make_channel(
    kind: Literal["pair", "queue", "pipe", "service"],
    capacity: int | None = None,
    max_bytes: int | None = None,
    name: str | None = None,
    arena: Arena | None = None,
    allow_pickle: bool | None = None,
    on_peer_death: Literal["raise", "wait", "each"] = "raise",
    portable: bool = False,
    exist_ok: bool = False,
    max_unacked: int | None = None,
    max_attempts: int | None = None,
    on_full: Literal["block", "drop_oldest"] = "block",
    keep_open: bool | Literal["both"] = False,
) -> tuple[Channel, Name | None]:
    """Makes a channel with options as users give them, and checks them.

    Without an arena, it gets one of its own.
    """

def leave_names() -> None: ...
def set_package(given: dict[str, Any], /) -> None: ...
def block_of(array: object) -> int: ...
def show(array: object) -> None: ...
def make_broadcast(
    capacity: int = 8,
    max_bytes: int | None = None,
    history: int = 0,
    name: str | None = None,
    arena: Arena | None = None,
    allow_pickle: bool | None = None,
    on_peer_death: Literal["raise", "wait"] = "raise",
    keep_open: bool | Literal["both"] = False,
    exist_ok: bool = False,
) -> tuple[Ring, bool, Name | None]:
    """Does the same as `make_channel` for a Broadcast. Returns the arguments of `_attach`."""

class Ring:
    """The ring of a Broadcast."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    @staticmethod
    def open(arena: Arena, block: int) -> Ring: ...
    @property
    def arena(self) -> Arena: ...
    @property
    def block(self) -> int: ...
    def progress(self) -> tuple[int, list[int], list[tuple[int, int, int]], bool]: ...

@disjoint_base
class SubscriberBase(_End, Generic[_T]):
    """Base of Subscriber."""
    def get(self, block: bool = True, timeout: float | None = None, *, copy: bool | None = None) -> _T:
        """Returns the next message.

        Arrays are read-only views, and tensors are copies. Once pinned blocks exceed half of the arena's budget,
        everything is copied, as with `Latest.get`.

        Args:
            block: If False, does not wait.
            timeout: Seconds to wait at most; None waits indefinitely.
            copy: See `Latest.get`.

        Returns:
            The message.

        Raises:
            queue.Empty: No message came in time.
            Overrun: Messages were overwritten, and the subscription has `on_lag="raise"`; `.missed` has their number.
            ChannelClosed: No publisher is left.
            shmtree.PeerDied: No publisher is left, and one was killed or failed.
            MemoryError: This process has no memory for the message. The message is kept: the next call returns it, or a
                newer one with `on_lag="latest"`. After eight failures in a row the message is skipped, and counts as
                missed. SystemExit and GeneratorExit of code that unpickles count as failures, too. KeyboardInterrupt
                and exceptions of signal handlers do not count, and the message is kept.
        """
    def get_nowait(self, *, copy: bool | None = None) -> _T:
        """Calls `get` without waiting.

        Args:
            copy: See `Latest.get`.

        Returns:
            The message.

        Raises:
            queue.Empty: There is no message now. The other errors are those of `get`.
        """
    def get_many(
        self, n: int, timeout: float | None = None, *, copy: bool | None = None, within: float | None = 0.0
    ) -> list[_T]:
        """Returns up to `n` messages: waits for the first one as `get` does, and takes the others that are there.

        Args:
            n: Maximum number of messages, at least 1.
            timeout: Seconds to wait for the first one; None waits indefinitely.
            copy: See `Latest.get`.
            within: Seconds to wait for more after the first one; None waits until there are `n`.

        Returns:
            A list of 1 to `n` messages.

        Raises:
            queue.Empty: No message came in time. The other errors are those of `get`. If a message other than the
                first one fails, the next call raises its error.
        """
    def __iter__(self) -> Self: ...
    def __next__(self) -> _T: ...
    def qsize(self) -> int:
        """Returns the number of messages that the subscriber can read now."""
    def empty(self) -> bool:
        """Returns True if there is no message to read."""
    @property
    def missed(self) -> int:
        """Number of messages missed so far.

        A message is missed if it was overwritten, skipped after failures, or replaced by a newer one
        (`on_lag="latest"`).
        """
    def fileno(self) -> int:
        """Returns a descriptor that is readable while there is a message or no publisher is left, for poll loops.

        The descriptor belongs to this object. Calling `fileno` counts as use: from then on, only this process is
        attached to the subscription. If several threads read, another one may have taken the message that made the
        descriptor readable. The descriptor does not report the death of a publisher; `shmtree.wait` and blocking calls
        do. Each subscriber has its own pipe, so the limit of 4,096 watched ends of channels does not apply.

        Raises:
            ChannelClosed: Another process uses the subscription.
            OSError: No descriptor is left.
        """
    def close(self) -> None:
        """Closes this object. Publishers no longer wait for it, and received views stay valid. Idempotent.

        The subscription continues if other processes have it as well and no process has used it yet.
        """
    @property
    def _name(self) -> Name | None: ...
    def _attach(self, arena: Arena, block: int, allow_pickle: bool, name: Name | None, /) -> None:
        """Attaches to a subscription that `_give()` of another object has returned."""
    def _give(self) -> tuple[Arena, int]:
        """Returns the arena and the block of the subscription, for another process."""
    def _get_frame(self) -> tuple[int, bytes]:
        """Returns the ticket and the frame of the next message, without waiting."""
    def _ready(self) -> bool:
        """Returns True if get() would return or raise at once."""
    def _open_to_wait(self) -> tuple[int, bool]:
        """Returns a descriptor that is readable while _ready() is true, and whether this call has opened it."""
    def _close_after_wait(self) -> None:
        """Closes the descriptor of _open_to_wait()."""
    def _note_wait_to_get(self, seconds: float, /) -> None:
        """Does nothing, because a Subscriber never warns of a long wait."""
    def _name_to_get(self) -> bytes:
        """Returns the bytes by which a WakeHub reports this end."""
    def _await_to_get(self, hub: WakeHub, /) -> bool:
        """Asks a WakeHub to report once when get() would return or raise. Returns True if it already would."""

class _RingPublisher(_Publishing):
    def close(self) -> None:
        """Closes this object.

        If it is the last one of this process, the process stops being a publisher. Later calls do nothing.

        If no other publisher is left, readers reach the end of the stream. Published data stays for other processes,
        and views stay valid.
        """
    @property
    def _name(self) -> Name | None: ...
    def _stats(self) -> dict[str, Any]: ...

@disjoint_base
class BroadcastBase(_RingPublisher, Generic[_T]):
    """Base of Broadcast."""
    def put(self, obj: _T, block: bool = True, timeout: float | None = None, *, move: bool = False) -> int:
        """Puts a message for all subscribers. It succeeds without subscribers, too.

        Blocks while a live blocking subscriber is `capacity` messages behind. You may change the object afterwards,
        except arrays of `new_empty`.

        Args:
            obj: The message.
            block: If False, does not wait.
            timeout: Seconds to wait at most; None waits indefinitely.
            move: See `Sender.put`.

        Returns:
            The ticket of the message for `wait_for_ack`, a number that counts from 0.

        Raises:
            queue.Full: There was no space in time; the error names the subscriber's process.
            TimeoutError: A stopped process held the lock of this Broadcast or of its arena; the error names the
                process.

        Other errors are those of `Sender.put`, without PeerDied.
        """
    def put_nowait(self, obj: _T, *, move: bool = False) -> int:
        """Calls `put` without waiting.

        Args:
            obj: The message.
            move: See `Sender.put`.

        Returns:
            The ticket of the message.

        Raises:
            queue.Full: There is no space now. The other errors are those of `put`.
        """
    def put_many(self, iterable: Iterable[_T], timeout: float | None = None) -> int:
        """Puts every item in order.

        Args:
            iterable: The messages.
            timeout: Seconds to wait for space, for all items together; None waits indefinitely.

        Returns:
            The number of items.

        Raises:
            queue.Full: Not all items were put within `timeout` seconds. This and every other error has the number of
                items that were put as its attribute `sent`.
        """
    def wait_for_subscribers(self, n: int, timeout: float | None = None) -> None:
        """Blocks until there are at least `n` subscriptions, so that their subscribers get the next message.

        Args:
            n: Number of subscriptions.
            timeout: Seconds to wait; None waits indefinitely.

        Raises:
            TimeoutError: There are fewer after `timeout` seconds; the error has both numbers.
        """
    def wait_for_all_ack(self, timeout: float | None = None) -> None:
        """Blocks until all blocking subscribers have read what this object has put.

        Args:
            timeout: Seconds to wait; None waits indefinitely.

        Raises:
            TimeoutError: A subscriber has unread messages after `timeout` seconds.
        """
    def flush(self, timeout: float | None = None) -> None:
        """Blocks until all blocking subscribers have read what this object has put, as `wait_for_all_ack`.

        Args:
            timeout: Seconds to wait; None waits indefinitely.

        Raises:
            TimeoutError: A subscriber has unread messages after `timeout` seconds.
        """
    def wait_for_ack(self, ticket: int, timeout: float | None = None) -> None:
        """Blocks until all blocking subscribers have read the message of this ticket, and all earlier ones.

        Args:
            ticket: Result of `put`.
            timeout: Seconds to wait; None waits indefinitely.

        Raises:
            TimeoutError: A subscriber has not read the message after `timeout` seconds.
            ValueError: `put` has returned no such ticket.
        """
    @property
    def capacity(self) -> int:
        """Number of messages by which the slowest blocking subscriber may lag before `put` blocks."""
    def has_space(self) -> bool:
        """Returns True if a small message could be put without waiting."""
    @property
    def pending_acks(self) -> int:
        """Number of messages, up to the last one of this object, that some blocking subscriber has not read."""
    @property
    def _shared(self) -> Ring:
        """The ring."""
    def _attach(self, ring: Ring, allow_pickle: bool, name: Name | None, /) -> None: ...
    def _subscribe(self, cls: type[_S], start: str, on_lag: str, timeout: float | None, /) -> _S: ...
    def _first_unread(self) -> int:
        """Returns the ticket of the oldest message that a blocking reader has not read."""
    def _name_to_put(self) -> bytes:
        """Returns the bytes by which a WakeHub reports that there is space."""
    def _await_to_put(self, first_unread: int, hub: WakeHub, /) -> bool:
        """Asks a WakeHub to report once when there is space. Returns True if `first_unread` has changed."""
    def _ready_to_put(self, first_unread: int, /) -> bool:
        """Returns True if `first_unread` has changed, or the end is closed. Also drops dead readers."""

def make_latest(
    history: int = 0,
    name: str | None = None,
    arena: Arena | None = None,
    allow_pickle: bool | None = None,
    exist_ok: bool = False,
) -> tuple[LatestStore, bool, Name | None]:
    """Does the same as `make_channel` for a Latest. Returns the arguments of `_attach`."""

class LatestStore:
    """The versions of a Latest."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    @staticmethod
    def open(arena: Arena, block: int) -> LatestStore: ...
    @property
    def arena(self) -> Arena: ...
    @property
    def block(self) -> int: ...
    def progress(self) -> tuple[int, list[int], list[tuple[int, int, int]], bool]: ...

@disjoint_base
class LatestBase(_RingPublisher, Generic[_T]):
    """Base of Latest."""
    def publish(self, obj: _T, timeout: float | None = None, *, move: bool = False) -> int:
        """Makes an object the newest version and returns its number.

        When it returns, every reader gets this version.

        The object is copied, so you may change it afterwards. The exception is arrays of `new_empty`: they are given
        away and become read-only in this process. With ``move=True``, this also applies to parts of them and to
        received arrays.

        Args:
            obj: The value.
            timeout: Seconds to wait for memory; None waits indefinitely.
            move: See above.

        Returns:
            The number of the version.

        Raises:
            queue.Full: There was no memory for `timeout` seconds.
            OutOfSharedMemory: After one second, only pinned views occupy the memory. The error lists the processes, the
                bytes that they pin, and since when.
            TimeoutError: A stopped process held the arena's lock; the error names the process.

        An object that cannot be sent raises as in `Sender.put`, and nothing is published.
        """
    def get(
        self,
        newer_than: int = 0,
        timeout: float | None = None,
        *,
        version: int | None = None,
        copy: bool | None = None,
    ) -> tuple[int, _T]:
        """Returns the number and value of the newest version, as soon as its number is more than `newer_than`.

        Args:
            newer_than: Number of a version that you have already.
            timeout: Seconds to wait; None waits indefinitely, 0 does not wait.
            version: Returns exactly this version, without waiting.
            copy: None (default): arrays of 4 KiB and more in values over 16 KiB are read-only views of shared memory,
                and all others are copies. While more than half of the arena's budget is pinned, everything is copied.
                Tensors are always copied, since torch has no read-only tensors. False: everything is a view, also
                tensors; a process that writes to one changes it for all readers. True: everything is copied.

        Returns:
            The number of the version, and the value.

        Raises:
            queue.Empty: There was no newer version in time.
            KeyError: The history does not contain `version`.
            ChannelClosed: No publisher is left.
            shmtree.PeerDied: No publisher is left, and one was killed or failed.

        Example::

            version, weights = latest.get(timeout=10)
            version, weights = latest.get(newer_than=version)  # waits for the next version
        """
    @property
    def version(self) -> int:
        """Number of the newest version; 0 if there is none yet. Costs one load."""
    @property
    def history(self) -> int:
        """Number of versions that are kept besides the newest."""
    @property
    def _shared(self) -> LatestStore:
        """The versions."""
    def _attach(self, store: LatestStore, allow_pickle: bool, name: Name | None, /) -> None: ...
    def _get_frame(self, known: int, /) -> tuple[int, bytes]:
        """Returns the number and the frame of the next version after `known`, or else of the newest one."""
    def _name_to_get(self) -> bytes:
        """Returns the bytes by which a WakeHub reports this object."""
    def _await_newer(self, known: int, hub: WakeHub, /) -> bool:
        """Asks a WakeHub to report once when get() would return or raise. Returns True if it already would."""
    def _is_newer(self, known: int, /) -> bool:
        """Returns True if get(newer_than=known) would return or raise at once."""

class Versions:
    """Counts the writes of a shared array."""
    def __init__(self, array: object) -> None: ...
    @property
    def version(self) -> int: ...
    @property
    def is_torn(self) -> bool: ...
    def read(self, out: object, timeout: float | None) -> int: ...
    def wait(self, newer_than: int, timeout: float | None) -> int: ...

class Write(Generic[_T]):
    """A write to a shared array, as a context manager."""
    def __init__(self, versions: Versions, value: _T, timeout: float | None, whole: bool) -> None: ...
    def __enter__(self) -> _T: ...
    def __exit__(self, *exception: object) -> None: ...

class ReplayNest:
    """Structure of the rows: a pytree of columns."""
    def __init__(
        self,
        skeleton: Any,
        leaves: tuple[tuple[Any, tuple[int, ...]], ...],
        names: tuple[str, str],
        convert: Callable[[Any, int, str, bool], Any],
        refuse: Callable[[str, Any, Any], object],
    ) -> None: ...

_ReplayLeaf = tuple[str, int, Sequence[int]]

class ReplaySpec:
    """Specification of a replay buffer; `shmtree.replay._spec` has the options."""
    def __init__(self, rows: Any, leaves: Sequence[_ReplayLeaf], options: dict[str, Any]) -> None: ...
    @staticmethod
    def unpack(note: bytes) -> ReplaySpec: ...
    def changed(self, options: dict[str, Any]) -> ReplaySpec: ...
    @property
    def note(self) -> bytes: ...
    @property
    def rows(self) -> Any: ...
    @property
    def leaves(self) -> list[_ReplayLeaf]: ...
    @property
    def options(self) -> dict[str, Any]: ...
    @property
    def next(self) -> list[int]: ...
    @property
    def has_discount(self) -> bool: ...
    def leaf(self, what: str, key: str | bytes) -> int: ...

_ReplayNests = tuple[ReplayNest, ReplayNest, ReplayNest | None]

class ReplayBatch:
    """Sampled rows, with their indices, weights and so on."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def data(self) -> Any: ...
    def index(self) -> Any: ...
    def weight(self) -> Any: ...
    def probability(self) -> Any: ...
    def priority(self) -> Any: ...
    def mask(self) -> Any: ...
    def goals(self) -> Any: ...
    def set_rewards(self, rewards: Any, terminated: Any) -> None: ...
    def version(self) -> Any: ...
    def writer(self) -> Any: ...
    def step(self) -> Any: ...
    def discount(self) -> Any: ...
    @property
    def newest(self) -> int: ...

class Replay:
    """The rows of a replay buffer."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    @staticmethod
    def make(
        spec: ReplaySpec,
        capacity: int,
        max_bytes: int,
        chunk: int,
        streams: int,
        arena: Arena | None,
        name: str | None,
        exist_ok: bool,
        nests: _ReplayNests,
    ) -> tuple[Replay, Name | None]: ...
    @staticmethod
    def open(arena: Arena, block: int, nests_of: Callable[[ReplaySpec], _ReplayNests]) -> Replay: ...
    @property
    def spec(self) -> ReplaySpec: ...
    @property
    def arena(self) -> Arena: ...
    @property
    def block(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def chunk(self) -> int: ...
    @property
    def row_bytes(self) -> int: ...
    seed: int
    def size(self) -> int: ...
    def sample(
        self,
        n: int,
        table: int,
        distinct: bool,
        threads: int,
        timeout: float | None,
        beta: float | None,
        of_buffer: bool,
        out: list[Any] | None,
        hindsight: tuple[int, float, str | bytes, str | bytes] | None,
        sequence: tuple[int, int, int, int] | None,
    ) -> ReplayBatch: ...
    def rows_at(self, indices: Any) -> tuple[Any, Any]: ...
    def weigh(self, table: int, with_least: bool) -> tuple[float, float]: ...
    def close(self) -> None: ...
    def clear(self) -> None: ...
    def stats(self) -> dict[str, Any]: ...
    def update(self, table: int, indices: Any, priorities: Any) -> Any: ...
    def max_priority(self, table: int) -> float: ...
    def raise_max_priority(self, table: int, priority: float) -> None: ...
    def drop_overwritten(self) -> None: ...
    def reset_max_priority(self, table: int) -> None: ...

@final
class ReplayFiles:
    """A saved replay buffer."""
    def __init__(self, path: str | bytes) -> None: ...
    @property
    def note(self) -> bytes: ...
    @property
    def spec(self) -> ReplaySpec: ...
    def size_for(self, capacity: int, chunk: int, streams: int) -> tuple[int, int]: ...
    def make(
        self,
        spec: ReplaySpec,
        capacity: int,
        chunk: int,
        streams: int,
        arena: Arena | None,
        nests: _ReplayNests,
    ) -> Replay: ...
    def load_into(self, replay: Replay, progress: Callable[[int, int], object] | None = None) -> None: ...

def replay_tickets(replay: Replay) -> int: ...
def save_replay(
    replay: Replay, path: str | bytes, progress: Callable[[int, int], object] | None = None
) -> tuple[int, int, int, int]: ...

@disjoint_base
class ReplayWriter:
    """Base of Writer: one stream of rows into a replay buffer, such as one environment's."""
    def add(self, row: Any, *, final: Any = None, priority: float | None = None, timeout: float | None = None) -> int:
        """Adds the next row of this stream.

        A true leaf `terminated`, `truncated` or `done` ends the episode.

        Args:
            row: A pytree with the structure of the buffer's rows. Each leaf has the shape of its column, and a dtype
                that casts to the column's with 'same_kind'.
            final: Observation after this row, a pytree of the leaves that the buffer has as `next`. It is used only if
                the row ends its episode, so you may pass it with each row. With `next`, a truncated row needs it, here
                or in `end`; until then, adding another row is an error.
            priority: Priority of the row in all samplers that have priorities; None takes the largest one so far.
            timeout: Seconds to wait for samplers, if the buffer has a `limit`, and for memory; None waits indefinitely.

        Returns:
            The index of the row, an int.

        Raises:
            ValueError: A leaf is missing, unknown or of another shape (the text names it), or the last truncated row
                still needs its `final`. Nothing is added.
            queue.Full: The `limit` does not allow the row, or the arena has no memory, after `timeout` seconds.
            TimeoutError: A stopped process held a lock for `timeout` seconds; the error names it.
            shmtree.PeerDied: The call waits for samplers, some died or failed, none is left, and the buffer was made
                with ``on_peer_death="raise"``.

        If an error has the attribute `sent` = 1, the row was added and its `final` was not: pass that to `end`.

        Example::

            with replay.writer() as writer:
                writer.add({"obs": obs, "action": action, "reward": reward, "done": done})
        """
    def extend(
        self, rows: Any, *, ends: Any = None, final: Any = None, priority: Any = None, timeout: float | None = None
    ) -> Any:
        """Adds the next rows of this stream.

        Args:
            rows: A pytree with the structure of a row, whose arrays have one more dimension in front: the number of
                rows.
            ends: Mask of the rows (n,) at which an episode was cut off, in addition to the rows whose leaf
                `terminated`, `truncated` or `done` is true. If rows have none of these leaves, or `done` is None, these
                episodes terminated.
            final: Last observations, a pytree of the leaves that the buffer has as `next`, with one row for each row
                that ends an episode or one for each row. Episodes that were cut off need it.
            priority: Priorities (n,) of the rows; None takes the largest one so far.
            timeout: Seconds to wait, for all rows together, as in `add`; None waits indefinitely.

        Returns:
            The indices of the rows, an int64 array of shape (n,).

        Raises:
            ValueError: An argument does not fit the columns. No row is added.
            queue.Full: Not all rows were added within `timeout` seconds.
            TimeoutError: As in `add`.
            shmtree.PeerDied: As in `add`.

        Every error except ValueError has the number of rows that were added, the first ones, as its attribute `sent`.
        """
    def end(self, *, final: Any = None, truncated: bool = False, timeout: float | None = None) -> None:
        """Ends the episode, so that all its rows can be sampled. Does nothing if no row was added since the last end.

        Args:
            final: Last observation, a pytree of the leaves that the buffer has as `next`.
            truncated: True if the episode was cut off and did not terminate; with `next` it then needs a `final`. The
                last row's own `terminated` or `truncated` takes precedence.
            timeout: Seconds to wait for memory; None waits indefinitely.

        Raises:
            ValueError: `final` is missing, or does not fit the columns.
            queue.Full: The arena has no memory for `final` after `timeout` seconds.
            TimeoutError: A stopped process held a lock for `timeout` seconds; the error names it.
        """
    def close(self) -> None:
        """Closes the stream. Its rows stay in the buffer. Later calls do nothing."""
    def _leave(self) -> None: ...
    @property
    def closed(self) -> bool:
        """True if `close` was called."""
    version: int
    """Number with which the next rows are marked, such as that of the policy's weights: an int."""
    @property
    def stream(self) -> int:
        """Number of the stream, which batches have as `writer`."""
    @property
    def added(self) -> int:
        """Number of rows that this writer has added."""
    def __enter__(self) -> Self:
        """Returns the writer itself."""
    def __exit__(self, *exception: object) -> None:
        """Closes the writer."""

def replay_add_to_each(
    writers: tuple[ReplayWriter, ...],
    rows: Any,
    end: Any,
    final: Any,
    priority: Any,
    reset: Any,
    timeout: float | None,
    resets_in_next_step: bool,
    /,
) -> Any: ...
def available_memory() -> int: ...
def set_pin_callback(callback: Callable[[bytes, int, int], object]) -> None: ...
def copy_in(arena: Arena, bytes: Buffer, timeout: float | None = None) -> Any: ...
def begin_transfer(arena: Arena, block: int, name: Name | None) -> int: ...
def end_transfer(arena: Arena, block: int, number: int, name: Name | None) -> None: ...
def sweep_transfers() -> None: ...
def give_up_part(path: str, part: int) -> None: ...
def make_handle(arena: Arena, block: int = 0, transfer: int = 0, name: str = "") -> bytes: ...
def open_handle(
    handle: bytes, arena_fd: int = -1, lock_fd: int = -1, identity: int = 0
) -> tuple[Arena, int, int, str, int]: ...
def find_arena(uuid: bytes) -> Arena | None: ...
def open_arena(uuid: bytes) -> Arena: ...
def list_names() -> list[tuple[str, str, int, list[int]]]: ...
def look_at_names() -> list[tuple[str, int, bytes, int, bool]]: ...
def clean_names() -> list[str]: ...

class RecordedEntries:
    """Iterates over the messages of a recording."""
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> tuple[str, int, int, memoryview]: ...

class CheckedFd:
    """A descriptor that is compared with its file before each use."""
    def __init__(self, fd: int) -> None:
        """Takes the descriptor over."""
    def number(self, use: str) -> int:
        """The descriptor, for a use that follows at once; OSError if the program has closed it."""
    def close(self) -> None: ...

def descriptors() -> list[int]:
    """Returns the numbers of the file descriptors that shmtree keeps open in this process, sorted.

    A daemon that closes all descriptors must keep these open. Objects that you make or open later add more.
    If the program closes one of them, calls that need it raise OSError with errno EBADF.

    Example:
        >>> kept = shmtree.descriptors()
        >>> for name in os.listdir("/proc/self/fd"):
        ...     if int(name) > 2 and int(name) not in kept:
        ...         with contextlib.suppress(OSError):
        ...             os.close(int(name))
    """

class MappedRecording(Buffer):
    """A recording, mapped."""
    def __init__(self, fd: int, path: bytes) -> None: ...
    @property
    def channels(self) -> dict[str, int]: ...
    def kind(self, channel: str) -> str: ...
    @property
    def missed(self) -> dict[str, int]: ...
    @property
    def whole(self) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> RecordedEntries: ...

@final
class ListGroup:
    """A memory file for several lists, to which only this object writes."""
    def __init__(self, nbytes: int) -> None:
        """Makes a sparse file of that size."""
    def add(self, fd: int, nbytes: int) -> int | None:
        """Copies a list from the start of a file. Returns its offset; None if there is no space."""
    def open(self) -> int:
        """Returns a new read-only descriptor."""

@final
class MappedList:
    """A shared list, mapped.

    Args:
        fd: Open file. The caller may close it afterwards.
        what: Name of the list in errors, such as a quoted path.
        offset: Offset of the list in a file of several lists; 0 if the list is the whole file.

    Raises:
        CorruptMessage: The file is no list, or is truncated.
        IncompatibleMessage: The file has another version.
    """
    def __new__(cls, fd: int, what: str, offset: int) -> Self: ...
    @property
    def where(self) -> str:
        """Text about the path for errors: " in 'list.smt'"; empty without a path."""
    @property
    def nbytes(self) -> int:
        """Number of bytes of the memory or file."""
    @property
    def identity(self) -> bytes:
        """The 16 random bytes that tell this list from others."""
    def __len__(self) -> int: ...
    def frame(self, number: int, /) -> memoryview:
        """Returns the bytes of an item. They keep the list mapped."""
    def item(self, number: int, allow_pickle: bool, /) -> Any:
        """Decodes an item. Its arrays are read-only views that keep the list mapped."""

class Observer:
    """Takes snapshots repeatedly, for values that need two of them.

    Examples are rates, shares of time, and how long messages have waited. Use it in one
    thread at a time.
    """
    def __init__(self) -> None: ...
    def look(self) -> dict[str, Any]:
        """Returns the result of `observe`, with what has changed since the last call on this object."""

def open_arena_for_reading(uuid: bytes, pid: int, fd: int) -> int: ...
def look_at_queue(uuid: bytes, block: int, most: int, most_bytes: int) -> list[tuple[int, int, int | None, bytes]]: ...
def note_exit_code(code: int) -> None: ...
def leave_all() -> None: ...
def forget_exit() -> None: ...
def note_process_name() -> None: ...
def parse_timeout(timeout: Any, what: str = "timeout") -> float | None: ...
def parse_whole(what: str, value: object) -> int:
    """Returns an int that fits in the core's signed 64 bits; the least of these for any int below them."""

def parse_natural(what: str, value: object) -> int:
    """Returns an int that is not negative and fits in the core's signed 64 bits."""

def parse_limit(what: str, value: object) -> int:
    """Returns a limit in the core's form, in which 0 means no limit."""

def set_idle_callback(callback: Callable[[], object]) -> None: ...
def set_close_callback(callback: Callable[[Any], object]) -> None: ...
def want_idle(wanted: bool) -> None: ...
def set_unused_after(seconds: float) -> None: ...
def set_spans(flags: dict[str, Any], key: str, begin: Callable[[str], Any]) -> None: ...
