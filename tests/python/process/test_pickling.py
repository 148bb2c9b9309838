"""Ends, arenas and arrays in transit to other processes."""

from __future__ import annotations

import copy
import multiprocessing as mp
import os
import pickle
import subprocess
import sys

import numpy as np
import peers
import pytest
from starts import START_METHODS

import shmtree


@pytest.mark.parametrize("method", START_METHODS)
def test_sender_is_passed_as_a_process_argument(arena, start, method):
    sender, receiver = arena.create_pair()
    child = start(peers.put_and_wait, sender, {"x": np.arange(100_000)}, method=method)
    assert np.array_equal(receiver.get(timeout=60)["x"], np.arange(100_000))
    child.join(30)
    assert child.exitcode == 0


@pytest.mark.parametrize("method", START_METHODS)
def test_receiver_is_passed_as_a_process_argument(arena, start, method):
    sender, receiver = arena.create_pair()
    ours, theirs = mp.get_context(method).Pipe()
    start(peers.report, receiver, theirs, method=method)
    receiver.close()
    sender.put_many(["a", "b"])
    sender.close()
    assert [ours.recv() for _ in range(3)] == ["a", "b", "end"]


@pytest.mark.parametrize("method", START_METHODS)
def test_ends_of_several_channels_are_passed_to_processes(arena, start, method):
    first, second = arena.create_pair(), arena.create_pair()
    other = shmtree.create_pair()
    child = start(peers.echo, first[1], second[0], 3, method=method)
    child_too = start(peers.echo, other[1], second[0], 1, method=method)
    first[0].put_many(range(3))
    other[0].put("through two arenas")
    assert sorted(map(str, (second[1].get(timeout=60) for _ in range(4)))) == ["0", "1", "2", "through two arenas"]
    for process in (child, child_too):
        process.join(30)
        assert process.exitcode == 0


@pytest.mark.parametrize("method", START_METHODS)
def test_sender_is_sent_by_pipe_to_a_running_process(arena, start, method):
    sender, receiver = arena.create_pair()
    ours, theirs = mp.get_context(method).Pipe()
    child = start(peers.use_pickled, theirs, method=method)
    ours.send(sender)
    sender.close()
    assert receiver.get(timeout=60) == ("from", child.pid)
    with pytest.raises(shmtree.ChannelClosed):
        receiver.get(timeout=60)


def test_receiver_is_sent_by_pipe_to_a_running_process(arena, start):
    sender, receiver = arena.create_pair()
    ours, theirs = mp.Pipe()
    start(peers.use_pickled, theirs)
    ours.send(receiver)
    assert ours.recv() == "have it"
    sender.put([1, 2])
    assert ours.recv() == [1, 2]


def test_end_is_sent_through_a_channel(arena, start):
    outer, inner = arena.create_pair(), arena.create_pair()
    ours, theirs = mp.Pipe()
    start(peers.receive_one, outer[1], theirs)
    inner[0].put("inside")
    outer[0].put({"end": inner[1]})
    got = ours.recv()
    assert isinstance(got["end"], shmtree.Receiver)
    assert got["end"].get(timeout=30) == "inside"


def test_end_in_transit_counts_as_attached(arena):
    sender, receiver = arena.create_pair()
    data = pickle.dumps(sender)
    sender.close()
    assert receiver.empty()
    with pytest.raises(Exception) as raised:
        receiver.get(timeout=0.1)
    assert type(raised.value).__name__ == "Empty"
    arrived = pickle.loads(data)
    arrived.put(1)
    assert receiver.get() == 1
    arrived.close()
    with pytest.raises(shmtree.ChannelClosed):
        receiver.get(timeout=60)


def test_copy_is_another_end_of_the_same_channel(pair):
    sender, receiver = pair
    other = copy.copy(sender)
    sender.close()
    other.put("still open")
    assert receiver.get() == "still open"
    other.close()
    with pytest.raises(shmtree.ChannelClosed):
        receiver.get(timeout=60)


def test_closed_end_cannot_be_pickled(pair):
    sender, _ = pair
    sender.close()
    with pytest.raises(shmtree.ChannelClosed):
        pickle.dumps(sender)


def test_allow_pickle_is_pickled_with_the_end(arena):
    sender, _receiver = arena.create_pair(allow_pickle=False)
    again = pickle.loads(pickle.dumps(sender))
    assert again.allow_pickle is False
    with pytest.raises(shmtree.PickleRefused):
        again.put(print)


def test_handle_of_an_exited_process_raises():
    program = "import shmtree, pickle, sys; sys.stdout.buffer.write(pickle.dumps(shmtree.create_pair()[0]))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=True)
    with pytest.raises(FileNotFoundError, match="has ended"):
        pickle.loads(ran.stdout)


def test_handle_of_a_dropped_arena_raises():
    program = """if True:
        import shmtree, pickle, sys, gc
        arena = shmtree.Arena(8 << 20)
        data = pickle.dumps(arena)
        pickle.loads(data)  # so that it is on its way no more
        del arena
        gc.collect()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        sys.stdin.read()
        """
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        data = os.read(process.stdout.fileno(), 1 << 16)
        with pytest.raises((FileNotFoundError, shmtree.Error)):
            pickle.loads(data)


def test_bytes_that_are_no_handle_raise():
    from shmtree import _core

    with pytest.raises(ValueError):
        _core.open_handle(b"not a handle")


@pytest.mark.parametrize("method", START_METHODS)
def test_shared_array_is_the_same_memory_in_each_process(arena, start, method):
    array = arena.array((4, 3), int)
    child = start(peers.write_shared, array, (2, 1), 42, method=method)
    child.join(60)
    assert child.exitcode == 0
    assert array.array[2, 1] == 42
    assert array.array.sum() == 42


def test_shared_array_lives_while_a_process_has_it(arena, start):
    import gc

    array = arena.array(10, int)
    ours, theirs = mp.Pipe()
    start(peers.hang, array, theirs)
    ours.recv()
    del array
    gc.collect()
    assert len(arena.holders()) == 1


def test_arena_is_pickled_by_reference(arena):
    same = pickle.loads(pickle.dumps(arena))
    assert same._core.uuid == arena._core.uuid


def test_parent_keeps_no_descriptor_for_running_children(arena, start):
    from shmtree._process import spawn

    sender, receiver = arena.create_pair()
    start(peers.put_all, sender, [1], method="spawn")
    assert receiver.get(timeout=60) == 1
    assert not spawn._launches


def test_process_that_failed_to_start_is_no_death(arena):
    sender, receiver = arena.create_pair()
    process = mp.get_context("spawn").Process(target=peers.put_all, args=(sender, [lambda: None]))
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        process.start()
    del process
    sender.close()
    with pytest.raises(shmtree.ChannelClosed):
        receiver.get(timeout=30)


def test_pool_workers_get_ends_from_their_initializer(arena):
    sender, receiver = arena.create_pair(capacity=None)
    with mp.get_context("spawn").Pool(2, initializer=init_worker, initargs=(sender,)) as pool:
        pool.map(put_from_worker, range(10))
    assert sorted(receiver.get_many(100)[0:10]) == list(range(10))


worker_sender = None


def init_worker(sender) -> None:
    global worker_sender
    worker_sender = sender


def put_from_worker(item: int) -> None:
    worker_sender.put(item)
