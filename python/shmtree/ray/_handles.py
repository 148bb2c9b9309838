"""Opens channels by handles that are not in transit, for the gateway and the keeper of a node, which hold them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import _core
from .._ipc.channel import Receiver, Sender
from .._ipc.latest import Latest
from .._process import arenas

Terms = dict[str, Any]  #: arguments of `_core.make_channel`


def new_channel(terms: Terms) -> _core.Channel:
    channel, _ = _core.make_channel(**terms, arena=arenas.default_arena())
    _quietly(channel.arena)
    return channel


def handle_of(channel: _core.Channel) -> bytes:
    return _core.make_handle(channel.arena, channel.block)


def open_channel(handle: bytes) -> _core.Channel:
    """Opens a channel. Raises FileNotFoundError if no process has it any more."""
    arena, block, *_ = _core.open_handle(handle)
    return _core.Channel.open(arena, block)


def open_quietly(handle: bytes) -> _core.Channel:
    """Opens a channel for a process with an expected successor: peers get no PeerDied if it dies."""
    channel = open_channel(handle)
    _quietly(channel.arena)
    return channel


def open_latest(handle: bytes, quietly: bool = False) -> Latest:
    arena, block, *_ = _core.open_handle(handle)
    if quietly:
        _quietly(arena)
    return Latest._of(_core.LatestStore.open(arena, block), True, None)


def inherit(receiver: Receiver[Any]) -> list[Any]:
    """Returns the frames that a killed process had taken and left to this process, its successor."""
    return receiver._inherited_frames()


Table = tuple[bytes, int]  # a handle of words in shared memory, and their number


def new_table(words: int) -> tuple[Table, Any]:
    """Returns words that are zero, for a `Landing` or a `Journal`."""
    arena = arenas.default_arena()
    table = arena.new_shared_array((words,), "q")
    _quietly(arena)
    table[:] = 0
    return (_core.make_handle(arena, _core.block_of(table)), words), table


def open_table(table: Table) -> Any:
    handle, words = table
    arena, block, *_ = _core.open_handle(handle)
    opened = arena.open_array(block, (words,), "q", "C")
    _quietly(arena)
    return opened


def _quietly(arena: _core.Arena) -> None:
    _ = arena.identity  # accessing it reserves the identity
    arena.detach()


class Held:
    """Keeps a channel and its memory alive while another process is replaced."""

    def __init__(self, handle: bytes, ends: str, tables: Iterable[Table]) -> None:
        self.channel = open_quietly(handle)
        self.channel.become_successor()  # inherits the messages that the gateway has taken, if it dies
        self.ends: dict[str, Any] = {}
        self.tables = [open_table(each) for each in tables]
        self.attach(ends)

    def attach(self, ends: str) -> None:
        """Attaches to exactly the named ends, "s" and "r"."""
        for letter, cls in (("s", Sender), ("r", Receiver)):
            if letter in ends and letter not in self.ends:
                self.ends[letter] = cls._of(self.channel)
            elif letter not in ends and letter in self.ends:
                self.ends.pop(letter).close()
