"""Messages of queues that receivers had no memory for, and how `join` counts them."""

from __future__ import annotations

import queue
import threading
from typing import Any

import numpy as np
import pytest

import shmtree

FAILED_BUILDS = 8  # failures in a row after which a message is rejected


class Scarce:
    """Loading an instance raises MemoryError while `scarce` is set."""


scarce = threading.Event()


def load_scarce(number: int) -> str:
    if scarce.is_set():
        raise MemoryError("none for this one")
    return "made"


shmtree.register(Scarce, lambda _: 1, load_scarce)


@pytest.fixture(autouse=True)
def _scarce() -> None:
    scarce.set()


@pytest.fixture(params=[shmtree.Queue, shmtree.JoinableQueue, shmtree.SimpleQueue])
def each(request: Any) -> Any:
    with request.param() as made:
        yield made


def give_up(q: Any) -> None:
    """Makes the queue reject its first message."""
    for _ in range(FAILED_BUILDS):
        with pytest.raises(MemoryError):
            q.get(timeout=60)


@pytest.mark.guarantee("queue-counts")
def test_rejected_lists_dead_letters_until_requeued(each):
    each.put(Scarce())
    each.put("next")
    give_up(each)
    assert each.get(timeout=60) == "next" and each.empty()
    (delivery,) = each.dead_letters()
    with pytest.raises(MemoryError):
        delivery.item  # noqa: B018
    scarce.clear()
    assert (delivery.item, delivery.ticket, delivery.attempts) == ("made", 0, FAILED_BUILDS)
    assert each.stats()["dead_letters"] == 1
    delivery.nack()
    each.dead_letters()[0].requeue()
    assert each.get(timeout=60) == "made"
    assert each.dead_letters() == [] and each.stats()["dead_letters"] == 0


def test_acked_dead_letter_is_removed(each):
    each.put([Scarce(), np.arange(100_000)])
    give_up(each)
    each.dead_letters()[0].ack()
    scarce.clear()
    assert each.dead_letters() == []
    with pytest.raises(queue.Empty):
        each.get(False)


def test_rejected_of_a_closed_queue_raises(each):
    each.close()
    with pytest.raises(shmtree.ChannelClosed):
        each.dead_letters()


def test_join_does_not_wait_for_a_dead_letter():
    with shmtree.JoinableQueue() as q:
        q.put(Scarce())
        q.put("next")
        give_up(q)
        q.get(timeout=60)
        assert q.stats()["unfinished"] == 1
        with pytest.raises(TimeoutError, match="1 tasks"):
            q.join(timeout=0)
        q.task_done()
        q.join(timeout=60)
        with pytest.raises(ValueError, match="all 1 tasks are done"):
            q.task_done()
