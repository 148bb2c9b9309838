"""Waits for receivers in poll loops and coroutines.

A descriptor wakes a waiter for messages and for ends that are closed. The death of a peer wakes no waiter and has to be
polled. Therefore no wait is longer than a slice.
"""

from __future__ import annotations

import functools
import queue
import selectors
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from ..errors import ChannelClosed, ShutDown
from .arguments import deadline_after, left
from .wake_hub import SLICE_S, Awaited, until_usable, until_woken, wake

T = TypeVar("T")

_FIRST_POLL_S, _MAX_POLL_S = 0.0001, 0.005


def wait(receivers: Iterable[T], timeout: float | None = None) -> list[T]:
    """Returns those of `receivers` that are ready: their next `get` returns or raises at once.

    Args:
        receivers: Receivers, queues, subscribers, and any other objects with a ``fileno``, such as connections and
            sockets. The latter are ready when they are readable.
        timeout: Seconds to wait for the first one; None waits indefinitely.

    Returns:
        The ready ones; an empty list after `timeout` seconds.

    Raises:
        TypeError: `receivers` is not a list, or an object in it has no ``fileno``.
    """
    objects = _checked(receivers)
    deadline = deadline_after(timeout)
    with _Descriptors() as descriptors, selectors.DefaultSelector() as selector:
        watched: dict[int, list[T]] = {}
        while True:
            ready = [each for each in objects if _is_ready(each)]
            if not watched:
                for each in objects:
                    watched.setdefault(descriptors.of(each), []).append(each)
                for descriptor, waiting in watched.items():
                    _register(selector, descriptor, waiting)
            readable = {key.fd for key, _ in selector.select(0)}
            ready += [
                each
                for descriptor in readable
                for each in watched[descriptor]
                if not hasattr(each, "_ready") and each not in ready
            ]
            if ready:
                return [each for each in objects if each in ready]
            rest = left(deadline)
            if rest == 0 or not objects:
                return []
            began = time.monotonic()
            selector.select(SLICE_S if rest is None else min(rest, SLICE_S))
            for each in objects:
                if hasattr(each, "_note_wait_to_get"):
                    each._note_wait_to_get(time.monotonic() - began)


class _Descriptors:
    """The descriptors of one call of `wait`.

    They stay open for the next call. If `wait` fails, it closes those that it has opened.
    """

    def __init__(self) -> None:
        self._opened: list[Any] = []

    def of(self, item: Any) -> int:
        if not hasattr(item, "_open_to_wait"):
            return int(item.fileno())
        descriptor, is_new = item._open_to_wait()
        if is_new:
            self._opened.append(item)
        return int(descriptor)

    def __enter__(self) -> _Descriptors:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            for each in self._opened:
                each._close_after_wait()


def _register(selector: selectors.BaseSelector, descriptor: int, waiting: list[Any]) -> None:
    try:
        selector.register(descriptor, selectors.EVENT_READ)
    except OSError:
        for each in waiting:  # raises if another thread has closed the end
            _Descriptors().of(each)
        raise


def _checked(receivers: Any) -> list[Any]:
    # A single receiver is iterable, too; iterating over it would take its messages.
    if hasattr(receivers, "fileno") or not isinstance(receivers, Iterable):
        raise TypeError(f"receivers is a {type(receivers).__name__}; it must be a list of receivers")
    objects = list(receivers)
    for each in objects:
        if not hasattr(each, "fileno"):
            raise TypeError(f"receivers contains a {type(each).__name__}; each must be a receiver or have a fileno()")
    return objects


def _is_ready(item: Any) -> bool:
    ready = getattr(item, "_ready", None)
    return ready is not None and bool(ready())


# A future keeps its task and its loop alive, so futures are referenced weakly. Then the coroutines of a closed loop can
# be collected. Collection runs their `finally` blocks, which remove their entries.
_Woken = weakref.ref[Any]

#: Coroutines that wait to receive or to publish, in order of arrival, by loop and end. No entry is empty.
_lines: dict[tuple[int, int], deque[_Woken]] = {}


async def get_async(receiver: Any, timeout: float | None, copy: bool | None) -> Any:
    options = {} if copy is None else {"copy": copy}  # a subclass of a queue need not support shmtree's options
    return await receive_async(receiver, functools.partial(receiver.get_nowait, **options), timeout)


async def receive_async(receiver: Any, receive_now: Callable[[], T], timeout: float | None) -> T:
    """Returns the result of `receive_now`, which raises queue.Empty if there is nothing to receive."""
    return await in_turn(
        receiver, receive_now, queue.Empty, lambda rest: until_usable(Awaited.to_get(receiver), rest), timeout
    )


async def in_turn(
    end: object,
    attempt: Callable[[], T],
    not_yet: type[Exception] | tuple[type[Exception], ...],
    pause: Callable[[float | None], Awaitable[None]],
    timeout: float | None,
) -> T:
    """Returns the result of `attempt` once it does not raise `not_yet`; raises that after `timeout` seconds.

    Of the coroutines of a loop that wait for the same end, only the first one makes attempts. It awaits
    ``pause(seconds left)`` between two of them.
    """
    import asyncio

    # There is no await between an attempt that succeeds and the return, so a cancelled coroutine has done nothing.
    deadline = deadline_after(timeout)
    loop = asyncio.get_running_loop()
    key = (id(loop), id(end))
    if key not in _lines:
        try:
            return attempt()
        except not_yet:
            if left(deadline) == 0:
                raise
    line = _lines.setdefault(key, deque())
    turn = loop.create_future()
    place = weakref.ref(turn)
    line.append(place)
    try:
        if line[0] is not place:
            await until_woken(turn, left(deadline))
        # A coroutine that is still not the first one in line has reached its deadline. It makes a single attempt.
        while True:
            try:
                return attempt()
            except not_yet:
                rest = left(deadline)
                if rest == 0 or line[0] is not place:
                    raise
            await pause(rest)
    finally:
        line.remove(place)
        if not line:
            del _lines[key]
        elif not loop.is_closed() and (first := line[0]()) is not None:
            wake(first)


async def next_async(get_async: Callable[[], Awaitable[T]]) -> T:
    """Returns the next item of an ``async for``."""
    try:
        return await get_async()
    except (ChannelClosed, ShutDown):
        raise StopAsyncIteration from None


async def until(attempt: Callable[[], T], awaited: Callable[[], Awaited], timeout: float | None) -> T:
    """Calls `attempt` until it no longer raises queue.Empty, for up to `timeout` seconds, and returns its result."""
    alone = object()  # other coroutines may wait for something else of the same end
    return await in_turn(alone, attempt, queue.Empty, lambda rest: until_usable(awaited(), rest), timeout)


async def put_async(end: Any, obj: object, timeout: float | None, move: bool) -> Any:
    import asyncio

    pause_s = _FIRST_POLL_S

    async def pause(rest: float | None) -> None:
        nonlocal pause_s
        if end._ready_to_put():
            # There is space, but not for this message. No wake-up reports free bytes, so poll.
            await asyncio.sleep(pause_s if rest is None else min(rest, pause_s))
            pause_s = min(2 * pause_s, _MAX_POLL_S)
        else:
            await until_usable(Awaited.to_put(end), rest)

    put_now = functools.partial(end.put_nowait, obj, **({"move": True} if move else {}))
    return await in_turn(object(), put_now, queue.Full, pause, timeout)
