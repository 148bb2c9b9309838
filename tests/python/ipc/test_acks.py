"""Acknowledgements: `get` acknowledges a message; a message from `take` waits for its ack."""

from __future__ import annotations

import threading

import peers
import pytest


def test_pending_acks_counts_messages_not_received_yet(pair):
    sender, receiver = pair
    assert sender.pending_acks == 0
    sender.put_many(range(3))
    assert sender.pending_acks == 3
    receiver.get()
    assert sender.pending_acks == 2


def test_wait_for_all_ack_returns_if_all_were_received(pair):
    sender, receiver = pair
    sender.put_many(range(3))
    receiver.get_many(3)
    sender.wait_for_all_ack(timeout=0)


def test_wait_for_ack_does_not_wait_for_later_tickets(pair):
    sender, receiver = pair
    first, second = sender.put("a"), sender.put("b")
    receiver.get()
    sender.wait_for_ack(first, timeout=0)
    with pytest.raises(TimeoutError):
        sender.wait_for_ack(second, timeout=0)


def test_wait_for_ack_returns_when_another_process_receives(arena, start):
    import multiprocessing as mp

    sender, receiver = arena.create_pair()
    ours, theirs = mp.Pipe()
    ticket = sender.put("x")
    start(peers.receive_one, receiver, theirs)
    sender.wait_for_ack(ticket, timeout=30)
    assert ours.recv() == "x"


def test_taken_message_is_pending_until_acked(pair):
    sender, receiver = pair
    ticket = sender.put("x")
    delivery = receiver.take()
    assert sender.pending_acks == 1
    with pytest.raises(TimeoutError):
        sender.wait_for_ack(ticket, timeout=0)
    delivery.ack()
    sender.wait_for_ack(ticket, timeout=0)
    assert sender.pending_acks == 0


def test_wait_for_ack_rejects_unknown_tickets(pair):
    sender, _ = pair
    for ticket in (0, 10**6, -1, 10**30):
        with pytest.raises(ValueError):
            sender.wait_for_ack(ticket, timeout=0)


def test_wait_for_all_ack_works_after_close(pair):
    sender, receiver = pair
    sender.put(1)
    sender.close()
    with pytest.raises(TimeoutError):
        sender.wait_for_all_ack(timeout=0)
    receiver.get()
    sender.wait_for_all_ack(timeout=0)


def test_flush_waits_for_all_acks(pair):
    sender, receiver = pair
    sender.put(1)
    with pytest.raises(TimeoutError):
        sender.flush(timeout=0)
    receiver.get()
    sender.flush()


def test_pending_acks_excludes_puts_of_other_processes(arena, start):
    sender, receiver = arena.create_pair()
    child = start(peers.put_all, sender, [1, 2])
    child.join(30)
    assert receiver.qsize() == 2
    assert sender.pending_acks == 0
    sender.wait_for_all_ack(timeout=0)


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
