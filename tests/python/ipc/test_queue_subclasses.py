"""Subclasses of queues: their attributes are sent along, and their overrides are used."""

from __future__ import annotations

import asyncio
import multiprocessing as mp
import pickle
import queue

import pytest

import shmtree


def test_subclass_attributes_are_pickled():
    q = Counting(5)
    q.put("x")
    again = pickle.loads(pickle.dumps(q))
    assert (type(again), again.made, again.capacity, again.get()) == (Counting, "here", 5, "x")


class Counting(shmtree.Queue):
    def __init__(self, maxsize):
        super().__init__(maxsize, ctx=mp.get_context())
        self.made = "here"

    def __getstate__(self):
        return {"parent": super().__getstate__(), "made": self.made}

    def __setstate__(self, state):
        super().__setstate__(state["parent"])
        self.made = state["made"]


class Doubling(shmtree.Queue[int]):
    def put(self, obj, block=True, timeout=None):
        super().put(2 * obj, block, timeout)

    def get(self, block=True, timeout=None):
        return super().get(block, timeout) + 1


def test_nowait_methods_use_put_and_get_of_a_subclass():
    q = Doubling(1)
    q.put_nowait(5)
    with pytest.raises(queue.Full):
        q.put_nowait(6)
    assert q.get_nowait() == 11
    with pytest.raises(queue.Empty):
        q.get_nowait()


def test_coroutines_use_put_and_get_of_a_subclass():
    q = Doubling()

    async def main():
        await q.put_async(5)
        return await q.get_async()

    assert asyncio.run(main()) == 11


def test_subclass_without_base_init_raises():
    class Forgetful(shmtree.JoinableQueue):
        def __init__(self):
            pass

    q = Forgetful()
    with pytest.raises(RuntimeError, match="__init__"):
        q.qsize()
    with pytest.raises(RuntimeError, match="__init__"):
        q.task_done()
    with pytest.raises((RuntimeError, ValueError)):
        q.put(1)


def test_only_joinable_queues_count_unfinished_tasks():
    joinable = shmtree.JoinableQueue()
    joinable.put(1)
    assert joinable.stats()["unfinished"] == 1
    for end in (shmtree.Queue(), *shmtree.create_pair()):
        assert "unfinished" not in end.stats()
