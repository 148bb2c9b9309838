"""The messages that other nodes pull from a channel, and their numbers."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import shmtree
from shmtree.ray._feed import Feed, Pulled, Request, Source
from shmtree.ray._frames import split
from shmtree.ray._gateways import LinkLost
from shmtree.ray._inbox import JOURNAL_WORDS, WINDOW, Journal

ALL = {"messages": 100, "nbytes": 1 << 20, "small": 1 << 20}


def filled(count: int) -> tuple[Any, Any]:
    sender, receiver = shmtree.create_pair(capacity=0)
    for number in range(count):
        sender.put(number)
    return sender, receiver


def source_of(receiver: Any, inherited: Any = (), *, is_shared: bool = True) -> Source:
    return Source(lambda: receiver, "here", {each.ticket: each for each in inherited}, is_shared)


def resumed(source: Source, number: int, *arguments: Any) -> tuple[Feed, int]:
    feed = source.feed(number)
    generation, _ = feed.resume(*arguments)
    return feed, generation


def pull(feed: Feed, generation: int, **asked: Any) -> Pulled:
    return asyncio.run(feed.pull(Request(generation, **asked)))


def values(pulled: Pulled) -> list[Any]:
    return [shmtree.unpack(frame) for frame in split(list(zip(pulled.buffers, pulled.sizes)))]


def test_unlanded_messages_are_pulled_again_with_their_numbers() -> None:
    _, receiver = filled(5)
    feed, first = resumed(source_of(receiver), 1, 0, -1, {})
    assert values(pull(feed, first, messages=3, nbytes=1 << 20, small=1 << 20)) == [0, 1, 2]
    second, landed = feed.resume(1, 0, {0: 0})
    assert list(landed) == [(0, 1)]
    with pytest.raises(LinkLost):
        pull(feed, first, **ALL)
    again = pull(feed, second, **ALL)
    assert (again.first, values(again)) == (1, [1, 2])
    rest = pull(feed, second, **ALL)
    assert (rest.first, rest.tickets) == (3, [3, 4])


def test_only_acked_messages_leave_the_channel() -> None:
    sender, receiver = filled(4)
    feed, generation = resumed(source_of(receiver), 1, 0, -1, {})
    pull(feed, generation, **ALL)
    pull(feed, generation, acked=[(0, 2)], returned=[(2, 4)])
    assert sender.pending_acks == 2
    assert receiver.get_many(9) == [2, 3]
    assert sender.pending_acks == 0


def test_idle_node_releases_messages_that_it_would_get_again() -> None:
    sender, receiver = filled(3)
    feed, generation = resumed(source_of(receiver), 1, 0, -1, {})
    pull(feed, generation, **ALL)
    generation, _ = feed.resume(1, 0, {0: 0})
    pull(feed, generation, is_idle=True)
    assert receiver.get_many(9) == [1, 2]
    sender.put(3)
    assert pull(feed, generation, **ALL).first == 1


def test_unclaimed_messages_go_to_the_node_with_the_fewest() -> None:
    _, receiver = filled(6)
    source = source_of(receiver, receiver.take_frames(6))
    feeds = {number: source.feed(number) for number in (1, 2)}
    later, _ = feeds[1].resume(4, 3, {3: 3})  # it has landed messages 0 to 3 of the channel, and acked all but the last
    assert not pull(feeds[1], later, **ALL | {"messages": 0}).tickets
    earlier, _ = feeds[2].resume(7, 2, {})
    assert pull(feeds[2], earlier, **ALL).tickets == [0, 1, 2, 4, 5]
    assert list(feeds[1].unacked) == [3]


def test_numbers_of_an_outbox_are_its_tickets() -> None:
    _, receiver = filled(6)
    first, second, *rest = receiver.take_frames(4)
    first.ack()
    second.ack()  # without having landed: as a damaged message that was consumed
    feed, generation = resumed(source_of(receiver, rest, is_shared=False), 1, 1, -1, {})
    lost, *others = split(
        [
            (buffer, sizes)
            for pulled in [pull(feed, generation, **ALL)]
            for buffer, sizes in zip(pulled.buffers, pulled.sizes)
        ]
    )
    with pytest.raises(shmtree.CorruptMessage, match="message 1 of another node was damaged there"):
        shmtree.unpack(lost)
    assert [shmtree.unpack(each) for each in others] == [2, 3]
    assert pull(feed, generation, **ALL).tickets == [4, 5]


def test_stream_of_a_shared_channel_ends_after_all_acks() -> None:
    sender, receiver = filled(1)
    source = source_of(receiver)
    feed, generation = resumed(source, 1, 0, -1, {})
    other, of_other = resumed(source, 2, 0, -1, {})
    sender.close()
    pull(feed, generation, **ALL)
    source.take(Request(0, **ALL))
    assert pull(other, of_other).over is None
    pull(feed, generation, acked=[(0, 1)])
    assert pull(other, of_other).over == ()


def test_journal_knows_tickets_and_states_of_recent_numbers() -> None:
    table = np.zeros(JOURNAL_WORDS, np.int64)
    journal = Journal(table)
    for number in range(4):
        journal.note(number, 10 * number if number else -1)
    journal.set_state(1, Journal.RETURNED)
    journal.set_state(2, Journal.ACKED)
    assert Journal(table).tickets(Journal.LANDED) == {0: -1, 3: 30}
    assert Journal(table).tickets(Journal.RETURNED) == {1: 10}
    assert Journal(table).ticket(2) == 20
    journal.note(WINDOW + 3, 7)
    journal.set_state(3, Journal.ACKED)  # a number of the past
    assert Journal(table).tickets(Journal.LANDED) == {0: -1, WINDOW + 3: 7}
