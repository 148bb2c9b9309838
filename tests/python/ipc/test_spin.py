"""Spinning on request: where it is set, errors, and that waits which spin end as other waits do."""

from __future__ import annotations

import math
import os
import queue
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest
from forks import fork

import shmtree

HOUR = 3600.0


def make_ends(arena: shmtree.Arena) -> list[Any]:
    """Returns one end of each kind in the arena."""
    broadcast = shmtree.Broadcast(arena=arena)
    return [*arena.create_pair(), arena.Queue(), broadcast, broadcast.subscribe(), shmtree.Latest(arena=arena)]


def spinning_pair() -> tuple[Any, Any]:
    sender, receiver = shmtree.create_pair(1)
    sender.spin = receiver.spin = HOUR
    return sender, receiver


def test_ends_begin_with_the_spin_of_their_arena() -> None:
    assert [end.spin for end in make_ends(shmtree.Arena(16 << 20, spin=0.25))] == [0.25] * 6


def test_the_spin_of_an_end_can_be_set() -> None:
    for end in make_ends(shmtree.Arena(16 << 20)):
        assert end.spin == 0.0
        end.spin = 1
        assert end.spin == 1.0
        end.spin = math.inf
        assert end.spin > HOUR


def test_environment_sets_the_spin_of_a_process() -> None:
    program = "import shmtree as s; print(s.create_pair()[1].spin, s.Arena(16 << 20, spin=0).create_pair()[1].spin)"
    environment = {**os.environ, "SHMTREE_SPIN": "0.5"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0.5", "0.0"]
    environment["SHMTREE_SPIN"] = "often"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert 'ValueError: the environment variable SHMTREE_SPIN is "often"; it must be a number of seconds' in done.stderr


@pytest.mark.parametrize("wrong", [-1, -0.5, math.nan, -math.inf])
def test_invalid_spin_raises_value_error(wrong: float) -> None:
    _, receiver = shmtree.create_pair()
    with pytest.raises(ValueError, match="spin is .*; it must be a number of seconds, 0 or more"):
        receiver.spin = wrong
    with pytest.raises(ValueError, match="spin is"):
        shmtree.Arena(16 << 20, spin=wrong)
    assert receiver.spin == 0.0


@pytest.mark.parametrize("wrong", ["1", True, [1]])
def test_spin_that_is_no_number_raises_type_error(wrong: Any) -> None:
    _, receiver = shmtree.create_pair()
    with pytest.raises(TypeError, match="spin is .*; it must be a number of seconds, 0 or more"):
        receiver.spin = wrong


def test_the_spin_of_an_arena_can_be_set() -> None:
    arena = shmtree.Arena(16 << 20)
    arena.spin = 0.5
    assert (arena.spin, arena.create_pair()[0].spin) == (0.5, 0.5)


def test_exception_of_a_number_passes_through() -> None:
    class Broken:
        def __float__(self) -> float:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        shmtree.create_pair()[0].spin = Broken()  # type: ignore[assignment]


def test_spinning_ends_pass_messages_between_processes() -> None:
    requests, replies = spinning_pair(), spinning_pair()

    def echo() -> None:
        requests[0].close(), replies[1].close()
        for message in requests[1]:
            replies[0].put(message)
        replies[0].close()

    child = fork(echo)
    requests[1].close(), replies[0].close()
    for number in range(500):
        requests[0].put(number)
        assert replies[1].get() == number
    requests[0].close()
    assert list(replies[1]) == []
    assert os.waitpid(child, 0)[1] == 0


def test_spinning_calls_time_out() -> None:
    sender, receiver = spinning_pair()
    with pytest.raises(queue.Empty):
        receiver.get(timeout=0.01)
    sender.put(0)
    with pytest.raises(queue.Full):
        sender.put(1, timeout=0.01)


def test_spinning_get_releases_the_gil() -> None:
    sender, receiver = spinning_pair()
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.append(receiver.get()))
    thread.start()
    sender.put(3)
    thread.join()
    assert got == [3]


def test_close_ends_a_spinning_get() -> None:
    _sender, receiver = spinning_pair()
    ended: list[type] = []

    def wait() -> None:
        try:
            receiver.get()
        except shmtree.ChannelClosed as error:
            ended.append(type(error))

    thread = threading.Thread(target=wait)
    thread.start()
    receiver.close()
    thread.join()
    assert ended


def test_ctrl_c_ends_a_spinning_get() -> None:
    _sender, receiver = spinning_pair()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    ctrl_c = threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))

    def get() -> None:
        ctrl_c.start()
        receiver.get()

    try:
        with pytest.raises(KeyboardInterrupt):
            get()
    finally:
        ctrl_c.join()
        signal.signal(signal.SIGINT, before)


def test_spinning_get_raises_after_the_death_of_its_peer() -> None:
    sender, receiver = spinning_pair()

    def put() -> None:
        receiver.close()
        sender.put(1)
        os.kill(os.getpid(), signal.SIGKILL)

    child = fork(put)
    sender.close()
    assert receiver.get() == 1
    with pytest.raises(shmtree.PeerDied):
        receiver.get()
    os.waitpid(child, 0)
