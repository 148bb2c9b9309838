"""How often a message is taken, how many at once, and what happens to a message that is never acknowledged."""

from __future__ import annotations

import multiprocessing as mp
import os
import queue
import signal
import threading
from collections.abc import Iterator

import numpy as np
import peers
import pytest

import shmtree


@pytest.fixture
def twice(arena: shmtree.Arena) -> Iterator[tuple[shmtree.Sender, shmtree.Receiver]]:
    """Yields a pair that delivers a message at most twice."""
    sender, receiver = arena.create_pair(max_attempts=2)
    yield sender, receiver
    sender.close()
    receiver.close()


def take_twice(receiver):
    for _ in range(2):
        receiver.take(timeout=30).nack()


def test_attempts_count_killed_takers(pair, start):
    sender, receiver = pair
    sender.put("x")
    ours, theirs = mp.Pipe()
    for attempt in range(1, 3):
        child = start(peers.take_and_hang, receiver, theirs)
        assert ours.recv() == ("x", attempt > 1)
        os.kill(child.pid, signal.SIGKILL)
        child.join(30)
    assert receiver.take(timeout=30).attempts == 3


@pytest.mark.guarantee("attempts-and-dead-letters")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_job_that_kills_two_workers_is_dead_lettered(twice, start, method):
    sender, receiver = twice
    sender.put_many(["poison", "a job"])
    done, told = mp.Pipe(duplex=False)
    for killed in (True, True, False):
        worker = start(peers.work_until_poisoned, receiver, told, method=method)
        worker.join(60)
        assert worker.exitcode == (-signal.SIGKILL if killed else 0)
        assert sender.stats()["taken"] == 0  # stats() detects dead processes
    assert done.recv() == ("a job", 1)
    [delivery] = receiver.dead_letters()
    assert (delivery.item, delivery.ticket, delivery.attempts) == ("poison", 0, 2)


def test_stream_with_only_dead_letters_has_ended(twice):
    sender, receiver = twice
    sender.put("x")
    sender.close()
    take_twice(receiver)
    assert list(receiver) == []
    assert [delivery.item for delivery in receiver.dead_letters()] == ["x"]


def test_process_that_only_lists_dead_letters_is_no_receiver(arena, start):
    sender, receiver = arena.create_pair(capacity=1, max_attempts=1)
    sender.put("x")
    ours, theirs = mp.Pipe()
    child = start(peers.take_and_hang, receiver, theirs)
    ours.recv()
    os.kill(child.pid, signal.SIGKILL)
    child.join(30)
    assert len(receiver.dead_letters()) == 1
    sender.put("y")
    with pytest.raises(shmtree.PeerDied):
        sender.put("z", timeout=30)


class LoadedWhereAllowed:
    """Loading an instance kills the process, unless `allowed` is set."""

    allowed = False

    def __setstate__(self, state: object) -> None:
        if not self.allowed:
            os.kill(os.getpid(), signal.SIGKILL)

    def __getstate__(self) -> str:
        return "state"


def test_dead_letter_can_be_acked_without_loading_it(arena, start):
    sender, receiver = arena.create_pair(max_attempts=1)
    ticket = sender.put(LoadedWhereAllowed())
    child = start(peers.take_and_hang, receiver, None)
    child.join(30)
    assert child.exitcode == -signal.SIGKILL
    [delivery] = receiver.dead_letters()
    assert (delivery.ticket, delivery.attempts, delivery.settled) == (ticket, 1, False)
    delivery.ack()
    assert receiver.dead_letters() == []


def test_dead_letter_item_that_fails_to_load_raises_and_stays(twice):
    sender, receiver = twice
    sender.put("x")
    take_twice(receiver)
    [delivery] = receiver.dead_letters()
    child = os.fork()
    if child == 0:
        try:
            assert delivery.item is None
        except ValueError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert delivery.item == "x"


def test_waiting_take_continues_after_an_ack(arena):
    sender, receiver = arena.create_pair(max_unacked=1)
    sender.put_many("ab")
    first = receiver.take()
    taken = []
    thread = threading.Thread(target=lambda: taken.append(receiver.take(timeout=30).item))
    thread.start()
    first.ack()
    thread.join(30)
    assert taken == ["b"]


@pytest.mark.guarantee("nack-over-capacity")
def test_nacked_messages_may_exceed_the_capacity_and_block_put(pair):
    sender, receiver = pair
    sender.put_many(range(8))
    taken = [receiver.take() for _ in range(8)]
    sender.put_many(range(8))
    for delivery in taken:
        delivery.nack()
    assert receiver.qsize() == 16
    for _ in range(9):
        assert not sender.has_space()
        assert receiver.full()
        assert not sender._ready_to_put()
        with pytest.raises(queue.Full, match="of at most 8 messages"):
            sender.put_nowait("x")
        receiver.get(False)
    assert sender.has_space()
    sender.put_nowait("x")


@pytest.mark.parametrize("name", ["max_unacked", "max_attempts"])
def test_invalid_limits_raise_with_their_name_and_value(arena, name):
    for make in (arena.create_pair, shmtree.create_pair):
        with pytest.raises(ValueError, match=f"{name} is -1; it must be positive"):
            make(**{name: -1})
        with pytest.raises(ValueError, match=f"{name} is -1; it must be positive"):
            make(**{name: np.int64(-1)})
        with pytest.raises(TypeError, match=f"{name} is 1.5; it must be an int"):
            make(**{name: 1.5})
        with pytest.raises(OverflowError, match=f"{name} is {2**63}"):
            make(**{name: 2**63})
        sender, _ = make(**{name: None})
        assert sender.stats()[name] == 0
    with pytest.raises(ValueError, match=f"max_attempts is {2**32}; it must be at most {2**32 - 1}"):
        arena.create_pair(max_attempts=2**32)


def test_dead_letter_stays_readable_after_the_receiver_closed(arena):
    sender, receiver = arena.create_pair(max_attempts=1)
    sender.put({"job": 1})
    receiver.take().nack()

    with receiver:
        (dead,) = receiver.dead_letters()

    assert dead.item == {"job": 1}
    dead.ack()


def test_open_dead_letter_is_hidden_until_it_is_acked(twice):
    sender, receiver = twice
    sender.put([1])
    take_twice(receiver)
    with pytest.raises(KeyError), receiver.dead_letters()[0]:
        raise KeyError
    with receiver.dead_letters()[0] as delivery:
        assert receiver.dead_letters() == []
        assert delivery.item is delivery.item
    assert receiver.dead_letters() == []
    assert sender.stats()["dead_letters"] == 0
