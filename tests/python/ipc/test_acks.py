"""Acknowledgements: `get` acknowledges a message; a message from `take` waits for its ack."""

from __future__ import annotations

import threading

import peers
import pytest


def test_wait_for_ack_returns_when_another_process_receives(arena, start):
    import multiprocessing as mp

    sender, receiver = arena.create_pair()
    ours, theirs = mp.Pipe()
    ticket = sender.put("x")
    start(peers.receive_one, receiver, theirs)
    sender.wait_for_ack(ticket, timeout=30)
    assert ours.recv() == "x"


def test_wait_for_ack_rejects_unknown_tickets(pair):
    sender, _ = pair
    for ticket in (0, 10**6, -1, 10**30):
        with pytest.raises(ValueError):
            sender.wait_for_ack(ticket, timeout=0)


def test_thread_in_wait_for_all_ack_returns_after_the_gets(pair):
    sender, receiver = pair
    sender.put_many(range(8))
    done = threading.Event()
    thread = threading.Thread(target=lambda: (sender.wait_for_all_ack(timeout=30), done.set()))
    thread.start()
    for _ in range(8):
        receiver.get(timeout=30)
    thread.join(30)
    assert done.is_set()


def test_wait_for_all_ack_works_after_close(pair):
    sender, receiver = pair
    sender.put(1)
    sender.close()
    with pytest.raises(TimeoutError):
        sender.wait_for_all_ack(timeout=0)
    receiver.get()
    sender.wait_for_all_ack(timeout=0)
