"""Sources of messages to one node, and their numbering for that node."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import shmtree
from shmtree.ray._sources import JOURNAL_WORDS, WINDOW, Journal, MessageShare

CLOSED_GAP = {3: 0, 5: 1, 6: 2}  # number before the gap is closed: number after it, from 0 on


@pytest.fixture
def table() -> Any:
    return np.zeros(JOURNAL_WORDS, np.int64)


def filled(count: int) -> tuple[Any, Any]:
    sender, receiver = shmtree.create_pair(capacity=0)
    for number in range(count):
        sender.put(number)
    return sender, receiver


def tickets(taken: list[Any]) -> list[tuple[int, int]]:
    return [(each.ticket, each.frame.ticket) for each in taken]


def test_returned_messages_keep_their_numbers_in_the_journal(table: Any) -> None:
    _, receiver = filled(5)
    source = MessageShare(receiver, Journal(table), {}, 7, may_get_more=lambda: False)
    taken, error = source.take(3, 1 << 20)
    assert error is None and tickets(taken) == [(7, 0), (8, 1), (9, 2)]
    assert Journal(table).numbers() == {0: 7, 1: 8, 2: 9}
    source.give_back(taken[1:])
    again, _ = source.take(9, 1 << 20)
    assert tickets(again) == [(8, 1), (9, 2)]
    rest, _ = source.take(9, 1 << 20)
    assert tickets(rest) == [(10, 3), (11, 4)]


def test_dropped_messages_leave_the_journal_for_the_channel(table: Any) -> None:
    sender, receiver = filled(4)
    source = MessageShare(receiver, Journal(table), {}, 0, may_get_more=lambda: False)
    taken, _ = source.take(4, 1 << 20)
    source.give_back(taken[2:])
    source.drop(taken[:1])
    assert Journal(table).numbers() == {1: 1, 2: 2, 3: 3}
    assert receiver.get() == 0
    source.drop([], 2)
    assert Journal(table).numbers() == {1: 1}
    assert [receiver.get(), receiver.get()] == [2, 3]
    sender.put(4)
    assert tickets(source.take(1, 1)[0]) == [(2, 4)]


def test_successor_closes_gaps_and_numbers_no_message_twice(table: Any) -> None:
    _, receiver = filled(3)
    frames = receiver.take_frames(3)
    journal = Journal(table)
    for number, frame in zip(CLOSED_GAP, frames):
        journal.note(number, frame.ticket)
    source = MessageShare(receiver, journal, dict(zip(CLOSED_GAP, frames)), 0, may_get_more=lambda: False)
    assert Journal(table).numbers() == dict(enumerate(CLOSED_GAP.values()))
    assert tickets(source.take(9, 1 << 20)[0]) == [(0, 0), (1, 1), (2, 2)]


def test_unacked_messages_are_bounded_by_the_journal(table: Any) -> None:
    _, receiver = filled(WINDOW + 10)
    source = MessageShare(receiver, Journal(table), {}, 0, may_get_more=lambda: False)
    taken: list[Any] = []
    while source.space() > 0:
        taken += source.take(source.space(), 1 << 30)[0]
    assert len(taken) == WINDOW - 1
    for each in itertools.islice(taken, 5):
        source.acknowledge(each)
    assert source.space() == 5
