"""close() releases names, descriptors and mappings at once, except those that views and other objects still need."""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import threading

import numpy as np
import pytest
from footprints import footprint, own_names, use, warm_up

import shmtree

pytestmark = pytest.mark.usefixtures("runtime_directory")


@pytest.fixture(autouse=True)
def _warm():
    warm_up()


def is_watched(number: int) -> bool:
    """Returns True if an epoll of this process watches the descriptor."""
    for info in os.listdir("/proc/self/fdinfo"):
        with contextlib.suppress(OSError), open(f"/proc/self/fdinfo/{info}") as lines:
            if any(line.split()[:2] == ["tfd:", str(number)] for line in lines):
                return True
    return False


@pytest.mark.guarantee("close-releases")
def test_100_closed_named_pairs_leave_nothing_behind(name):
    before = footprint()
    pairs = [shmtree.create_pair(name=f"{name[:100]}-{i}") for i in range(100)]
    for sender, receiver in pairs:
        use(sender, receiver)
    assert all(now >= then + 100 for now, then in zip(footprint(), before, strict=True))
    for sender, receiver in pairs:
        sender.close()
        with receiver:
            pass
    assert footprint() == before
    assert all(end.closed for pair in pairs for end in pair)


def test_closed_pairs_and_private_arenas_leave_nothing_behind():
    before = footprint()
    arenas = [shmtree.Arena(16 << 20) for _ in range(20)]
    pairs = [arena.create_pair() for arena in arenas]
    for arena, (sender, receiver) in zip(arenas, pairs, strict=True):
        use(sender, receiver)
        arena.close()
        sender.close()
        receiver.close()
    assert footprint() == before
    assert all(arena.closed for arena in arenas)


def test_closed_named_queue_and_arena_leave_nothing_behind(name):
    before = footprint()
    q = shmtree.Queue(name=name)
    q.fileno()
    q.put(1)
    assert q.get() == 1
    arena = shmtree.Arena(1 << 20, name=name + "a")
    assert footprint() != before
    q.close()
    arena.close()
    assert footprint() == before
    assert repr(arena) == "<Arena, closed>"
    assert repr(q) == "<Queue, closed>"


@pytest.mark.guarantee("close-releases")
def test_view_keeps_its_block_after_close(name):
    before = footprint()
    sender, receiver = shmtree.create_pair(name=name)
    sender.put(np.arange(100_000))
    view = receiver.get()
    sender.close()
    receiver.close()
    assert footprint()[0] == before[0]
    assert footprint()[2] > before[2]
    assert view.sum() == sum(range(100_000))
    del view
    assert footprint() == before


def test_closed_channel_is_released_after_its_last_ack(name):
    before = footprint()
    sender, receiver = shmtree.create_pair(name=name)
    sender.put(1)
    delivery = receiver.take()
    sender.close()
    receiver.close()
    delivery.ack()
    assert footprint() == before


def test_close_leaves_the_other_end_and_other_objects_usable(name):
    sender, receiver = shmtree.create_pair(name=name)
    again = pickle.loads(pickle.dumps(receiver))
    receiver.close()
    sender.put(1)
    assert again.get() == 1
    assert [known.name for known in own_names()] == [name]
    sender.close()
    assert list(again) == []
    again.close()
    assert own_names() == []


def test_last_close_in_a_process_closes_the_descriptor(arena):
    sender, receiver = arena.create_pair()
    again = pickle.loads(pickle.dumps(receiver))
    number = receiver.fileno()
    receiver.close()
    assert again.fileno() == number
    with selectors.DefaultSelector() as selector:
        selector.register(number, selectors.EVENT_READ)
        sender.put(1)
        assert selector.select(10)
        again.close()
        with pytest.raises(OSError):
            os.fstat(number)
    for call in (receiver.fileno, again.fileno):
        with pytest.raises(shmtree.ChannelClosed):
            call()
    sender.put(2)


def test_wait_returns_when_its_receiver_is_closed(arena):
    _sender, receiver = arena.create_pair()
    number, _ = receiver._open_to_wait()
    ready = []
    thread = threading.Thread(target=lambda: ready.append(shmtree.wait([receiver], timeout=60)))
    thread.start()
    while not is_watched(number):
        pass
    receiver.close()
    thread.join(30)
    assert ready == [[receiver]]


def test_calls_of_a_closed_arena_or_queue_raise_channel_closed():
    q, arena = shmtree.JoinableQueue(), shmtree.Arena(1 << 20)
    for each in (q, arena):
        each.close()
        each.close()
        assert each.closed
        assert "closed" in repr(each)
        for call in (each.stats, lambda each=each: pickle.dumps(each)):
            with pytest.raises(shmtree.ChannelClosed):
                call()
    for call in (q.shutdown, arena.holders, arena.trim, lambda: arena.max_bytes):
        with pytest.raises(shmtree.ChannelClosed):
            call()


@pytest.mark.guarantee("close-releases")
def test_closing_both_ends_stops_all_exchanging_threads(name):
    before = footprint()
    for round in range(10):
        sender, receiver = shmtree.create_pair(4, name=f"{name[:100]}-{round}")
        closed = []
        busy = threading.Semaphore(0)

        def put(sender=sender, closed=closed, busy=busy):
            try:
                while True:
                    sender.put({"x": np.ones(3_000), "y": 1})
                    busy.release()
            except shmtree.ChannelClosed:
                closed.append(True)

        def get(receiver=receiver, closed=closed):
            try:
                while True:
                    assert receiver.get()["y"] == 1
            except shmtree.ChannelClosed:
                closed.append(True)

        threads = [threading.Thread(target=each) for each in (put, get) * 4]
        for thread in threads:
            thread.start()
        for _ in range(20):
            busy.acquire()
        sender.close()
        receiver.close()
        for thread in threads:
            thread.join(30)
        assert len(closed) == 8
        assert footprint() == before


class ClosesItsSender:
    """An object that closes the sender while it is being sent."""

    def __init__(self, sender):
        self.sender = sender

    def __reduce__(self):
        self.sender.close()
        return int, ()


def test_object_that_closes_its_own_sender_is_not_sent(name):
    before = footprint()
    sender, receiver = shmtree.create_pair(name=name, allow_pickle=True)
    receiver.close()
    with pytest.raises(shmtree.ChannelClosed):
        sender.put([ClosesItsSender(sender), sender.new_empty(10)])
    assert footprint() == before


class ClosedMeanwhile(shmtree.Receiver):
    """A receiver that closes itself after its descriptor was requested, as another thread could."""

    __slots__ = ()

    def _open_to_wait(self):
        descriptor = super()._open_to_wait()
        self.close()
        return descriptor


def test_wait_raises_if_its_receiver_closes_meanwhile(arena):
    _sender, receiver = arena.create_pair()
    waited_for = ClosedMeanwhile._of(receiver._channel)
    receiver.close()

    with pytest.raises(shmtree.ChannelClosed):
        shmtree.wait([waited_for], timeout=60)


def test_full_of_a_closed_receiver_raises(arena):
    _sender, receiver = arena.create_pair()
    receiver.close()
    with pytest.raises(shmtree.ChannelClosed):
        receiver.full()
