"""Programs that keep all messages that they receive do not block the senders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shmtree

MIB = 1 << 20


@pytest.fixture
def small() -> shmtree.Arena:
    return shmtree.Arena(max_bytes=64 * MIB)


def put_and_keep(put: Callable[[Any], Any], get: Callable[[], Any]) -> list[Any]:
    kept = []
    for i in range(100):
        put(np.full(MIB, i, np.uint8))
        kept.append(get())
    assert [int(array[-1]) for array in kept] == list(range(100))
    assert kept[0].base is not None
    assert kept[-1].base is None
    return kept


def test_receiver_that_keeps_its_items_is_given_copies(small: shmtree.Arena) -> None:
    sender, receiver = small.create_pair()
    put_and_keep(lambda item: sender.put(item, timeout=60), lambda: receiver.get(timeout=60))


@pytest.mark.guarantee("hoarding")
@pytest.mark.parametrize("on_lag", ["block", "skip", "latest", "raise"])
def test_subscriber_that_keeps_its_items_is_given_copies(small: shmtree.Arena, on_lag: Any) -> None:
    broadcast = shmtree.Broadcast(capacity=4, arena=small)
    subscriber = broadcast.subscribe(on_lag=on_lag)
    put_and_keep(lambda item: broadcast.put(item, timeout=60), lambda: subscriber.get(timeout=60))


@pytest.mark.guarantee("hoarding")
def test_latest_reader_that_keeps_its_items_is_given_copies(small: shmtree.Arena) -> None:
    latest = shmtree.Latest(arena=small)
    put_and_keep(lambda item: latest.publish(item, timeout=60), lambda: latest.get(timeout=60)[1])


def test_copy_false_returns_views_until_the_arena_is_full(small: shmtree.Arena) -> None:
    latest = shmtree.Latest(arena=small)
    kept: list[Any] = []

    def publish_and_keep() -> None:
        for i in range(100):
            latest.publish(np.full(MIB, i, np.uint8))
            kept.append(latest.get(copy=False)[1])

    with pytest.raises(shmtree.OutOfSharedMemory):
        publish_and_keep()
    assert all(array.base is not None for array in kept)
    assert len(kept) > 50


@pytest.mark.guarantee("lossy-subscriber-memory")
@pytest.mark.parametrize("on_lag", ["skip", "latest", "raise"])
def test_lagging_subscriber_does_not_fill_the_budget(small: shmtree.Arena, on_lag: Any) -> None:
    broadcast = shmtree.Broadcast(capacity=200, arena=small)
    subscriber = broadcast.subscribe(on_lag=on_lag)
    for i in range(150):
        broadcast.put(np.full(MIB, i, np.uint8), timeout=60)
    if on_lag == "raise":
        with pytest.raises(shmtree.Overrun):
            subscriber.get(timeout=60)
    numbers = [int(subscriber.get(timeout=60)[0]) for _ in range(subscriber.qsize())]
    assert numbers == list(range(150 - len(numbers), 150))
    assert subscriber.missed == 150 - len(numbers)


def test_new_empty_reclaims_messages_that_may_be_missed(small: shmtree.Arena) -> None:
    broadcast = shmtree.Broadcast(capacity=200, arena=small)
    subscriber = broadcast.subscribe(on_lag="skip")
    for i in range(150):
        array = broadcast.new_empty(MIB, np.uint8)
        array[:] = i
        broadcast.put(array, timeout=60)
    assert subscriber.get(timeout=60)[0] > 80
