"""A server restarts: with `keep_open="both"`, its clients wait for the next one after a kill and after an exit."""

from __future__ import annotations

import multiprocessing as mp
import os
import queue
import signal
import threading
from typing import Any

import pytest

import shmtree

pytestmark = pytest.mark.usefixtures("runtime_directory")

WAYS = ["exit", "kill"]


def stop(process: Any, pipe: Any, way: str) -> None:
    """Ends a server that waits for a message from the pipe."""
    if way == "kill":
        os.kill(process.pid, signal.SIGKILL)
    else:
        pipe.send("exit")
    process.join(60)


def ack(name: str, policy: Any, count: int, pipe: Any) -> None:
    """Acks `count` messages and takes another one. Sends all of them, and exits without an ack of the last one."""
    _, receiver = shmtree.create_pair(2, name=name, exist_ok=True, keep_open="both", on_peer_death=policy)
    items = []
    for _ in range(count):
        with receiver.take() as delivery:
            items.append(delivery.item)
    kept = receiver.take()
    pipe.send([*items, kept.item])
    pipe.recv()


@pytest.mark.guarantee("keep-open-both")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("policy", ["raise", "wait"])
def test_put_and_flush_wait_for_the_next_server(name, start, policy, way):
    ours, theirs = mp.Pipe()
    first = start(ack, name, policy, 1, theirs)
    sender = shmtree.open_sender(name, timeout=60)
    sender.put_many(range(2))
    assert ours.recv() == [0, 1]
    stop(first, ours, way)
    sender.stats()  # detects dead processes: message 1 counts as queued again

    sender.put(2, timeout=60)
    with pytest.raises(queue.Full):
        sender.put(3, timeout=0.01)
    with pytest.raises(TimeoutError):
        sender.flush(timeout=0.01)
    assert sender.pending_acks == 2

    second = start(ack, name, policy, 3, theirs)
    sender.put(3, timeout=60)
    sender.put(4, timeout=60)
    assert ours.recv() == [1, 2, 3, 4]
    with pytest.raises(TimeoutError, match="1 messages"):
        sender.flush(timeout=0.01)
    stop(second, ours, way)


@pytest.mark.parametrize("way", WAYS)
def test_flush_in_progress_ends_with_the_next_server(name, start, way):
    ours, theirs = mp.Pipe()
    first = start(ack, name, "raise", 0, theirs)
    sender = shmtree.open_sender(name, timeout=60)
    sender.put(1)
    assert ours.recv() == [1]
    stop(first, ours, way)
    with pytest.raises(TimeoutError):
        sender.wait_for_receivers(1, timeout=0.01)

    flushing = threading.Thread(target=sender.flush, args=(60,))
    flushing.start()
    _, receiver = shmtree.create_pair(2, name=name, exist_ok=True, keep_open="both")
    assert receiver.get(timeout=60) == 1
    flushing.join(60)
    assert not flushing.is_alive()


def test_keep_open_refuses_other_words(name):
    with pytest.raises(ValueError, match="keep_open is 'all'; it must be False, True or 'both'"):
        shmtree.create_pair(keep_open="all")  # type: ignore[arg-type]
    kept = shmtree.create_pair(name=name, keep_open=True)
    with pytest.raises(ValueError, match="keep_open true, not both"):
        shmtree.create_pair(name=name, keep_open="both", exist_ok=True)
    del kept


def test_keep_open_of_a_broadcast_waits_for_the_next_publisher(start):
    frames = shmtree.Broadcast(keep_open="both")
    subscriber = frames.subscribe()
    start(frames.put, 1).join(60)
    assert subscriber.get(timeout=60) == 1
    with pytest.raises(queue.Empty):
        subscriber.get(timeout=0.01)


# --- waits for peers -------------------------------------------------------------------------------------------------


def get_one(receiver: shmtree.Receiver) -> None:
    receiver.get(timeout=60)


@pytest.mark.guarantee("wait-for-peers")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_wait_for_receivers_returns_when_they_are_attached(start, method):
    sender, receiver = shmtree.create_pair()
    with pytest.raises(TimeoutError, match="0 of 1 receivers"):
        sender.wait_for_receivers(1, timeout=0.01)
    children = [start(get_one, receiver, method=method) for _ in range(2)]
    sender.wait_for_receivers(2, timeout=60)
    sender.put_many(range(2))
    for child in children:
        child.join(60)
    with pytest.raises(TimeoutError, match="0 of 1 receivers"):
        sender.wait_for_receivers(1, timeout=0.01)
    with pytest.raises(ValueError, match="negative"):
        sender.wait_for_receivers(-1)


def test_close_ends_a_wait_for_receivers():
    sender, receiver = shmtree.create_pair()
    closing = threading.Timer(0.05, sender.close)
    closing.start()
    with pytest.raises(shmtree.ChannelClosed):
        sender.wait_for_receivers(1, timeout=60)
    closing.join()
    receiver.close()


def subscribe(frames: shmtree.Broadcast, pipe: Any) -> None:
    pipe.send(frames.subscribe().get(timeout=60))


@pytest.mark.guarantee("wait-for-peers")
def test_wait_for_subscribers_returns_when_they_are_there(start):
    frames = shmtree.Broadcast()
    with pytest.raises(TimeoutError, match="0 of 2 subscribers"):
        frames.wait_for_subscribers(2, timeout=0.01)
    ours, theirs = mp.Pipe()
    for _ in range(2):
        start(subscribe, frames, theirs)
    frames.wait_for_subscribers(2, timeout=60)
    frames.put("to both")
    assert [ours.recv() for _ in range(2)] == ["to both"] * 2
