"""Pickling of ends, arenas and shared arrays as handles, with which another process opens the object.

A process that is being started inherits what it needs with its arguments. A running process opens the arena through
``/proc`` of the process that made the handle, or of any other process that has the arena if that one has exited. Until
then, the process that made the handle keeps the object and its name alive as in transit, even if it closes them
meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from multiprocessing import context
from typing import Any, TypeVar

from .. import _core
from ..errors import ChannelClosed
from . import spawn

_T = TypeVar("_T")


def _path_of(name: _core.Name | None) -> str:
    return name.path if name is not None else ""


def handle_of(channel: _core.Channel, name: _core.Name | None, receiving: bool) -> bytes:
    """Returns a handle for a running process. The end is in transit from now on."""
    return _core.make_handle(channel.arena, channel.block, channel.begin_transfer(receiving, name), _path_of(name))


def describe_end(
    channel: _core.Channel, name: _core.Name | None, ends: tuple[bool, ...]
) -> tuple[bytes, spawn.Inheritance | None]:
    """Returns a channel's handle for a process that gets these ends of it (True: receiving)."""
    popen = context.get_spawning_popen()
    if popen is None:
        return handle_of(channel, name, ends[-1]), None
    passenger = spawn.passenger(popen, channel.arena)
    for receiving in ends:
        channel.give_to(passenger.identity, receiving)
    return _core.make_handle(channel.arena, channel.block, 0, _path_of(name)), passenger.inheritance(name)


@contextlib.contextmanager
def open_channel(
    handle: bytes, inheritance: spawn.Inheritance | None, receiving: bool
) -> Iterator[tuple[_core.Channel, _core.Name | None]]:
    """Opens the channel of a handle.

    The caller makes the end inside the context. The end stays in transit until the context exits.

    Raises:
        ChannelClosed: The stream has ended before the handle was opened.
    """
    arena, block, transfer, giver_pid, name = spawn.adopt(handle, inheritance)
    channel = _core.Channel.open(arena, block)
    channel.check_transfer(transfer, receiving, giver_pid)
    yield channel, name
    channel.end_transfer(transfer, receiving, name)


def check_giveable(end: Any, what: str = "an end") -> None:
    """Attaches `end` before it is sent to another process. Raises ChannelClosed if it is closed."""
    if end.closed:
        raise ChannelClosed(f"{what} that was closed cannot be handed to another process")
    end._attach_inherited()


def reduce_end(end: Any, receiving: bool) -> tuple[Any, ...]:
    check_giveable(end)
    handle, inheritance = describe_end(end._channel, end._name, (receiving,))
    return open_end, (type(end), receiving, handle, inheritance, end.allow_pickle)


def open_end(cls: Any, receiving: bool, handle: bytes, inheritance: spawn.Inheritance | None, allow: bool) -> Any:
    with open_channel(handle, inheritance, receiving) as (channel, name):
        end = cls._of(channel, allow)
        end._name = name
    return end


def memory_handle(arena: _core.Arena, block: int, name: _core.Name | None) -> bytes:
    """Returns a handle of an arena, or of a block in it that this process holds, for a running process.

    The arena or block is in transit from now on.
    """
    return _core.make_handle(arena, block, _core.begin_transfer(arena, block, name), _path_of(name))


def reduce_memory(arena: _core.Arena, block: int, name: _core.Name | None) -> tuple[bytes, spawn.Inheritance | None]:
    """Does the same as `memory_handle`, or lets the process inherit the memory if it is being started."""
    popen = context.get_spawning_popen()
    if popen is None:
        return memory_handle(arena, block, name), None
    passenger = spawn.passenger(popen, arena)
    if block:
        arena.hold_for(passenger.identity, block)
    return _core.make_handle(arena, block, 0, _path_of(name)), passenger.inheritance(name)


def open_memory(
    handle: bytes,
    inheritance: spawn.Inheritance | None,
    opens: Callable[[_core.Arena, int, _core.Name | None], _T],
) -> _T:
    """Opens a memory handle: passes its arena, block and name to `opens`, and then ends the transfer."""
    arena, block, transfer, _, name = spawn.adopt(handle, inheritance)
    opened = opens(arena, block, name)
    _core.end_transfer(arena, block, transfer, name)
    return opened
