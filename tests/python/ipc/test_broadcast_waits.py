"""Poll loops, coroutines and devices for subscribers, and the sender's interface of a Broadcast."""

from __future__ import annotations

import queue
import threading
import warnings
from typing import Any

import numpy as np
import pytest
from broadcast_peers import hold_unused, put_on_signal
from starts import running

import shmtree


def test_wait_accepts_subscribers_and_receivers_together() -> None:
    broadcast = shmtree.Broadcast()
    reader, idle = broadcast.subscribe(), broadcast.subscribe(on_lag="skip")
    idle_sender, receiver = shmtree.create_pair()
    assert shmtree.wait([reader, receiver], timeout=0.01) == []
    with running(put_on_signal, broadcast, None) as (_, told):
        told.send("x")
        assert shmtree.wait([receiver, reader], timeout=60) == [reader]
        assert reader.get() == "x"
        assert idle.get() == "x"
        idle_sender.put(1)
        assert shmtree.wait([reader, receiver, idle], timeout=60) == [receiver]


def test_broadcast_reports_capacity_space_and_pending_acks() -> None:
    broadcast = shmtree.Broadcast(capacity=2)
    assert broadcast.capacity == 2
    assert broadcast.has_space()
    assert broadcast.pending_acks == 0
    reader = broadcast.subscribe()
    broadcast.put_many([1, 2])
    assert broadcast.pending_acks == 2
    assert not broadcast.has_space()
    assert reader.get() == 1
    assert broadcast.pending_acks == 1
    assert broadcast.has_space()


def test_get_to_moves_arrays_to_a_device() -> None:
    torch = pytest.importorskip("torch")
    broadcast = shmtree.Broadcast()
    reader = broadcast.subscribe()
    broadcast.put({"x": np.arange(10_000), "y": "text"})
    got = reader.get_to("cpu")
    assert got["y"] == "text"
    assert torch.equal(got["x"], torch.arange(10_000))
    with pytest.raises(shmtree.DeviceError):
        reader.get_to("cuda:99")


def wait_for_all_ack(broadcast: shmtree.Broadcast) -> None:
    broadcast.wait_for_all_ack(timeout=1)


def put(broadcast: shmtree.Broadcast) -> None:
    broadcast.put(2, timeout=1)


@pytest.mark.parametrize("call", [put, wait_for_all_ack])
def test_wait_on_an_unused_subscription_warns_with_its_pid(soon: Any, call: Any) -> None:
    broadcast = shmtree.Broadcast(capacity=1)
    reader = broadcast.subscribe()
    with running(hold_unused, reader, None) as (process, told):
        with warnings.catch_warnings():
            # the pipe may warn until the process has detached from the ends that were not given to it
            warnings.simplefilter("ignore")
            assert told.recv() == "ready"
        reader.close()
        broadcast.put(1)
        with (
            pytest.warns(shmtree.UnusedEndWarning, match=f"a subscriber of a Broadcast that process {process.pid} has"),
            pytest.raises((queue.Full, TimeoutError)),
        ):
            call(broadcast)


def test_put_that_waits_for_a_slow_reader_does_not_warn(soon: Any) -> None:
    broadcast = shmtree.Broadcast(capacity=1)
    reader = broadcast.subscribe()
    broadcast.put(1)
    reader.get()
    broadcast.put(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(queue.Full):
            broadcast.put(3, timeout=1)


def test_wait_wakes_every_waiting_thread() -> None:
    broadcast = shmtree.Broadcast()
    readers = [broadcast.subscribe() for _ in range(4)]
    got: list[Any] = []

    def read(reader: shmtree.Subscriber) -> None:
        assert shmtree.wait([reader], timeout=60) == [reader]
        got.append(reader.get())

    threads = [threading.Thread(target=read, args=(reader,)) for reader in readers]
    for thread in threads:
        thread.start()
    broadcast.put("x")
    for thread in threads:
        thread.join(60)
    assert got == ["x"] * 4
