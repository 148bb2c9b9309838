"""Putting and getting: what a pair can send, in which order, and how much space it has."""

from __future__ import annotations

import math
import queue
import threading

import numpy as np
import peers
import pytest

import shmtree
import shmtree.compat.memory
import shmtree.compat.py_sharedmemory


def test_pair_with_only_a_capacity_carries_10_bytes_then_50_mb():
    sender, receiver = shmtree.create_pair(capacity=5)
    sender.put(b"0123456789")
    sender.put(np.ones(50_000_000, np.uint8))
    assert receiver.get() == b"0123456789"
    assert receiver.get().sum() == 50_000_000


@pytest.mark.parametrize("capacity", [None, 0])
def test_unlimited_channel_accepts_5000_messages(arena, capacity):
    sender, receiver = arena.create_pair(capacity=capacity)
    for i in range(5000):
        sender.put_nowait(i)
    assert receiver.qsize() == 5000
    assert [receiver.get_nowait() for _ in range(5000)] == list(range(5000))
    assert sender.capacity is None


def test_put_many_keeps_order_and_returns_the_count(arena):
    sender, receiver = arena.create_pair(capacity=None)
    items = [i if i % 7 else np.full(2000, i) for i in range(200)]
    assert sender.put_many(iter(items)) == 200
    got = receiver.get_many(1000)
    assert len(got) == 200
    assert all(np.array_equal(a, b) for a, b in zip(items, got))


def test_put_many_publishes_each_item_before_the_next(arena):
    sender, receiver = arena.create_pair(capacity=8)
    seen = []

    def asks_for_each():
        for number in range(3):
            yield number
            seen.append(receiver.get_nowait())
            sender.put("its own")
            seen.append(receiver.get_nowait())

    assert sender.put_many(asks_for_each()) == 3
    assert seen == [0, "its own", 1, "its own", 2, "its own"]


def test_put_many_sends_the_items_before_an_unsendable_one(pair):
    sender, receiver = pair
    with pytest.raises((TypeError, AttributeError)) as raised:
        sender.put_many([1, 2, threading.Lock(), 4])
    assert raised.value.sent == 2
    assert receiver.get_many(9) == [1, 2]


@pytest.mark.guarantee("put-survives-sender")
def test_message_survives_the_exit_of_its_sender(arena, start):
    sender, receiver = arena.create_pair()
    child = start(peers.put_all, sender, [np.arange(50_000)])
    sender.close()
    child.join(30)
    assert np.array_equal(receiver.get(timeout=60), np.arange(50_000))


def test_stats_count_messages_members_and_rate(pair):
    sender, receiver = pair
    sender.put_many(range(3))
    receiver.get()
    stats = sender.stats()
    assert (stats["put"], stats["received"], stats["queued"], stats["capacity"]) == (3, 1, 2, 8)
    assert (stats["senders"], stats["receivers"]) == (1, 1)
    assert receiver.stats()["put_per_s"] == 0
    sender.put(1)
    assert receiver.stats()["put_per_s"] > 0


@pytest.mark.parametrize("name", ["create_shared_memory_pair", "SharedMemorySender", "SharedMemoryReceiver"])
def test_names_of_py_sharedmemory_are_only_in_compat(name):
    assert not hasattr(shmtree, name)
    assert hasattr(shmtree.compat.memory, name) and hasattr(shmtree.compat.py_sharedmemory, name)


@pytest.mark.parametrize("module", [shmtree.compat.memory, shmtree.compat.py_sharedmemory])
def test_compat_wait_for_all_ack_returns_false_for_late_acks(module):
    sender, receiver = module.create_shared_memory_pair(2)
    assert isinstance(sender, module.SharedMemorySender) and isinstance(receiver, module.SharedMemoryReceiver)
    assert sender.put("x") is None
    assert sender.wait_for_all_ack(timeout=0.01) is False
    receiver.get()
    assert sender.wait_for_all_ack(timeout=60) is True
    for end in (sender, receiver):
        end.close()
        with pytest.raises(BrokenPipeError), end:
            pass
    with pytest.raises(BrokenPipeError):
        sender.put("y")


def test_compat_memory_get_nowait_returns_none_when_empty():
    sender, receiver = shmtree.compat.memory.create_shared_memory_pair(capacity=1)
    assert receiver.get_nowait() is None
    assert sender.has_space()
    sender.put("x")
    assert not sender.has_space()
    assert receiver.get_nowait() == "x"
    assert shmtree.compat.memory.create_shared_memory_pair()[0].has_space()


def test_compat_py_sharedmemory_get_nowait_raises_empty():
    _sender, receiver = shmtree.compat.py_sharedmemory.create_shared_memory_pair()
    with pytest.raises(queue.Empty):
        receiver.get_nowait()


def test_compat_arguments_mean_the_same_as_in_the_originals():
    pair = shmtree.compat.py_sharedmemory.create_shared_memory_pair
    for capacity in (True, 1.5, "2"):
        with pytest.raises(TypeError, match="capacity"):
            pair(capacity)
    with pytest.raises(ValueError, match="capacity"):
        pair(-1)
    sender, receiver = pair(1)
    sender.put(data="x", timeout=math.inf)
    with pytest.raises(queue.Full):
        sender.put("y", timeout=-1)
    assert receiver.get(timeout=math.inf) == "x"
    for call in (lambda: sender.put(1, timeout=math.nan), lambda: receiver.get(timeout=math.nan)):
        with pytest.raises(ValueError, match="NaN"):
            call()


@pytest.mark.parametrize("module", [shmtree.compat.memory, shmtree.compat.py_sharedmemory])
def test_compat_arrays_hold_no_shared_memory(module):
    with shmtree.Arena(64 << 20) as arena:
        sends, receives = arena.create_pair()
        sender = module.SharedMemorySender._of(sends._channel, True)
        receiver = module.SharedMemoryReceiver._of(receives._channel, True)
        kept = []
        for number in range(3):
            sender.put(np.full(1 << 18, number, np.int64))
            kept.append(receiver.get(timeout=60))
        kept[0][:] = 9

        assert [array[-1] for array in kept] == [9, 1, 2]
        assert arena.holders() == []
        sender.put(kept[1])
        view = receiver.get(timeout=60, copy=None)
        assert len(arena.holders()) == 1
        del view


def test_thousand_pairs_work_in_one_process():
    pairs = [shmtree.create_pair(2) for _ in range(1000)]
    for i, (sender, _) in enumerate(pairs):
        sender.put(i)
    assert [receiver.get_nowait() for _, receiver in pairs] == list(range(1000))


def test_repr_shows_queued_count_or_closed(pair):
    sender, receiver = pair
    sender.put(1)
    assert repr(sender) == "<Sender, 1 of 8 queued>"
    receiver.close()
    assert repr(receiver) == "<Receiver, closed>"
