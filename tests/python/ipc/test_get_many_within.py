"""`get_many` with `within`: how long it waits for more messages after the first one."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import shmtree


def pair(arena: shmtree.Arena) -> tuple[Any, Any]:
    return shmtree.create_pair(arena=arena)


def queue(arena: shmtree.Arena) -> tuple[Any, Any]:
    made: Any = shmtree.Queue(arena=arena)
    return made, made


def broadcast(arena: shmtree.Arena) -> tuple[Any, Any]:
    sender = shmtree.Broadcast(8, arena=arena)
    return sender, sender.subscribe()


every_end = pytest.mark.parametrize("make", [pair, queue, broadcast])


def after_the_first(receiver: Any, act: Callable[[], object]) -> threading.Thread:
    """Starts a thread that calls `act` when the first message is received."""

    def run() -> None:
        while receiver.qsize():
            time.sleep(0.001)
        act()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@every_end
def test_get_many_waits_within_for_more_messages(arena, make):
    sender, receiver = make(arena)
    sender.put(1)
    thread = after_the_first(receiver, lambda: sender.put(2))
    assert receiver.get_many(2, timeout=60, within=60) == [1, 2]
    thread.join(60)


@every_end
def test_get_many_returns_what_came_within(arena, make):
    sender, receiver = make(arena)
    sender.put(1)
    assert receiver.get_many(2, timeout=60, within=0.01) == [1]
    sender.put(2)
    assert receiver.get_many(1, within=None) == [2]


@every_end
def test_signal_handler_within_loses_no_message(arena, make):
    class Alarm(Exception):
        """The exception of the signal handler."""

    def raises(*_: Any) -> None:
        raise Alarm

    sender, receiver = make(arena)
    before = signal.signal(signal.SIGUSR1, raises)
    try:
        sender.put(1)
        thread = after_the_first(receiver, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        assert receiver.get_many(2, timeout=60, within=60) == [1]
        with pytest.raises(Alarm):
            receiver.get_many(2, timeout=60, within=60)
        thread.join(60)
        sender.put(2)
        assert receiver.get(timeout=60) == 2
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_end_of_stream_within_returns_the_messages(arena):
    sender, receiver = pair(arena)
    sender.put(1)
    thread = after_the_first(receiver, sender.close)
    assert receiver.get_many(2, timeout=60, within=60) == [1]
    thread.join(60)
    with pytest.raises(shmtree.ChannelClosed):
        receiver.get(timeout=60)


@every_end
def test_invalid_within_raises(arena, make):
    sender, receiver = make(arena)
    sender.put(1)
    with pytest.raises(TypeError, match="within"):
        receiver.get_many(2, within="soon")
    assert receiver.get(timeout=60) == 1
