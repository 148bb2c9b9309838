"""Ends, shared arrays, lists and arenas inside messages, passed as handles without pickle, also where it is refused.

The receiver of such a message is attached to the end, or finds it closed. An end that no process has any more, or that
arrives after its stream is over, arrives closed and raises ChannelClosed when it is used. A shared array or list then
raises FileNotFoundError. The message and those after it are received all the same. Subclasses are pickled.

A message may contain anything. This module checks the types of its parts; the code that opens a handle checks the
handle. Invalid data raises CorruptMessage. An end that came through a channel which refuses pickles refuses them too.
"""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from .. import _core
from .._codec import portable
from .._process import arenas, handles
from ..errors import ChannelClosed, CorruptMessage, IncompatibleArena, OutOfSharedMemory
from .arena import Arena
from .broadcast import Broadcast, Subscriber
from .channel import Receiver, Sender
from .latest import Latest
from .list_handles import open_reference, reference_of
from .pipe import Connection
from .queue import BaseQueue, JoinableQueue, Queue, SimpleQueue
from .shared_array import SharedArray
from .shared_list import SharedList

_E = TypeVar("_E", Sender, Receiver)
_Q = TypeVar("_Q", bound=BaseQueue[Any])
_T = TypeVar("_T")
_P = TypeVar("_P", Latest, Broadcast)
_C = TypeVar("_C", Latest, Broadcast, Subscriber)


#: Errors of opening that mean this process lacks a resource. The handle may be good.
_OF_THIS_PROCESS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR})


def parts(flat: object, *types: type) -> Any:
    """Returns `flat`, as a tuple of these types. Raises CorruptMessage for anything else."""
    if type(flat) is not tuple or tuple(map(type, flat)) != types:
        raise CorruptMessage(f"an end in the message is not a tuple of {', '.join(each.__name__ for each in types)}")
    return flat


@contextlib.contextmanager
def _checked() -> Iterator[None]:
    """Converts the errors of opening an end that is in a message.

    An invalid handle, or invalid data beside it, raises CorruptMessage. If this process has no descriptors or memory
    left to open the end, raises OutOfSharedMemory, so that the receiver returns the message to the channel.
    """
    try:
        yield
    except (CorruptMessage, ChannelClosed, FileNotFoundError):
        raise
    except OSError as error:
        if error.errno in _OF_THIS_PROCESS:
            raise OutOfSharedMemory(f"an end in the message cannot be opened now: {error}") from error
        raise CorruptMessage(f"an end in the message is invalid: {error}") from error
    except (ValueError, TypeError, OverflowError, IncompatibleArena) as error:
        raise CorruptMessage(f"an end in the message is invalid: {error}") from error


def _flatten(end: Any) -> object:
    handles.check_giveable(end)
    receiving = not isinstance(end, Sender)
    return handles.handle_of(end._channel, end._name, receiving), end.allow_pickle


def _closed(become: Callable[[_core.Channel], Any]) -> Any:
    """Returns a closed end: makes a channel only for it, converts it with `become`, and closes it."""
    channel, _ = _core.make_channel("pair", arena=arenas.default_arena(), allow_pickle=False)
    end = become(channel)
    end.close()
    return end


def _open(
    flat: object, allowed: bool, receiving: bool, is_queue: bool, become: Callable[[_core.Channel, bool], Any]
) -> Any:
    handle, allow = parts(flat, bytes, bool)
    try:
        with _checked(), handles.open_channel(handle, None, receiving) as (channel, name):
            if channel.is_queue != is_queue:
                raise ValueError(
                    "the handle belongs to a pair, not to a queue"
                    if is_queue
                    else "the handle belongs to a queue, not to a pair"
                )
            end = become(channel, allow and allowed)
            end._name = name
            return end
    except (FileNotFoundError, ChannelClosed):
        return _closed(lambda channel: become(channel, False))


def _register_end(cls: type[_E], receiving: bool) -> None:
    def unflatten(flat: object, allowed: bool) -> _E:
        end: _E = _open(flat, allowed, receiving, False, cls._of)
        return end

    _core._register_end(cls, f"shmtree:{cls.__name__}", _flatten, unflatten)


def _register_queue(cls: type[_Q]) -> None:
    def become(channel: _core.Channel, allow: bool) -> _Q:
        queue = cls.__new__(cls)
        queue._become(channel, None, allow)
        return queue

    def unflatten(flat: object, allowed: bool) -> _Q:
        queue: _Q = _open(flat, allowed, True, True, become)
        if not queue.closed:
            arenas.note_given(queue)
        return queue

    _core._register_end(cls, f"shmtree:{cls.__name__}", _flatten, unflatten)


def _flatten_connection(connection: Connection) -> object:
    return connection._receiver, connection._sender


def _open_connection(flat: object, _: bool) -> Connection:
    if type(flat) is tuple and len(flat) == 2:
        receiver, sender = flat
        if isinstance(receiver, Receiver | None) and isinstance(sender, Sender | None) and flat != (None, None):
            return Connection._of(receiver, sender)
    raise CorruptMessage("a connection in the message is not a tuple of a Receiver and a Sender")


def opened(handle: bytes, opens: Callable[[_core.Arena, int, _core.Name | None], _T], gone: Callable[[], _T]) -> _T:
    """Opens what a memory handle refers to. Returns `gone()` if no process has it any more."""
    try:
        with _checked():
            return handles.open_memory(handle, None, opens)
    except FileNotFoundError:
        return gone()


def _closing(end: _C) -> _C:
    end.close()
    return end


def _flatten_array(array: SharedArray) -> object:
    memory = array.array
    handle = handles.memory_handle(array._home, _core.block_of(memory), array._name)
    return (handle, memory.shape, memory.dtype, *(() if array._torch_dtype is None else (array._torch_dtype,)))


def _open_array(flat: object, _: bool) -> SharedArray:
    if type(flat) is not tuple or len(flat) not in (3, 4) or not isinstance(flat[2], np.dtype) or flat[2].hasobject:
        raise CorruptMessage("a shared array in the message is not a tuple of a handle, a shape and a dtype")
    handle, shape, dtype = flat[:3]
    torch_dtype = flat[3] if len(flat) == 4 else None
    if torch_dtype is not None and (type(torch_dtype) is not str or torch_dtype not in _core.DTYPES):
        raise CorruptMessage("a shared array in the message has a dtype that torch does not have")
    parts((handle, shape), bytes, tuple)
    return opened(
        handle,
        lambda core, block, name: SharedArray._of(core, core.open_array(block, shape, dtype, "C"), name, torch_dtype),
        SharedArray._gone,
    )


def _flatten_list(items: SharedList[Any]) -> object:
    return reference_of(items._open()), items._places, items._allow_pickle


def _open_list(flat: object, allowed: bool) -> SharedList[Any]:
    reference, places, allow = parts(flat, bytes, range, bool)
    try:
        with _checked():
            memory = open_reference(reference, None)
            if not allowed and not memory.is_sealed:
                raise CorruptMessage(
                    "the message has a shared list in a file, which its sender could shorten, and the channel refuses "
                    "pickles: only a list in memory may pass through it"
                )
    except FileNotFoundError:
        return SharedList._of(None, _checked_places(places, sys.maxsize), False)
    return SharedList._of(memory, _checked_places(places, len(memory.mapped)), allow and allowed)


def _checked_places(places: range, length: int) -> range:
    if places and not (0 <= places[0] < length and 0 <= places[-1] < length):
        raise CorruptMessage(f"the message has the items {places} of a shared list of {length} items")
    return places


def _register_published(cls: type[_P], gone: Callable[[], _P]) -> None:
    def unflatten(flat: object, allowed: bool) -> _P:
        handle, allow = parts(flat, bytes, bool)
        return opened(
            handle,
            lambda core, block, name: cls._opened(core, block, name, allow and allowed),
            lambda: _closing(gone()),
        )

    _core._register_end(cls, f"shmtree:{cls.__name__}", cls._flatten, unflatten)


def _empty_latest() -> Latest:
    return Latest._of(*_core.make_latest(arena=arenas.default_arena(), allow_pickle=False))


def _empty_broadcast() -> Broadcast:
    return Broadcast._of(*_core.make_broadcast(1, arena=arenas.default_arena(), allow_pickle=False))


def _flatten_subscriber(subscriber: Subscriber) -> object:
    arena, block = subscriber._give()
    return handles.memory_handle(arena, block, subscriber._name), subscriber.allow_pickle


def _open_subscriber(flat: object, allowed: bool) -> Subscriber:
    handle, allow = parts(flat, bytes, bool)
    return opened(
        handle,
        lambda core, block, name: Subscriber._of(core, block, allow and allowed, name),
        lambda: _closing(_empty_broadcast().subscribe()),
    )


def _flatten_arena(arena: Arena) -> object:
    return (handles.memory_handle(arena._open(), 0, arena._name),)


def _open_arena(flat: object, _: bool) -> Arena:
    (handle,) = parts(flat, bytes)
    return opened(handle, Arena._opened, lambda: Arena._of(None, None))


_register_end(Sender, False)
_register_end(Receiver, True)
_register_queue(Queue)
_register_queue(JoinableQueue)
_register_queue(SimpleQueue)
_core._register_end(Connection, "shmtree:Connection", _flatten_connection, _open_connection)
_core._register_end(SharedArray, "shmtree:SharedArray", _flatten_array, _open_array)
_core._register_end(SharedList, "shmtree:SharedList", _flatten_list, _open_list)
_register_published(Latest, _empty_latest)
_register_published(Broadcast, _empty_broadcast)
_core._register_end(Subscriber, "shmtree:Subscriber", _flatten_subscriber, _open_subscriber)
_core._register_end(Arena, "shmtree:Arena", _flatten_arena, _open_arena)

portable.handles += [Sender, Receiver, BaseQueue, Connection, SharedArray, SharedList, Latest, Broadcast, Subscriber]
portable.handles += [Arena]
