"""Queues: the interface and the behaviour of multiprocessing's queues."""

from __future__ import annotations

import inspect
import multiprocessing as mp
import multiprocessing.queues
import pickle
import queue
import subprocess
import sys
import threading
from collections import namedtuple

import numpy as np
import pytest
from starts import START_METHODS

import shmtree

STANDARD = {
    shmtree.Queue: mp.queues.Queue,
    shmtree.JoinableQueue: mp.queues.JoinableQueue,
    shmtree.SimpleQueue: mp.queues.SimpleQueue,
}


def arguments_of(method):
    parameters = inspect.signature(method).parameters.values()
    return [(each.name, each.default) for each in parameters if each.name != "self"]


@pytest.mark.parametrize("ours", STANDARD)
def test_queue_has_every_public_method_of_the_standard_one(ours):
    for name, method in inspect.getmembers(STANDARD[ours], inspect.isfunction):
        if name.startswith("_"):
            continue
        wanted = [("obj", inspect.Parameter.empty)] if name in ("put", "put_nowait") else arguments_of(method)
        given = arguments_of(getattr(ours, name))
        assert given[: len(wanted)] == wanted, name


@pytest.mark.parametrize("ours", STANDARD)
def test_put_returns_none_and_get_keeps_order(ours):
    q = ours()
    assert q.empty()
    assert q.put(1) is None
    assert not q.empty()
    q.put({"a": [2]})
    assert [q.get(), q.get()] == [1, {"a": [2]}]
    assert q.empty()


@pytest.mark.parametrize("maxsize", [-1, 0])
def test_maxsize_of_zero_or_less_means_unlimited(maxsize):
    assert shmtree.Queue(maxsize).capacity is None


def test_full_error_for_want_of_memory_shows_the_budget():
    q = shmtree.Queue(arena=shmtree.Arena(1 << 20))
    q.put(bytes(400_000))
    with pytest.raises(queue.Full, match=r"1 messages .* 400\d+ bytes .* left, \d+ of a budget of 1048576"):
        q.put(bytes(400_000), timeout=0)
    assert not q.full()


def test_put_many_raises_full_with_the_number_sent():
    q = shmtree.Queue(3)
    with pytest.raises(queue.Full) as caught:
        q.put_many(range(5), timeout=0)
    assert caught.value.sent == 3
    assert q.get_many(10) == [0, 1, 2]


def test_put_raises_for_an_unpicklable_object():
    q = shmtree.Queue()
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        q.put({"bad": lambda: None})
    with pytest.raises(TypeError):
        q.put(threading.Lock())
    assert q.qsize() == 0
    q.put("good")
    assert q.get() == "good"


Point = namedtuple("Point", "x y")


def test_get_returns_an_independent_copy():
    q = shmtree.Queue()
    sent = {"array": np.arange(10_000), "list": [1, 2], "point": Point(1, np.float32(2))}
    q.put(sent)
    sent["array"][:] = 0
    sent["list"].append(3)
    got = q.get()
    assert got["array"].tolist() == list(range(10_000))
    assert got["list"] == [1, 2]
    assert got["point"] == Point(1, np.float32(2)) and type(got["point"].y) is np.float32
    got["array"][0] = 7


def test_received_arrays_are_writable_and_share_no_memory():
    q = shmtree.Queue()
    frozen = np.arange(20_000.0)
    frozen.flags.writeable = False
    whole = np.arange(20_000)
    for message in ([frozen, whole, whole[5:]], [frozen, whole, whole[5:], Unusual()]):
        q.put(message)
        frozen_, whole_, part = q.get()[:3]
        assert frozen_.flags.writeable and whole_.flags.writeable and part.flags.writeable
        part[:] = -1
        assert whole_[5] == 5


class Unusual:
    """A class that needs a pickle."""


def test_tensors_of_one_storage_share_memory_after_get():
    torch = pytest.importorskip("torch")
    q = shmtree.Queue()
    whole = torch.arange(10_000)
    q.put([whole, whole, whole[5:]])
    first, second, part = q.get()
    assert first is second
    part[0] = -1
    assert first[5] == -1 and whole[5] == 5


def test_put_copies_arrays_unless_move_is_true(arena):
    q = arena.Queue()
    mine = arena.new_empty(100_000, np.uint8)
    q.put(mine)
    mine[:] = 1  # our copy stays writable
    assert mine.flags.writeable
    got = q.get(copy=False)
    q.put(got)
    assert got.flags.writeable
    again = q.get(copy=False)
    assert again.ctypes.data != got.ctypes.data
    q.put(again, move=True)
    assert not again.flags.writeable
    moved = q.get(copy=False)
    assert moved.ctypes.data == again.ctypes.data
    assert moved.flags.writeable


def put_and_count(q, others, told):
    q.put("from the child")
    told.send([q.qsize(), q.empty(), q.full(), [each.qsize() for each in others]])


@pytest.mark.parametrize("method", START_METHODS)
def test_counts_are_exact_in_each_process_once_put_returned(start, method):
    here, there = mp.Pipe()
    q, other = shmtree.Queue(2), shmtree.SimpleQueue()
    q.put("from the parent")
    other.put(1)
    start(put_and_count, q, [other], there, method=method)
    assert here.recv() == [2, False, True, [1]]
    assert [q.qsize(), q.empty(), q.full()] == [2, False, True]
    assert q.get_many(2) == ["from the parent", "from the child"]
    assert [q.qsize(), q.empty(), q.full()] == [0, True, False]


def work(tasks):
    for _ in iter(tasks.get, None):
        tasks.task_done()
    tasks.task_done()


@pytest.mark.guarantee("queue-counts")
@pytest.mark.parametrize("method", START_METHODS)
def test_join_waits_until_all_tasks_are_done(start, method):
    tasks = shmtree.JoinableQueue()
    tasks.join()
    tasks.put_many(range(20))
    tasks.put(None)
    tasks.put(None)
    with pytest.raises(TimeoutError, match="22 tasks"):
        tasks.join(timeout=0.01)
    for _ in range(2):
        start(work, tasks, method=method)
    tasks.join(timeout=60)
    with pytest.raises(ValueError, match="too many times"):
        tasks.task_done()


def test_close_affects_one_queue_object_only():
    q = shmtree.Queue()
    q.put("kept")
    other = pickle.loads(pickle.dumps(q))
    q.close()
    q.close()
    for call in (lambda: q.put(1), q.get, q.get_nowait, q.empty, lambda: q.put_many([1]), lambda: pickle.dumps(q)):
        with pytest.raises(ValueError, match="closed"):
            call()
    assert q.closed
    q.join_thread()
    assert other.get() == "kept"
    with pytest.raises(AssertionError, match="not closed"):
        other.join_thread()
    other.cancel_join_thread()


@pytest.mark.guarantee("queue-counts")
def test_immediate_shutdown_drops_messages_and_ends_join():
    q = shmtree.JoinableQueue()
    q.put_many([np.zeros(100_000)] * 3)
    q.get()
    q.shutdown(immediate=True)
    assert q.qsize() == 0
    with pytest.raises(shmtree.ShutDown):
        q.get()
    q.task_done()
    q.join(timeout=60)


def test_shutdown_exception_is_the_standard_one_if_it_exists():
    assert shmtree.ShutDown is getattr(queue, "ShutDown", shmtree.ShutDown)
    assert shmtree.ShutDown.__name__ == "ShutDown"


def test_repr_shows_queued_count_or_closed():
    q = shmtree.Queue(3)
    q.put(1)
    assert repr(q) == "<Queue, 1 of 3 queued>"
    q.close()
    assert repr(q) == "<Queue, closed>"
    assert shmtree.Queue[int].__origin__ is shmtree.Queue


def test_bool_for_a_number_raises_type_error():
    q = shmtree.Queue()
    q.put_many([1, 2])
    with pytest.raises(TypeError, match="n is True"):
        q.get_many(True, 0.1)
    with pytest.raises(TypeError, match="timeout is False"):
        q.put_many([3], False)
    assert q.get_many(5) == [1, 2]


def test_file_size_limit_reduces_the_default_budget():
    program = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (50 << 30, resource.RLIM_INFINITY))
from shmtree import multiprocessing as mp
q = mp.Queue()
q.put(bytes(1_000_000))
print(len(q.get()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("1000000\n", "")


def test_closed_queue_cannot_be_initialised_again():
    queue = shmtree.Queue()
    queue.close()
    with pytest.raises(RuntimeError, match="already has, or had, a channel"):
        queue.__init__()
    with pytest.raises(ValueError, match="closed"):
        queue.put(1)


def test_size_of_a_closed_queue_is_that_at_its_close():
    for queued in (0, 2):
        q = shmtree.Queue(maxsize=2)
        for i in range(queued):
            q.put(i)
        q.close()
        assert (q.qsize(), q.full()) == (queued, queued == 2)
        with pytest.raises(shmtree.ChannelClosed):
            q.empty()


def test_get_many_drains_a_queue_that_was_shut_down():
    queue = shmtree.Queue()
    queue.put(1)
    queue.shutdown()
    assert queue.get_many(2) == [1]
    with pytest.raises(shmtree.ShutDown):
        queue.get_many(2)
