"""Options of pairs: stay open, drop the oldest messages, report each death, open an existing pair."""

from __future__ import annotations

import multiprocessing as mp
import os
import queue
import signal
from typing import Any

import peers
import pytest

import shmtree


def put_and_stay(sender: shmtree.Sender, told: Any) -> None:
    sender.put(os.getpid())
    told.recv()


@pytest.mark.guarantee("keep-open")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_keep_open_stream_waits_for_the_next_client(start, method):
    sender, receiver = shmtree.create_pair(keep_open=True)
    for number in range(2):
        client = start(peers.put_all, sender, [number], method=method)
        assert receiver.get(timeout=60) == number
        client.join(60)
        with pytest.raises(queue.Empty):
            receiver.get(timeout=0.01)
    sender.close()
    with pytest.raises(queue.Empty):
        receiver.get(timeout=0.01)
    assert not shmtree.wait([receiver], timeout=0)


@pytest.mark.guarantee("drop-oldest")
def test_put_on_full_drops_the_oldest_and_counts_it():
    sender, receiver = shmtree.create_pair(capacity=3, on_full="drop_oldest")
    for number in range(10):
        assert sender.put(number, timeout=0) == number
    assert sender.dropped == sender.stats()["dropped"] == 7
    assert receiver.get_many(10) == [7, 8, 9]
    sender.put_many(range(10))
    assert receiver.get_many(10) == [7, 8, 9]
    sender.wait_for_all_ack(timeout=60)


def test_large_put_drops_as_many_messages_as_it_needs():
    sender, receiver = shmtree.create_pair(capacity=None, max_bytes=100_000, on_full="drop_oldest")
    sender.put(b"a" * 40_000)
    sender.put(b"b" * 40_000)
    sender.put(b"c" * 90_000)
    assert sender.dropped == 2
    assert receiver.get() == b"c" * 90_000


def test_put_with_drop_oldest_raises_if_receivers_were_killed(start):
    sender, receiver = shmtree.create_pair(capacity=1, on_full="drop_oldest")
    ours, theirs = mp.Pipe()
    consumer = start(peers.take_and_hang, receiver, theirs)
    sender.put(1)
    assert ours.recv() == (1, False)
    os.kill(consumer.pid, signal.SIGKILL)
    consumer.join()
    sender.put(2)
    sender.stats()  # stats() detects dead processes
    with pytest.raises(shmtree.PeerDied) as died:
        sender.put(3, timeout=0)
    assert died.value.pids == (consumer.pid,)


@pytest.mark.guarantee("each-death-once")
def test_on_peer_death_each_reports_a_death_while_others_send(start):
    sender, receiver = shmtree.create_pair(on_peer_death="each")
    pipes = [mp.Pipe() for _ in range(2)]
    clients = [start(put_and_stay, sender, theirs) for _, theirs in pipes]
    assert {receiver.get(timeout=60) for _ in clients} == {client.pid for client in clients}
    os.kill(clients[0].pid, signal.SIGKILL)
    with pytest.raises(shmtree.PeerDied, match="died without closing") as died:
        receiver.get(timeout=60)
    assert died.value.pids == (clients[0].pid,)
    with pytest.raises(queue.Empty):
        receiver.get(timeout=0.01)
    pipes[1][0].send("go")
    with pytest.raises(shmtree.ChannelClosed):
        receiver.get(timeout=60)


def test_on_peer_death_each_wakes_a_poll_loop(start):
    sender, receiver = shmtree.create_pair(on_peer_death="each")
    pipes = [mp.Pipe() for _ in range(2)]
    clients = [start(put_and_stay, sender, theirs) for _, theirs in pipes]
    for _ in clients:
        receiver.get(timeout=60)
    assert mp.connection.wait([receiver], 0) == []
    os.kill(clients[0].pid, signal.SIGKILL)
    assert mp.connection.wait([receiver], 60) == [receiver]


def serve(name: str, told: Any) -> None:
    _, receiver = shmtree.create_pair(name=name, exist_ok=True, keep_open=True)
    told.send(receiver.get(timeout=60))
    told.recv()


@pytest.mark.guarantee("server-restart")
def test_restarted_server_reopens_the_channel_of_its_clients(name, start):
    ours, theirs = mp.Pipe()
    first = start(serve, name, theirs)
    client = shmtree.open_sender(name, timeout=60)
    client.put("one")
    assert ours.recv() == "one"
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    client.put("two")
    start(serve, name, theirs)
    assert ours.recv() == "two"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on_full": "skip"}, "on_full is 'skip'; it must be 'block' or 'drop_oldest'"),
        ({"on_peer_death": "never"}, "on_peer_death is 'never'; it must be 'raise', 'wait' or 'each'"),
        ({"exist_ok": True}, "exist_ok requires a name"),
    ],
)
def test_invalid_options_raise_value_error(options, said):
    with pytest.raises(ValueError, match=said):
        shmtree.create_pair(**options)
