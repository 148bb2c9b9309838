"""take() and redelivery: at least once, instead of at most once."""

from __future__ import annotations

import multiprocessing as mp
import os
import queue
import signal

import numpy as np
import peers
import pytest
from forks import fork, join


def test_delivery_has_the_item_and_its_ticket(pair):
    sender, receiver = pair
    sender.put("a")
    ticket = sender.put({"x": 1})
    receiver.get()
    delivery = receiver.take()
    assert (delivery.item, delivery.ticket, delivery.redelivered) == ({"x": 1}, ticket, False)
    delivery.ack()


def test_with_block_acks_on_success(pair):
    sender, receiver = pair
    sender.put(1)
    with receiver.take() as delivery:
        assert delivery.item == 1
    assert delivery.settled
    assert sender.pending_acks == 0
    assert receiver.empty()


def test_with_block_nacks_on_error(pair):
    sender, receiver = pair
    sender.put(1)
    with pytest.raises(KeyError), receiver.take():
        raise KeyError
    assert receiver.qsize() == 1
    assert receiver.get() == 1


def test_with_block_keeps_an_explicit_nack(pair):
    sender, receiver = pair
    sender.put(1)
    with receiver.take() as delivery:
        delivery.nack()
    assert receiver.qsize() == 1


def test_views_of_a_taken_message_outlive_the_ack(pair):
    sender, receiver = pair
    sender.put(np.arange(100_000))
    with receiver.take() as delivery:
        kept = delivery.item
    del delivery
    sender.put(np.zeros(100_000))
    receiver.get()
    assert np.array_equal(kept, np.arange(100_000))


def test_nacked_message_with_arrays_is_redelivered_whole(pair):
    sender, receiver = pair
    sender.put({"x": np.arange(100_000)})
    receiver.take().nack()
    with receiver.take() as delivery:
        assert np.array_equal(delivery.item["x"], np.arange(100_000))


@pytest.mark.guarantee("take-is-redelivered")
def test_message_of_a_killed_taker_is_redelivered(arena, start):
    sender, receiver = arena.create_pair()
    ours, theirs = mp.Pipe()
    sender.put(("job", 1))
    child = start(peers.take_and_hang, receiver, theirs)
    assert ours.recv() == (("job", 1), False)
    os.kill(child.pid, signal.SIGKILL)
    child.join(30)
    delivery = receiver.take(timeout=30)
    assert (delivery.item, delivery.redelivered) == (("job", 1), True)
    delivery.ack()


def test_stream_does_not_end_while_a_message_is_unacked(arena):
    sender, receiver = arena.create_pair()
    sender.put(1)
    delivery = receiver.take()
    sender.close()
    delivery.nack()
    assert list(receiver) == [1]


def test_delivery_cannot_be_constructed():
    import shmtree

    with pytest.raises(TypeError):
        shmtree.Delivery()


def test_repr_of_a_delivery_shows_ticket_and_state(pair):
    sender, receiver = pair
    ticket = sender.put("x")
    first = receiver.take()
    assert repr(first) == f"<Delivery of message {ticket}>"
    first.nack()
    second = receiver.take(timeout=60)
    second.ack()
    assert repr(second) == f"<Delivery of message {ticket}, redelivered, settled>"


@pytest.mark.parametrize("part", ["message", "block of its own"])
def test_put_with_move_copies_an_unacked_message(arena, part):
    first, second = arena.create_pair(), arena.create_pair()
    array = np.zeros(100_000) if part == "message" else first[0].new_zeros(100_000)
    first[0].put({"x": array})
    delivery = first[1].take()
    second[0].put(delivery.item, move=True)
    delivery.nack()
    passed, again = second[1].get()["x"], first[1].get()["x"]
    passed[:] = 7
    assert not again.any()


def test_put_with_move_of_an_acked_message_copies_nothing(arena):
    first, second = arena.create_pair(), arena.create_pair()
    first[0].put(np.arange(100_000))
    with first[1].take() as delivery:
        pass
    where = delivery.item.ctypes.data
    second[0].put(delivery.item, move=True)
    assert second[1].get().ctypes.data == where


@pytest.mark.guarantee("redelivery-is-copied")
@pytest.mark.parametrize("part", ["message", "block of its own"])
@pytest.mark.parametrize("copy", [None, False])
def test_view_kept_over_a_nack_shares_no_memory_with_the_next(arena, part, copy):
    sender, receiver = arena.create_pair()
    array = np.ones(100_000) if part == "message" else sender.new_zeros(100_000)
    if part != "message":
        array[:] = 1
    sender.put({"x": array})
    delivery = receiver.take()
    kept = delivery.item["x"]
    delivery.nack()
    again = receiver.get(copy=copy)["x"]
    again[:] = 2
    assert (kept == 1).all()
    kept[:] = 3
    assert (again == 2).all()


def test_redelivered_message_is_a_view_if_none_is_kept(arena):
    sender, receiver = arena.create_pair()
    sender.put(np.ones(100_000))
    delivery = receiver.take()
    where = delivery.item.ctypes.data
    delivery.nack()
    del delivery
    assert receiver.get().ctypes.data == where


def test_child_cannot_ack_a_delivery_of_its_parent(pair):
    sender, receiver = pair
    sender.put(1)
    delivery = receiver.take()

    def ack_in_child() -> None:
        with pytest.raises(ValueError):
            delivery.ack()

    join(fork(ack_in_child))
    assert sender.pending_acks == 1
    delivery.ack()


def test_take_error_contains_the_number_of_unacked_messages(arena):
    sender, receiver = arena.create_pair(max_unacked=1)
    sender.put_many("ab")
    kept = receiver.take()
    for timeout in (0, 0.02):
        with pytest.raises(queue.Empty, match=r"1 of at most 1 messages are unacked .*, and 1 more"):
            receiver.take(timeout=timeout)
    kept.ack()
