"""Publishers and readers of a Latest that are killed, stopped, or hoard: no reader gets a torn version or blocks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import threading
import time

import pytest
from latest_peers import (
    hold_and_hang,
    is_whole,
    make_then_end,
    publish_for_ever,
    publish_when_told,
    read_on,
    report_one,
    wait_idly,
    weights,
)
from shared_state import violated, violated_by
from starts import running

import shmtree
from shmtree import multiprocessing as mp

MIB = 1 << 20
SPAWN = mp.get_context("spawn")


@pytest.mark.guarantee("latest-whole-versions")
def test_readers_of_killed_publishers_see_whole_newer_versions() -> None:
    latest = shmtree.Latest(arena=shmtree.Arena(64 * MIB), history=1)
    latest.publish(weights(0))
    done = threading.Event()
    wrong: list[int] = []

    def read() -> None:
        last = 0
        while not done.is_set():
            version, value = latest.get()
            if version < last or not is_whole(value):
                wrong.append(version)
            last = version

    thread = threading.Thread(target=read)
    thread.start()
    before = latest.version
    for round_ in range(60):
        with running(publish_for_ever, latest, None) as (process, told):
            told.recv()
            time.sleep(0.0007 * (round_ % 10))
            os.kill(process.pid, signal.SIGKILL)
    done.set()
    thread.join()
    assert wrong == []
    assert latest.version > before
    assert latest.publish(weights(1)) == latest.version
    gc.collect()
    assert violated_by(latest) == ""
    latest._shared.arena.stats()  # stats() detects the dead
    assert violated(latest._shared.arena) == ""


def test_reader_processes_see_whole_newer_versions() -> None:
    latest = shmtree.Latest(arena=shmtree.Arena(64 * MIB))
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(running(read_on, latest, None, 2000)) for _ in range(4)]
        for number in range(2000):
            latest.publish(weights(number))
        assert all(told.recv() for _, told in readers)


@pytest.mark.guarantee("latest-many-readers")
def test_64_reader_processes_see_each_new_version() -> None:
    latest = shmtree.Latest()
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(running(read_on, latest, None, 2)) for _ in range(64)]
        latest.publish(weights(1))
        latest.publish(weights(2))
        assert all(told.recv() for _, told in readers)


@pytest.mark.guarantee("latest-dead-publisher")
@pytest.mark.parametrize("end", ["kill", "close", "exit"])
@pytest.mark.parametrize("readers", [1, 2])
def test_readers_get_an_error_if_the_maker_never_published(end: str, readers: int, name: str) -> None:
    ended = []

    def read(latest: shmtree.Latest) -> None:
        with pytest.raises(shmtree.Error) as error:
            latest.get(timeout=60)
        ended.append((error.type, getattr(error.value, "pids", None)))

    with running(make_then_end, name, None, end) as (_, told):
        pid = told.recv()
        threads = [threading.Thread(target=read, args=[shmtree.Latest.open(name)]) for _ in range(readers)]
        for thread in threads:
            thread.start()
        told.send("go on")
        for thread in threads:
            thread.join(60)
    expected = (shmtree.PeerDied, (pid,)) if end == "kill" else (shmtree.ChannelClosed, None)
    assert ended == [expected] * readers


@pytest.mark.guarantee("latest-dead-publisher")
def test_coroutine_gets_peer_died_if_the_maker_never_published(name: str) -> None:
    with running(make_then_end, name, None, "kill") as (_, told):
        told.recv()
        latest: shmtree.Latest = shmtree.Latest.open(name)
        told.send("go on")
        with pytest.raises(shmtree.PeerDied):
            asyncio.run(latest.get_async(timeout=60))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_readers_wait_for_a_process_that_may_publish_first(method: str) -> None:
    latest: shmtree.Latest = shmtree.Latest()
    with (
        running(publish_when_told, latest, None, method=method) as (_, told),
        running(report_one, latest, None, method=method) as (_, reads),
    ):
        latest.close()
        assert reads.recv() == "ready"
        assert not reads.poll(0.5)
        told.send("publish")
        assert reads.recv() == (1, "first")


@pytest.mark.guarantee("latest-dead-publisher")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_maker_gets_peer_died_if_a_child_never_published(method: str) -> None:
    latest: shmtree.Latest = shmtree.Latest()
    with running(publish_when_told, latest, None, method=method) as (process, told):
        told.send("come")
        assert told.recv() == "here"
        process.kill()
        with pytest.raises(shmtree.PeerDied, match=str(process.pid)):
            latest.get(timeout=60)
    latest.publish(1)
    assert latest.get() == (1, 1)


@pytest.mark.guarantee("latest-stopped-reader")
def test_stopped_reader_does_not_block_publish() -> None:
    latest = shmtree.Latest(arena=shmtree.Arena(64 * MIB))
    latest.publish(weights(0))
    with running(read_on, latest, None, 1 << 40) as (reader, _):
        for number in range(200):
            latest.publish(weights(number))
            if number == 100:
                os.kill(reader.pid, signal.SIGSTOP)
        assert latest.version == 201


@pytest.mark.guarantee("latest-hoarded-versions")
def test_publish_raises_with_the_pid_that_holds_old_versions() -> None:
    latest = shmtree.Latest(arena=shmtree.Arena(16 * MIB))
    latest.publish(weights(0, elements=MIB // 8 * 3 // 4))
    with running(hold_and_hang, latest, None) as (reader, told):
        assert told.recv() == reader.pid
        latest.publish(weights(1, elements=MIB // 8 * 3 // 4), timeout=30)
        with pytest.raises(shmtree.OutOfSharedMemory, match=f"pid {reader.pid} holds"):
            latest.publish(weights(2, elements=MIB // 8 * 3 // 4), timeout=30)
    gc.collect()
    assert latest.publish(weights(9, elements=MIB // 8 * 3 // 4), timeout=30) == latest.version


@pytest.mark.guarantee("latest-many-readers")
def test_waiting_reader_uses_almost_no_cpu() -> None:
    latest = shmtree.Latest()
    latest.publish(1)
    with running(wait_idly, latest, None, 4.0) as (_, told):
        assert told.recv() == "ready"
        assert told.recv() < 0.01
