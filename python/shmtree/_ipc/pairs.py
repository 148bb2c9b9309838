"""The making and opening of channels, and the names that this user's processes have."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from .. import _core
from .._process.names import CHANNEL, KINDS, open_known
from .arena import Arena
from .channel import Behind, OnPeerDeath, Receiver, Sender, make_pair, pair_terms


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
    behind: Behind = "block",
    keep_open: bool = False,
    portable: bool = False,
    exist_ok: bool = False,
) -> tuple[Sender, Receiver]:
    """A new channel: the end to put into, and the end to get from.

    Args:
        capacity: messages put and not yet received before `put` waits; None or 0 is unlimited. One that was taken and
            given back counts again, which may exceed it: `put` waits until there is less.
        max_bytes: bytes queued before `put` waits; a larger message is refused with MessageTooLarge. What a message
            passes by reference counts with the whole of the memory that it lies in, in each message that refers to it.
        name: makes the channel known to the user's other processes, for `open_sender` and `open_receiver`. It gets an
            arena of its own unless one is given. FileExistsError when the name is in use.
        arena: where messages lie; None is the arena that this process makes for all such channels.
        allow_pickle: whether objects without a native kind may be pickled; None is yes for unnamed and no for named
            channels, where both sides have to say yes.
        on_peer_death: "raise" reports killed senders to receivers, and killed receivers to senders, as PeerDied when
            nobody else is left; "each" reports each of them when it is found, also while others are left; "wait" waits
            for others to come.
        max_unsettled: messages taken and not settled, by all takers together, before `take` waits; None or 0 is
            unlimited.
        max_attempts: how often a message is taken before it is given up, when nobody acknowledges it. It comes to
            nobody then and is among `Receiver.rejected`. None or 0 is no limit.
        behind: "block" lets a `put` that finds no room wait; "drop_oldest" lets it drop the oldest messages that nobody
            has received, which `Sender.dropped` counts and which count as received for those who wait for it.
        keep_open: whether receivers wait for other senders when none is left, so that the stream has no end.
        portable: whether `put` refuses what means something on this machine only (ends, shared arrays, arenas, memory
            of devices), with NotPortable, so that what is taken as frames can be put on any other one.
        exist_ok: with a name that a channel has already, gives the ends of that one, as to a server that starts again
            while its clients live; ValueError, with the values of both, when it was made with other arguments.
    """
    if arena is not None and not isinstance(arena, Arena):
        raise TypeError(f"arena is {arena!r}; it must be an Arena, or None")
    terms = pair_terms(capacity, max_bytes, max_unsettled, max_attempts, on_peer_death, behind, keep_open, portable)
    return make_pair(arena._open() if arena is not None else None, terms, name, allow_pickle, exist_ok)


def create_shared_memory_pair(capacity: int | None = 0) -> tuple[Sender, Receiver]:
    """`create_pair`, for those who come from py-sharedmemory."""
    return create_pair(capacity)


_E = TypeVar("_E", Sender, Receiver)


def _open_end(cls: type[_E], known: _core.Name, allow_pickle: bool | None) -> _E:
    end = cls(_core.Channel.open(known.arena, known.block), bool(allow_pickle))
    end._name = known
    return end


def open_sender(name: str, *, allow_pickle: bool | None = None, timeout: float | None = 0.0) -> Sender:
    """The sending end of a named channel.

    Waits up to `timeout` seconds (None waits indefinitely) for somebody to make it: TimeoutError, or FileNotFoundError
    where
    that is 0. ValueError when it is the name of something else. Pickles are sent only if both this call and the maker
    of the channel say allow_pickle=True.
    """
    return _open_end(Sender, open_known(name, CHANNEL, timeout), allow_pickle)


def open_receiver(name: str, *, allow_pickle: bool | None = None, timeout: float | None = 0.0) -> Receiver:
    """The receiving end of a named channel. Errors as of `open_sender`; pickles are loaded on the same condition."""
    return _open_end(Receiver, open_known(name, CHANNEL, timeout), allow_pickle)


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
