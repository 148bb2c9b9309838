"""A server restarts: with `keep_open="both"`, its clients wait for the next one after a kill and after an exit."""

from __future__ import annotations

import asyncio
import multiprocessing as mp
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from services import end

import shmtree
from shmtree import Client, Service

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


def test_timeout_error_says_that_no_peer_is_attached():
    sender, receiver = shmtree.create_pair(1, keep_open="both")
    sender.put(1)
    assert receiver.get() == 1
    sender.put(2)
    calls: list[Callable[[], Any]] = [
        lambda: sender.put(3, timeout=0.01),
        lambda: sender.put_many([3], timeout=0.01),
        lambda: asyncio.run(sender.put_async(3, timeout=0.01)),
        lambda: sender.flush(timeout=0.01),
        lambda: sender.wait_for_ack(1, timeout=0.01),
    ]
    for call in calls:
        with pytest.raises((queue.Full, TimeoutError)) as raised:
            call()
        assert "no receiver is attached" not in str(raised.value)
    receiver.close()
    for call in calls:
        with pytest.raises((queue.Full, TimeoutError), match="; no receiver is attached$"):
            call()
    sender, receiver = shmtree.create_pair(1, keep_open=True)
    sender.put(1)
    assert receiver.get() == 1
    with pytest.raises(queue.Empty) as raised:
        receiver.get(timeout=0.01)
    assert "no sender is attached" not in str(raised.value)
    sender.close()
    with pytest.raises(queue.Empty, match="; no sender is attached$"):
        receiver.get(timeout=0.01)


def test_keep_open_refuses_other_words(name):
    with pytest.raises(ValueError, match="keep_open is 'all'; it must be False, True or 'both'"):
        shmtree.create_pair(keep_open="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="keep_open is False"):
        Service(keep_open=False)
    kept = shmtree.create_pair(name=name, keep_open=True)
    with pytest.raises(ValueError, match='a channel with other options: keep_open true, not "both"'):
        shmtree.create_pair(name=name, keep_open="both", exist_ok=True)
    del kept
    served: Service[int] = Service(name, keep_open="both")
    with pytest.raises(
        ValueError, match='a Service with other options: capacity 1024, not 1, keep_open "both", not true'
    ):
        Service(name, capacity=1)
    del served


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


# --- services --------------------------------------------------------------------------------------------------------


def answer(name: str, pipe: Any, count: int, keep_open: Any = "both") -> None:
    """Answers `count` requests, and exits or is killed while it has another one."""
    service: Service[int] = Service(name, keep_open=keep_open)
    for _ in range(count):
        request = service.get()
        request.reply(request.value + 1)
    held = service.get()
    pipe.send(held.value)
    pipe.recv()


def answer_all(name: str, keep_open: Any = "both") -> None:
    for request in Service(name, keep_open=keep_open):
        request.reply(request.value + 1)


@pytest.mark.guarantee("service-waits")
@pytest.mark.parametrize("way", WAYS)
def test_only_requests_of_the_dead_server_fail(name, start, way):
    ours, theirs = mp.Pipe()
    first = start(answer, name, theirs, 1)
    with Client(name, timeout=60) as client:
        asked = [client.submit(number) for number in range(4)]
        assert ours.recv() == 1
        stop(first, ours, way)
        error = asked[1].exception(timeout=60)
        assert isinstance(error, shmtree.PeerDied if way == "kill" else shmtree.RemoteError)
        assert way == "kill" or error.dropped
        with pytest.raises(TimeoutError):
            client.call(0, timeout=0.5)
        assert not asked[2].done()

        start(answer_all, name)
        assert [asked[number].result(timeout=60) for number in (0, 2, 3)] == [1, 3, 4]
        assert client.call(4, timeout=60) == 5


@pytest.mark.guarantee("service-waits")
@pytest.mark.parametrize("keep_open", [True, "both"])
@pytest.mark.parametrize("way", WAYS)
def test_call_with_retry_is_sent_to_the_next_server(name, start, way, keep_open):
    ours, theirs = mp.Pipe()
    first = start(answer, name, theirs, 0, keep_open)
    with Client(name, timeout=60) as client:
        results: queue.Queue[Any] = queue.Queue()
        calling = threading.Thread(target=lambda: results.put(client.call(1, timeout=60, retry=60)))
        calling.start()
        assert ours.recv() == 1
        stop(first, ours, way)
        second = start(answer, name, theirs, 0, keep_open)
        assert ours.recv() == 1
        stop(second, ours, way)
        start(answer_all, name, keep_open)
        assert results.get(timeout=60) == 2
        calling.join()


@pytest.mark.guarantee("service-waits")
def test_async_call_with_retry_is_sent_to_the_next_server(name, start):
    ours, theirs = mp.Pipe()
    first = start(answer, name, theirs, 0)

    async def ask() -> tuple[int, int]:
        with Client(name, timeout=60) as client:
            asked = asyncio.ensure_future(client.call_async(1, timeout=60, retry=None))
            assert await asyncio.to_thread(ours.recv) == 1
            end(first)
            start(answer_all, name)
            return await asked, await client.call_async(2, timeout=60)

    assert asyncio.run(ask()) == (2, 3)


def test_call_raises_peer_died_after_the_retry_time(name, start):
    server = start(answer_all, name, True)
    with Client(name, timeout=60) as client:
        assert client.call(1, timeout=60) == 2
        end(server)
        with pytest.raises(shmtree.PeerDied):
            client.call(2, timeout=60, retry=1)


def test_retry_does_not_repeat_a_failed_request(name, start):
    start(fail_all, name)
    with Client(name, timeout=60) as client, pytest.raises(shmtree.RemoteError, match="request 1"):
        client.call(1, timeout=60, retry=60)


def fail_all(name: str) -> None:
    for number, request in enumerate(Service(name), 1):
        request.fail(f"request {number}")


@pytest.mark.guarantee("keep-open-both", "service-waits")
def test_points_of_clients_are_stored_once_despite_restarts():
    program = Path(__file__).parents[2] / "chaos_restarts.py"
    command = [sys.executable, program, "--restarts", "6"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
