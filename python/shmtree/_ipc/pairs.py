"""Functions that make and open channels, and the names of this user's processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from .. import _core
from .._process.names import CHANNEL, KINDS, open_name
from .._public import made_by
from .channel import KeepOpen, OnFull, OnPeerDeath, Receiver, Sender, ends_of, home_of
from .item_type import T

if TYPE_CHECKING:
    from .arena import Arena


def create_pair(
    capacity: int | None = 8,
    *,
    max_bytes: int | None = None,
    name: str | None = None,
    arena: Arena | None = None,
    allow_pickle: bool | None = None,
    on_peer_death: OnPeerDeath = "raise",
    max_unacked: int | None = None,
    max_attempts: int | None = None,
    on_full: OnFull = "block",
    keep_open: KeepOpen = False,
    portable: bool = False,
    exist_ok: bool = False,
) -> tuple[Sender[T], Receiver[T]]:
    """Makes a channel and returns its two ends: the sender and the receiver.

    Args:
        capacity: Number of unreceived messages at which `put` blocks; None or 0 means no limit. A returned message
            counts again, so the number may exceed the capacity; `put` then blocks until there are fewer.
        max_bytes: Number of queued bytes at which `put` blocks. A message that passes memory by reference counts with
            the whole block of that memory, and so does each other message that refers to it.
        name: Name under which the user's other processes find the channel with `open_sender` and `open_receiver`. A
            named channel gets an arena of its own unless you pass one.
        arena: Arena for the messages; None takes the arena that this process makes for all such channels.
        allow_pickle: True if objects without a native kind may be pickled. None (default) allows it for unnamed
            channels and refuses it for named ones, where both sides have to allow it.
        on_peer_death: What a blocked call does when peers are killed or fail. "raise" (default): raise PeerDied, or
            WorkerFailed, once no peer is left. "each": raise it for every death and failure, even if other peers
            remain. "wait": keep waiting for new peers.
        max_unacked: Number of messages in flight, over all receivers, at which `take` blocks; None or 0 means no
            limit.
        max_attempts: Number of deliveries of a message that no receiver acks. After that, the message is not delivered
            again; `Receiver.dead_letters` returns it. None or 0 means no limit.
        on_full: What `put` does if the channel is full. "block" (default): wait. "drop_oldest": drop the oldest
            messages that no receiver has taken. `Sender.dropped` counts them, and calls that wait for acks count them
            as received.
        keep_open: If True, receivers wait for new senders when none is left, so that the stream has no end. With
            "both", `put`, `flush` and the other calls of senders also wait for new receivers, until their timeout,
            whether the last receiver was killed or exited. At an end that waits, "raise" and "wait" of `on_peer_death`
            do the same; "each" still raises PeerDied for every death.
        portable: If True, `put` refuses objects that are valid on this machine only (ends, shared arrays, arenas,
            device memory). Messages taken as frames can then be put on any other machine.
        exist_ok: If a channel has this name already, returns its ends, as a restarted server needs while its clients
            live.

    Returns:
        The Sender and the Receiver. A type checker takes the type of the messages from an annotation, such as
        ``pair: tuple[Sender[int], Receiver[int]]``.

    Raises:
        FileExistsError: The name is in use and `exist_ok` is False.
        ValueError: The channel of that name was made with other arguments (the error has both values).
        TypeError: `arena` is not an Arena.

    Later, `put` raises MessageTooLarge for a message over `max_bytes`, and NotPortable for what `portable` refuses.

    Example::

        sender, receiver = shmtree.create_pair(capacity=4)
        sender.put({"obs": np.zeros((64, 8), np.float32)})
        message = receiver.get()
    """
    options = max_bytes, name, home_of(arena, name), allow_pickle, on_peer_death, portable, exist_ok
    return ends_of(*_core.make_channel("pair", capacity, *options, max_unacked, max_attempts, on_full, keep_open))


_E = TypeVar("_E", Sender, Receiver)


def _open_end(cls: type[_E], known: _core.Name, allow_pickle: bool | None) -> _E:
    end = cls._of(_core.Channel.open(known.arena, known.block), bool(allow_pickle))
    end._name = known
    return end


def open_sender(name: str, *, allow_pickle: bool | None = None, timeout: float | None = 0.0) -> Sender:
    """Opens the sending end of a named channel.

    Args:
        name: Name of the channel.
        allow_pickle: True allows pickles. They are sent only if the process that made the channel allowed them as well.
        timeout: Seconds to wait for a process to make the channel; None waits indefinitely.

    Raises:
        FileNotFoundError: There is no such name and `timeout` is 0.
        TimeoutError: There is still no such name after `timeout` seconds.
        ValueError: The name belongs to something other than a channel.

    Example::

        shmtree.create_pair(name="samples")          # in one process, which keeps the ends
        sender = shmtree.open_sender("samples", timeout=10)  # in another
    """
    return _open_end(Sender, open_name(name, CHANNEL, timeout), allow_pickle)


def open_receiver(name: str, *, allow_pickle: bool | None = None, timeout: float | None = 0.0) -> Receiver:
    """Opens the receiving end of a named channel.

    Args:
        name: Name of the channel.
        allow_pickle: True allows pickles. They are loaded only if the process that made the channel allowed them as
            well.
        timeout: Seconds to wait for a process to make the channel; None waits indefinitely.

    Raises:
        FileNotFoundError: There is no such name and `timeout` is 0.
        TimeoutError: There is still no such name after `timeout` seconds.
        ValueError: The name belongs to something other than a channel.
    """
    return _open_end(Receiver, open_name(name, CHANNEL, timeout), allow_pickle)


@made_by("shmtree.list_names()")
class NameInfo(NamedTuple):
    """A name and the processes that have it."""

    name: str  #: the name as it was given
    kind: str  #: "arena", "channel", "queue", "broadcast", "latest", "replay", "array", or "unknown" of a newer version
    #: Pids of the processes that have it; 0 for a process in another PID namespace; empty if a killed process left the
    #: name.
    pids: tuple[int, ...]


def list_names() -> list[NameInfo]:
    """Returns the names of this user's arenas, channels and arrays.

    Names that a killed process left are listed once, and removed.
    """
    found = _core.list_names()
    return [NameInfo._make((name, KINDS.get(kind, "unknown"), tuple(pids))) for name, _, kind, pids in found]


def clean_names() -> list[str]:
    """Removes names that no live process has, and returns them.

    You never need it: `list_names`, or the use of any name, does the same.
    """
    return _core.clean_names()
