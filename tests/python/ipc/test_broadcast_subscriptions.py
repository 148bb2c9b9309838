"""Subscriptions that were made and not used yet: which process owns them, and when they end."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import queue
import signal
from multiprocessing.connection import Connection

import pytest
from broadcast_peers import close_on_signal, read_one_and_hang, report_all
from starts import running

import shmtree
from shmtree import multiprocessing as shared_mp


def is_full(broadcast: shmtree.Broadcast) -> bool:
    with contextlib.suppress(queue.Full):
        broadcast.put("more", timeout=0.05)
        return False
    return True


def test_closed_unused_subscription_stops_blocking_puts() -> None:
    broadcast = shmtree.Broadcast(capacity=1)
    reader = broadcast.subscribe()
    broadcast.put(1)
    with pytest.raises(queue.Full, match=f"process {os.getpid()} has not read 1 .* that was never used"):
        broadcast.put_nowait(2)
    pickle.dumps(reader)
    reader.close()
    assert not is_full(broadcast)
    assert broadcast.stats()["subscribers"] == 0


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_inherited_subscription_blocks_until_both_close_it(method: str) -> None:
    broadcast = shmtree.Broadcast(capacity=1)
    reader = broadcast.subscribe()
    with running(close_on_signal, reader, None, method=method) as (process, told):
        assert told.recv() == "ready"
        broadcast.put(1)
        with pytest.raises(queue.Full) as full:
            broadcast.put_nowait(2)
        assert str(os.getpid()) in str(full.value)
        assert str(process.pid) in str(full.value)
        reader.close()
        with pytest.raises(queue.Full, match=f"process {process.pid} has not read"):
            broadcast.put_nowait(2)
        told.send("close")
        broadcast.put(2, timeout=30)


@pytest.mark.guarantee("broadcast-unread-subscription")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_child_killed_before_reading_stops_blocking_puts(method: str) -> None:
    broadcast = shmtree.Broadcast(capacity=1)
    context = shared_mp.get_context(method)
    told, theirs = context.Pipe()
    process = context.Process(target=close_on_signal, args=(broadcast.subscribe(), theirs))
    process.start()
    assert told.recv() == "ready"
    gc.collect()
    broadcast.put(1)
    assert is_full(broadcast)
    process.kill()
    broadcast.put(2, timeout=30)
    process.join()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_parent_may_close_a_subscription_once_its_child_started(method: str) -> None:
    """Holds for multiprocessing's own start methods too."""
    context = multiprocessing.get_context(method)
    broadcast = shmtree.Broadcast()
    reader = broadcast.subscribe()
    mine, theirs = context.Pipe()
    process = context.Process(target=report_all, args=(reader, theirs), daemon=True)
    process.start()
    reader.close()
    broadcast.put("there")
    assert [mine.recv(), mine.recv()] == ["ready", "there"]
    broadcast.close()
    process.join()


def test_sent_subscription_stays_open_until_it_arrives() -> None:
    broadcast = shmtree.Broadcast(capacity=1)
    with running(read_a_sent_one, None) as (process, told):
        told.send(broadcast.subscribe())
        gc.collect()
        broadcast.put(1)
        assert told.recv() == 1
        broadcast.put(2)
        with pytest.raises(queue.Full, match=f"process {process.pid} has not read 1 messages of a Broadcast.*1$"):
            broadcast.put_nowait(3)


@pytest.mark.guarantee("broadcast-unread-subscription")
@pytest.mark.parametrize("sent_by", ["pipe", "message"])
@pytest.mark.parametrize("end", ["close", "drop", "die"])
def test_unread_received_subscription_ends_with_its_receiver(sent_by: str, end: str) -> None:
    broadcast = shmtree.Broadcast(capacity=1)
    sender, receiver = shmtree.create_pair()
    with running(receive_and_end, receiver, end, None) as (process, told):
        subscriber = broadcast.subscribe()
        if sent_by == "pipe":
            told.send(subscriber)
        else:
            sender.put(subscriber)
            told.send(None)
        del subscriber
        gc.collect()
        broadcast.put(1)
        assert told.recv() == "arrived"
        with pytest.raises(queue.Full, match=f"process {process.pid} has not read"):
            broadcast.put_nowait(2)
        told.send(end)
        if end != "die":
            assert told.recv() == "ended"
        broadcast.put(2, timeout=60)
        assert broadcast.stats()["subscribers"] == 0


def receive_and_end(receiver: shmtree.Receiver, end: str, told: Connection) -> None:
    subscriber = told.recv() or receiver.get()
    told.send("arrived")
    told.recv()
    if end == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if end == "close":
        subscriber.close()
    del subscriber
    gc.collect()
    told.send("ended")
    told.recv()


def read_a_sent_one(told: Connection) -> None:
    read_one_and_hang(told.recv(), told)


def test_used_subscription_cannot_be_sent() -> None:
    broadcast = shmtree.Broadcast()
    reader = broadcast.subscribe()
    broadcast.put(1)
    assert reader.get() == 1
    with pytest.raises(shmtree.ChannelClosed, match="cannot be handed to another"):
        pickle.dumps(reader)
    sender, _receiver = shmtree.create_pair()
    with pytest.raises(shmtree.ChannelClosed):
        sender.put(reader)


def test_subscription_closed_before_arrival_arrives_closed() -> None:
    broadcast = shmtree.Broadcast()
    reader = broadcast.subscribe()
    sender, receiver = shmtree.create_pair()
    sender.put({"reader": reader, "more": 1})
    data = pickle.dumps(reader)
    reader.close()
    got = receiver.get()
    assert got["reader"].closed
    assert got["more"] == 1
    with pytest.raises(FileNotFoundError, match="the subscription no longer exists"):
        pickle.loads(data)
