"""Messages that every subscriber receives, in any process and at any speed."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import queue
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
from broadcast_peers import (
    count_whole,
    hang,
    put_run,
    read_one_and_hang,
    report_all,
    subscribe_and_report,
)
from shared_state import violated_by
from starts import running

import shmtree
from shmtree import multiprocessing as mp

MIB = 1 << 20


def drain(subscriber: shmtree.Subscriber) -> list[Any]:
    found = []
    with contextlib.suppress(queue.Empty):
        while True:
            found.append(subscriber.get(timeout=0))
    return found


def test_large_arrays_are_read_only_views_of_one_copy(arena: shmtree.Arena) -> None:
    broadcast = shmtree.Broadcast(arena=arena)
    readers = [broadcast.subscribe() for _ in range(3)]
    before = arena.stats()["used_bytes"]
    broadcast.put({"frame": np.arange(MIB, dtype=np.uint8)})
    assert arena.stats()["used_bytes"] - before < 1.1 * MIB
    got = [reader.get() for reader in readers]
    assert arena.stats()["used_bytes"] - before < 1.1 * MIB
    for each in got:
        assert not each["frame"].flags.writeable
        assert each["frame"][1000] == 232
    del got, each
    gc.collect()
    assert arena.stats()["used_bytes"] == before


def test_put_waits_for_a_blocking_subscriber_and_names_its_pid() -> None:
    broadcast = shmtree.Broadcast(capacity=2)
    reader = broadcast.subscribe()
    broadcast.put(1)
    broadcast.put(2)
    with pytest.raises(queue.Full, match=f"process {os.getpid()} has not read 2 messages"):
        broadcast.put(3, timeout=0.01)
    with pytest.raises(queue.Full):
        broadcast.put_nowait(3)
    with pytest.raises(TimeoutError):
        broadcast.wait_for_all_ack(timeout=0.01)
    with pytest.raises(TimeoutError):
        broadcast.flush(timeout=0.01)
    with pytest.raises(queue.Full) as full:
        broadcast.put_many([3, 4], timeout=0.01)
    assert full.value.sent == 0  # type: ignore[attr-defined]
    assert reader.get_many(5) == [1, 2]
    broadcast.wait_for_all_ack(timeout=60)
    broadcast.flush(timeout=60)
    assert broadcast.put_many([3, 4]) == 2


def test_lagging_subscriber_gets_the_newest_and_counts_missed() -> None:
    broadcast = shmtree.Broadcast(capacity=4)
    skips, latest = broadcast.subscribe(on_lag="skip"), broadcast.subscribe(on_lag="latest")
    told = broadcast.subscribe(on_lag="raise")
    broadcast.put_many(range(10))
    assert (drain(skips), skips.missed) == ([6, 7, 8, 9], 6)
    assert (drain(latest), latest.missed) == ([9], 9)
    with pytest.raises(shmtree.Overrun, match="6 messages") as overrun:
        told.get()
    assert (overrun.value.missed, told.missed) == (6, 6)
    assert isinstance(overrun.value, shmtree.Error)
    assert drain(told) == [6, 7, 8, 9]
    broadcast.put_many(range(5))
    with pytest.raises(shmtree.Overrun) as overrun:
        told.get()
    assert (overrun.value.missed, told.missed) == (1, 7)


@pytest.mark.guarantee("broadcast-processes")
def test_other_processes_subscribe_and_put() -> None:
    broadcast = shmtree.Broadcast()
    mine = broadcast.subscribe()
    with running(subscribe_and_report, broadcast, None) as (_, told):
        assert told.recv() == "ready"
        putter = mp.get_context("fork").Process(target=put_run, args=(broadcast, range(5)))
        putter.start()
        assert [told.recv() for _ in range(5)] == [0, 1, 2, 3, 4]
        putter.join()
        assert [mine.get(timeout=60) for _ in range(5)] == [0, 1, 2, 3, 4]


@pytest.mark.guarantee("broadcast-processes")
def test_three_reader_processes_get_whole_messages() -> None:
    broadcast = shmtree.Broadcast(capacity=4, arena=shmtree.Arena(64 * MIB))
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(running(count_whole, broadcast.subscribe(), None)) for _ in range(3)]
        for number in range(1, 300):
            broadcast.put({"number": number, "big": np.full(10_000, number)})
        broadcast.put({"number": 0})
        assert [told.recv() for _, told in readers] == [299, 299, 299]


@pytest.mark.guarantee("broadcast-processes")
def test_killed_blocking_reader_stops_blocking_puts() -> None:
    broadcast = shmtree.Broadcast(capacity=2)
    with running(read_one_and_hang, broadcast.subscribe(), None) as (process, told):
        broadcast.put(1)
        assert told.recv() == 1
        broadcast.put_many([2, 3])
        with pytest.raises(queue.Full, match=f"process {process.pid} "):
            broadcast.put(4, timeout=0.05)
        os.kill(process.pid, signal.SIGKILL)
        began = time.monotonic()
        broadcast.put(4, timeout=100)
        assert time.monotonic() - began < 60
        assert broadcast.stats()["subscribers"] == 0


@pytest.mark.guarantee("broadcast-processes")
def test_stopped_and_killed_readers_do_not_delay_another() -> None:
    broadcast = shmtree.Broadcast(capacity=4)
    with contextlib.ExitStack() as stack:
        stopped, its = stack.enter_context(running(report_all, broadcast.subscribe(on_lag="skip"), None))
        killed, last = stack.enter_context(running(report_all, broadcast.subscribe(), None))
        _, told = stack.enter_context(running(report_all, broadcast.subscribe(), None))
        broadcast.put(0)
        for each in (its, last, told):
            assert [each.recv() for _ in range(2)] == ["ready", 0]
        os.kill(stopped.pid, signal.SIGSTOP)
        os.kill(killed.pid, signal.SIGKILL)
        began = time.monotonic()
        for number in range(1, 200):
            broadcast.put(number, timeout=60)
            assert told.recv() == number
        assert time.monotonic() - began < 20
        os.kill(stopped.pid, signal.SIGCONT)
        broadcast.close()
        numbers = list(iter(its.recv, "ChannelClosed"))
        assert numbers == sorted(set(numbers)) and numbers[-1] == 199


@pytest.mark.guarantee("broadcast-dead-publisher")
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("use_async", [False, True])
def test_process_killed_before_its_first_put_is_reported(method: str, use_async: bool) -> None:
    broadcast = shmtree.Broadcast()
    reader = broadcast.subscribe()
    with running(hang, broadcast, None, method=method) as (process, told):
        assert told.recv() == process.pid
        process.kill()
        with pytest.raises(shmtree.PeerDied, match=str(process.pid)):
            asyncio.run(reader.get_async(timeout=60)) if use_async else reader.get(timeout=60)
    broadcast.put("again")
    assert reader.get() == "again"


@pytest.mark.guarantee("broadcast-processes")
def test_64_subscriber_processes_receive_all_messages() -> None:
    broadcast = shmtree.Broadcast()
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(running(report_all, broadcast.subscribe(), None)) for _ in range(64)]
        for number in range(10):
            broadcast.put(number, timeout=100)
        for _, told in readers:
            assert [told.recv() for _ in range(11)] == ["ready", *range(10)]


def test_invalid_options_and_too_many_subscribers_raise() -> None:
    with pytest.raises(ValueError, match="capacity is 0"):
        shmtree.Broadcast(0)
    with pytest.raises(ValueError, match="on_lag is 'x'"):
        shmtree.Broadcast().subscribe(on_lag="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="start is 'x'"):
        shmtree.Broadcast().subscribe(start="x")  # type: ignore[arg-type]
    broadcast = shmtree.Broadcast()
    readers = [broadcast.subscribe() for _ in range(256)]
    with pytest.raises(ValueError, match="256"):
        broadcast.subscribe()
    assert violated_by(broadcast) == ""
    del readers


class FailsToLoad:
    def __reduce__(self):
        return int, ("x",)


def test_get_many_returns_messages_before_an_unreadable_one():
    broadcast = shmtree.Broadcast()
    reader = broadcast.subscribe()
    for message in (1, 2, FailsToLoad(), 4):
        broadcast.put(message)
    assert reader.get_many(8, timeout=30) == [1, 2]
    assert shmtree.wait([reader], timeout=0) == [reader]
    with pytest.raises(ValueError, match="invalid literal"):
        reader.get_many(8, timeout=30)
    assert reader.get_many(8, timeout=30) == [4]


def test_get_many_raises_overrun_before_the_next_messages():
    broadcast = shmtree.Broadcast(capacity=2)
    reader = broadcast.subscribe(on_lag="raise")
    for message in range(5):
        broadcast.put(message)
    with pytest.raises(shmtree.Overrun) as told:
        reader.get_many(8, timeout=30)
    assert told.value.missed == 3
    assert reader.get_many(8, timeout=30) == [3, 4]


def test_get_many_in_threads_loses_no_message():
    broadcast = shmtree.Broadcast(capacity=64)
    reader = broadcast.subscribe()
    found: list[int] = []

    def read() -> None:
        while True:
            try:
                found.extend(reader.get_many(16))
            except shmtree.ChannelClosed:
                return

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(20_000):
        broadcast.put(number)
    broadcast.close()
    for thread in threads:
        thread.join(120)
    assert sorted(found) == list(range(20_000))


def test_wait_for_ack_names_readers_and_refuses_unknown_tickets() -> None:
    broadcast = shmtree.Broadcast(capacity=3)
    reader = broadcast.subscribe()
    ticket = broadcast.put(1)
    text = f"messages were not read within the timeout: process {os.getpid()} has not read 1 messages"
    for wait in (broadcast.flush, functools.partial(broadcast.wait_for_ack, ticket)):
        with pytest.raises(TimeoutError, match=text):
            wait(timeout=0.01)
    with pytest.raises(ValueError, match="ticket 1 does not exist yet: the Broadcast's next ticket is 1"):
        broadcast.wait_for_ack(1)
    assert reader.get() == 1
    broadcast.wait_for_ack(ticket, timeout=60)


def test_put_without_subscribers_never_blocks_and_keeps_history() -> None:
    broadcast = shmtree.Broadcast(capacity=4, history=3)
    assert [broadcast.put(number) for number in range(20)] == list(range(20))
    assert drain(broadcast.subscribe(start="oldest")) == [17, 18, 19]
    assert drain(broadcast.subscribe()) == []
