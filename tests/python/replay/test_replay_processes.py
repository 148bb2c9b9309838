"""Replay buffers in several processes: sent, opened by name, and with processes that are killed."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import replay_peers
from footprints import own_names
from shared_state import violated_by
from starts import START_METHODS

import shmtree
from shmtree import _core
from shmtree.replay import Limits, ReplayBuffer


def wait_for(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.guarantee("replay-whole-rows")
@pytest.mark.parametrize("method", START_METHODS)
def test_parent_samples_rows_of_its_child(start, method):
    buffer = ReplayBuffer(1000, example=0)
    child = start(replay_peers.add_numbers, buffer, 100, 50, method=method)
    child.join(60)
    assert child.exitcode == 0
    assert set(buffer.sample(2000).data.tolist()) == set(range(100, 150))


@pytest.mark.parametrize("method", START_METHODS)
def test_child_can_use_a_buffer_that_its_parent_closes_at_once(start, method):
    buffer = ReplayBuffer(1000, example=0)
    buffer.extend(np.arange(10))
    sender, receiver = shmtree.create_pair()
    child = start(replay_peers.count_rows, buffer, sender, method=method)
    buffer.close()
    assert receiver.get(timeout=60) == 10
    child.join(60)
    assert child.exitcode == 0


@pytest.mark.parametrize("method", START_METHODS)
def test_child_samples_rows_of_its_parent(start, method):
    buffer = ReplayBuffer(1000, example=0)
    sender, receiver = shmtree.create_pair()
    child = start(replay_peers.answer_draws, buffer, sender, 16, method=method)
    buffer.add(7)
    assert receiver.get(timeout=60).tolist() == [7] * 16
    child.join(60)


@pytest.mark.guarantee("replay-whole-rows")
def test_parent_and_forked_children_add_without_loss(start):
    buffer = ReplayBuffer(10_000, example=0)
    buffer.add(0)
    children = [start(replay_peers.add_numbers, buffer, 1000 * i, 500) for i in range(1, 4)]
    replay_peers.add_numbers(buffer, 1, 499)
    for child in children:
        child.join(60)
    assert len(buffer) == 2000
    drawn = sorted(buffer.sample(2000, replace=False).data.tolist())
    assert drawn == [1000 * i + j for i in range(4) for j in range(500)]
    assert violated_by(buffer) == ""


def test_first_rows_of_several_processes_at_once_fit_in_memory(start):
    # The arena has memory for one extent of such rows, not for two.
    row = np.zeros(1 << 14, np.uint8)
    for _ in range(3):
        buffer = ReplayBuffer(3_000, example=row)
        barrier = multiprocessing.get_context("fork").Barrier(6)
        children = [start(replay_peers.add_after_all_are_there, buffer, barrier, row) for _ in range(6)]
        for child in children:
            child.join(60)
            assert child.exitcode == 0
        assert len(buffer) == 6


def test_open_waits_for_a_name_up_to_its_timeout(runtime_directory, name):
    with pytest.raises(TimeoutError):
        ReplayBuffer.open(name, timeout=0.01)
    made: list[ReplayBuffer] = []
    maker = threading.Timer(0.1, lambda: made.append(ReplayBuffer(10, example=0, name=name)))
    maker.start()
    assert ReplayBuffer.open(name, timeout=60).capacity == 10
    maker.join()


@pytest.mark.parametrize("named", [False, True])
def test_buffer_can_be_sent_to_a_running_process(start, runtime_directory, name, named):
    to_child, commands = shmtree.create_pair()
    answers, from_child = shmtree.create_pair()
    child = start(replay_peers.use_messages, commands, answers, 5)
    buffer = ReplayBuffer(100, example=0, name=name if named else None)
    to_child.put({"buffer": buffer})
    assert from_child.get(timeout=60) == 1
    assert buffer.sample(2).data.tolist() == [5, 5]
    to_child.put(None)
    child.join(60)


def test_buffer_needs_no_pickle_and_arrives_closed_if_late(arena, start):
    sender, receiver = arena.create_pair(allow_pickle=False)
    buffer = ReplayBuffer(100, example=0)
    sender.put([buffer])
    (same,) = receiver.get(timeout=60)
    same.add(3)
    assert buffer.sample(1).data.tolist() == [3]
    del buffer, same
    gc.collect()
    start(replay_peers.give_and_die, sender).join(60)
    late = receiver.get(timeout=60)
    assert late.closed
    with pytest.raises(shmtree.ChannelClosed):
        len(late)


def test_pickle_in_one_process_refers_to_the_same_rows():
    buffer = ReplayBuffer(100, example={"a": np.zeros(3), "b": (0, False)})
    same = pickle.loads(pickle.dumps(buffer))
    buffer.add({"a": np.ones(3), "b": (4, True)})
    assert same.sample(1).data["b"][0].tolist() == [4]
    assert (same.capacity, same.chunk) == (buffer.capacity, buffer.chunk)


def test_unpickling_a_freed_buffer_raises_file_not_found():
    buffer = ReplayBuffer(100, example=0)
    late = pickle.dumps(buffer)
    pickle.loads(late)  # ends the transit
    del buffer
    gc.collect()
    with pytest.raises(FileNotFoundError):
        pickle.loads(late)


def test_a_buffer_is_opened_by_its_name(start, runtime_directory, name):
    buffer = ReplayBuffer(100, example=0, name=name)
    child = start(replay_peers.add_by_name, name, 9)
    child.join(60)
    assert buffer.sample(1).data.tolist() == [9]
    assert [(known.name, known.kind) for known in own_names()] == [(name, "replay")]


def test_name_in_use_or_of_another_kind_is_rejected(runtime_directory, name):
    buffer = ReplayBuffer(100, example=0, name=name)
    with pytest.raises(FileExistsError):
        ReplayBuffer(100, example=0, name=name)
    with pytest.raises(ValueError, match="belongs to a replay buffer"):
        shmtree.open_sender(name)
    buffer.close()
    gc.collect()
    with pytest.raises(FileNotFoundError):
        ReplayBuffer.open(name)


def test_handle_of_another_kind_of_block_is_rejected(arena):
    array = arena.array(1 << 16, np.uint8)
    with pytest.raises(shmtree.IncompatibleArena):
        ReplayBuffer._opened(arena._core, _core.block_of(array.array), None)


@pytest.mark.guarantee("replay-killed-writers")
def test_rows_of_killed_writers_remain_and_adds_continue(start):
    buffer = ReplayBuffer(4096, example=0, limits=Limits(streams=4))
    for _ in range(5):
        children = [start(replay_peers.add_until_killed, buffer) for _ in range(3)]
        added = len(buffer)
        wait_for(lambda: len(buffer) > min(added + 700, 3000))  # noqa: B023
        for child in children:
            os.kill(child.pid, signal.SIGKILL)
            child.join(60)
        buffer.add(1)
    assert 2048 < len(buffer) <= 4096


@pytest.mark.guarantee("replay-killed-writers")
def test_rows_can_be_added_while_a_writer_is_stopped(start):
    buffer = ReplayBuffer(1000, example=0)
    child = start(replay_peers.add_and_stay, buffer, 3)
    assert buffer.sample(1, timeout=60).data.tolist() == [3]
    os.kill(child.pid, signal.SIGSTOP)
    replay_peers.add_numbers(buffer, 10, 500)
    assert len(buffer) == 501
    os.kill(child.pid, signal.SIGCONT)


def test_ctrl_c_interrupts_a_waiting_sample():
    buffer = ReplayBuffer(10, example=0)
    timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])

    def wait() -> None:
        timer.start()
        buffer.sample(1, timeout=60)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            wait()
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    buffer.add(1)
    assert buffer.sample(1).data.tolist() == [1]


EXITS = """
import threading, numpy as np
from shmtree.replay import ReplayBuffer
buffer = ReplayBuffer(1000, example=np.zeros(100))
writer = buffer.writer()
for _ in range(300):
    writer.add(np.ones(100))
    buffer.add(np.ones(100))
kept = [buffer.sample(100) for _ in range(5)]
threading.Thread(target=lambda: buffer.sample(10)).start()
threading.Thread(target=lambda: [buffer.add(np.ones(100)) for _ in iter(int, 1)], daemon=True).start()
"""


def test_exit_with_buffers_writers_and_batches_is_clean():
    done = subprocess.run([sys.executable, "-c", EXITS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_dropped_buffers_leak_neither_memory_nor_descriptors():
    def use() -> None:
        buffer = ReplayBuffer(1000, example={"a": np.zeros(1000)})
        buffer.extend({"a": np.ones((1500, 1000))})
        buffer.add({"a": np.ones(1000)})
        pickle.loads(pickle.dumps(buffer)).sample(100)

    def held() -> tuple[int, int]:
        gc.collect()
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), sum("shmtree" in line for line in maps)

    use()
    descriptors, maps = held()
    for _ in range(20):
        use()
    left = held()
    assert left[0] <= descriptors  # a thread of an earlier test may have ended meanwhile
    assert left[1] < maps + 10
