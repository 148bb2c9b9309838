"""Buffers with on_peer_death="raise": a wait raises PeerDied when every process that could end it was killed."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time

import pytest
import replay_peers
from replay_options import grouped
from starts import running
from test_replay_waits import wait_until_asleep

import shmtree
from shmtree.replay import Fifo, Limits, RateLimit, ReplayBuffer

METHODS = ["fork", "spawn"]
WAYS_TO_ADD = [replay_peers.add_then_hang, replay_peers.extend_then_hang]
ONE_EACH = RateLimit(samples_per_insert=1, min_size=1, error_buffer=1)


def told_buffer(capacity: int = 100, **options) -> ReplayBuffer:
    return ReplayBuffer(capacity, example=0, **grouped(done=None, on_peer_death="raise", **options))


def kill(process) -> int:
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    return process.pid


@pytest.mark.guarantee("replay-deaths")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("limit", [None, ONE_EACH])
@pytest.mark.parametrize(("call", "arguments"), [("sample", (1,)), ("sample_sequences", (1, 2))])
def test_sample_reports_killed_writers_and_resumes_after_an_add(method, limit, call, arguments):
    buffer = told_buffer(rate=limit)
    with pytest.raises(queue.Empty):
        getattr(buffer, call)(*arguments, timeout=0)  # no process has ever added
    with running(replay_peers.add_then_hang, buffer, [1], None, method=method) as (adder, added):
        assert added.recv() == adder.pid
        buffer.clear()
        with pytest.raises(queue.Empty):
            getattr(buffer, call)(*arguments, timeout=0)  # the adding process lives
        with running(replay_peers.report_end, buffer, call, None, *arguments, method=method) as (_, waiting):
            assert waiting.recv() == "ready"
            pid = kill(adder)
            assert waiting.recv()[:2] == ("PeerDied", (pid,))
    with pytest.raises(shmtree.PeerDied, match=f"every process that added rows has died or closed.*{pid}"):
        getattr(buffer, call)(*arguments, timeout=60)
    with pytest.raises(shmtree.PeerDied):
        next(buffer.batches(1, timeout=0))
    with buffer.writer() as writer:
        writer.add(3)
        assert len(getattr(buffer, call)(*arguments, timeout=60).data) == 1
    buffer.clear()
    with pytest.raises(queue.Empty):
        getattr(buffer, call)(*arguments, timeout=0)  # the new writer has closed, and the deaths were reported already


def test_rows_of_a_killed_writer_are_sampled_before_peer_died():
    buffer = told_buffer(sampler=Fifo(max_times=1))
    with running(replay_peers.add_then_hang, buffer, [1, 2], None) as (adder, added):
        added.recv()
        kill(adder)
    assert [buffer.sample(1, timeout=60).data.tolist() for _ in range(2)] == [[1], [2]]
    with pytest.raises(shmtree.PeerDied):
        buffer.sample(1, timeout=60)


@pytest.mark.guarantee("replay-deaths")
@pytest.mark.parametrize("method", METHODS)
def test_add_reports_killed_samplers_and_resumes_after_a_sample(method):
    buffer = told_buffer(rate=ONE_EACH)
    buffer.extend([1, 2], timeout=60)
    with running(replay_peers.sample_then_hang, buffer, 1, None, method=method) as (drawer, drawn):
        assert drawn.recv() == drawer.pid
        buffer.add(3, timeout=60)
        with running(replay_peers.report_end, buffer, "extend", None, [4, 5], method=method) as (_, waiting):
            assert waiting.recv() == "ready"
            pid = kill(drawer)
            assert waiting.recv()[:2] == ("PeerDied", (pid,))
    with pytest.raises(shmtree.PeerDied, match=f"every process that drew rows has died or closed.*{pid}"):
        buffer.add(4, timeout=60)
    with pytest.raises(shmtree.PeerDied) as caught:
        buffer.vector_writer(2).add([4, 5], timeout=60)
    assert caught.value.sent == 0
    with running(replay_peers.sample_then_hang, buffer, 1, None, method=method) as (_, drawn):
        drawn.recv()
        buffer.add(4, timeout=60)
        with pytest.raises(queue.Full):
            buffer.add(5, timeout=0)


def test_extend_that_raises_peer_died_reports_rows_added(start):
    buffer = told_buffer(rate=RateLimit(samples_per_insert=1, min_size=5, error_buffer=2))
    buffer.extend([0, 1, 2, 3, 4])
    with running(replay_peers.sample_then_hang, buffer, 1, None) as (drawer, drawn):
        drawn.recv()
        kill(drawer)
    with pytest.raises(shmtree.PeerDied) as caught:
        buffer.extend(list(range(5, 20)), timeout=60)
    assert caught.value.sent == 3
    assert len(buffer) == 8


@pytest.mark.parametrize("limit", [None, ONE_EACH])
def test_sample_waits_after_a_death_by_default(limit):
    buffer = ReplayBuffer(100, example=0, limits=Limits(rate=limit))
    with running(replay_peers.add_then_hang, buffer, [1], None) as (adder, added):
        added.recv()
        kill(adder)
    buffer.clear()
    with pytest.raises(queue.Empty):
        buffer.sample(1, timeout=1)


@pytest.mark.guarantee("replay-deaths")
@pytest.mark.parametrize("method", METHODS)
def test_clean_close_or_exit_is_not_a_death(start, method):
    buffer = told_buffer()
    for target in (replay_peers.add_and_close, replay_peers.add_in_a_daemon, replay_peers.add_and_sample):
        child = start(target, buffer, 1, method=method)
        child.join(60)
        assert child.exitcode == 0
        buffer.clear()
        with pytest.raises(queue.Empty):
            buffer.sample(1, timeout=0)


def test_live_writer_delays_peer_died_until_it_closes():
    buffer = told_buffer()
    writer = buffer.writer()
    writer.add(1)
    with contextlib.ExitStack() as stack:
        adders = [stack.enter_context(running(target, buffer, [2], None)) for target in WAYS_TO_ADD]
        for _, added in adders:
            added.recv()
        pids = {kill(adder) for adder, _ in adders}
    buffer.clear()
    with pytest.raises(queue.Empty):
        buffer.sample(1, timeout=0)  # this process is a writer
    writer.close()
    with pytest.raises(shmtree.PeerDied) as caught:
        buffer.sample(1, timeout=60)
    assert set(caught.value.pids) == pids


def test_add_raises_peer_died_once_the_last_live_sampler_closes():
    buffer = told_buffer(rate=ONE_EACH)
    with running(replay_peers.add_then_hang, buffer, [1, 2], None) as (_, added):
        added.recv()
        again = ReplayBuffer._opened(buffer._replay.arena, buffer._replay.block, None)
        again.sample(1, timeout=60)
        with running(replay_peers.sample_then_hang, buffer, 1, None) as (drawer, drawn):
            drawn.recv()
            pid = kill(drawer)
        buffer.extend([3, 4], timeout=60)
        with pytest.raises(queue.Full):
            buffer.add(5, timeout=0)  # this process is a sampler
        again.close()
        with pytest.raises(shmtree.PeerDied) as caught:
            buffer.add(5, timeout=60)
        assert caught.value.pids == (pid,)


def test_waiting_thread_raises_peer_died():
    buffer = told_buffer()
    told: list[tuple[int, ...]] = []

    def wait() -> None:
        try:
            buffer.sample(1, timeout=100)
        except shmtree.PeerDied as error:
            told.append(error.pids)

    with running(replay_peers.add_then_hang, buffer, [1], None) as (adder, added):
        added.recv()
        buffer.clear()
        thread = threading.Thread(target=wait)
        thread.start()
        wait_until_asleep(thread)
        pid = kill(adder)
        thread.join(60)
    assert told == [(pid,)]


@pytest.mark.parametrize("method", METHODS)
def test_on_peer_death_is_preserved_by_open_and_load(runtime_directory, name, tmp_path, method):
    buffer = told_buffer(name=name)
    assert ReplayBuffer.open(name)._spec.options["raises_on_death"]
    buffer.add(1)
    buffer.save(tmp_path / "saved")
    loaded = ReplayBuffer.load(tmp_path / "saved")
    with running(replay_peers.add_then_hang, loaded, [1], None, method=method) as (adder, added):
        added.recv()
        kill(adder)
    loaded.clear()
    with pytest.raises(shmtree.PeerDied):
        loaded.sample(1, timeout=60)
    assert not ReplayBuffer.load(tmp_path / "saved", limits=Limits(on_peer_death="wait"))._spec.options[
        "raises_on_death"
    ]


def test_wait_that_watches_for_deaths_uses_little_cpu_time():
    buffer = told_buffer()
    with running(replay_peers.extend_then_hang, buffer, [1], None) as (adder, added):
        added.recv()
        buffer.clear()
        with running(replay_peers.report_end, buffer, "sample", None, 1) as (_, waiting):
            waiting.recv()
            time.sleep(3)  # the wait should sleep nearly all of that time
            kill(adder)
            assert waiting.recv()[2] < 0.05


@pytest.mark.parametrize("word", ["each", "", None, 1])
def test_on_peer_death_rejects_unknown_values(word, tmp_path):
    with pytest.raises(ValueError, match="on_peer_death is"):
        ReplayBuffer(10, example=0, limits=Limits(on_peer_death=word))
    ReplayBuffer(10, example=0).save(tmp_path)
    with pytest.raises(ValueError, match="on_peer_death is"):
        ReplayBuffer.load(tmp_path, limits=Limits(on_peer_death=word))
