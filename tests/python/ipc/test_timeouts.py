"""How long calls block, and what ends a wait."""

from __future__ import annotations

import os
import queue
import re
import signal
import threading

import numpy as np
import peers
import pytest

import shmtree


class Interrupted(Exception):
    pass


@pytest.fixture
def interrupts():
    """Returns a function that calls its argument. Meanwhile, after 0.1 s, a signal handler raises at an arbitrary
    point."""

    def handler(number, frame):
        raise Interrupted

    def call(function, *arguments, **named):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        function(*arguments, **named)

    before = signal.signal(signal.SIGALRM, handler)
    yield call
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_raising_signal_handler_ends_get_and_loses_nothing(pair, interrupts):
    sender, receiver = pair
    with pytest.raises(Interrupted):
        interrupts(receiver.get, timeout=60)
    sender.put("later")
    assert receiver.get(timeout=30) == "later"


def test_raising_signal_handler_ends_put_and_sends_nothing(arena, interrupts):
    sender, receiver = arena.create_pair(capacity=1)
    sender.put("first")
    with pytest.raises(Interrupted):
        interrupts(sender.put, "second", timeout=60)
    assert receiver.get() == "first"
    assert receiver.empty()


def test_raising_signal_handler_ends_a_wait_for_acks(pair, interrupts):
    pair[0].put(1)
    with pytest.raises(Interrupted):
        interrupts(pair[0].wait_for_all_ack, timeout=60)


def test_returning_signal_handler_does_not_end_get(pair):
    sender, receiver = pair
    ran = []
    before = signal.signal(signal.SIGALRM, lambda *_: (ran.append(1), sender.put("from the handler")))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert receiver.get(timeout=60) == "from the handler"
    finally:
        signal.signal(signal.SIGALRM, before)
    assert ran == [1]


@pytest.mark.guarantee("timeouts")
def test_ctrl_c_ends_get(pair):
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))

    def wait() -> None:
        timer.start()
        pair[1].get(timeout=60)

    # A shell starts background jobs with SIGINT ignored, and Python keeps that setting.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            wait()
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_run_while_one_waits(pair):
    sender, receiver = pair
    got = []
    thread = threading.Thread(target=lambda: got.append(receiver.get(timeout=60)))
    thread.start()
    sender.put("from another thread")  # if the wait held the GIL, this line would run only after the wait
    thread.join(60)
    assert got == ["from another thread"]


def test_full_error_shows_queued_messages_and_capacity(arena):
    sender, _receiver = arena.create_pair(capacity=3)
    sender.put_many(range(3))
    with pytest.raises(queue.Full, match="3 of at most 3 messages"):
        sender.put_nowait(3)


def test_default_pair_passes_messages_between_processes(start):
    first, second = shmtree.create_pair(1), shmtree.create_pair(1)
    start(peers.echo, first[1], second[0], 50)
    for i in range(50):
        first[0].put(i, timeout=30)
        assert second[1].get(timeout=30) == i


@pytest.mark.parametrize("seconds", [0.1, 5, 2**70, -1])
def test_seconds_in_the_place_of_block_raise_and_name_timeout(pair, seconds):
    sender, receiver = pair
    wanted = rf"block is {seconds}; it must be True or False; pass seconds as timeout={seconds}"
    for call in (receiver.get, receiver.take, lambda block: sender.put("lost", block)):
        with pytest.raises(TypeError, match=re.escape(wanted)):
            call(seconds)
    sender.put("first", 1)
    assert receiver.get(0) == "first"
    with pytest.raises(queue.Empty):
        receiver.get(np.False_)
