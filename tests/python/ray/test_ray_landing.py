"""Messages that land from other nodes: exactly once and in order, even if the process that lands them is killed."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Callable
from typing import Any

import pytest
from starts import Start

import shmtree
from shmtree import _core
from shmtree.ray import _frames, _handles
from shmtree.ray._landing import WORDS, Gap, Landing, Superseded

TERMS = {"kind": "pair", "capacity": 64}


@pytest.fixture
def channel() -> _core.Channel:
    return _handles.new_channel(TERMS)


def frame(value: Any) -> shmtree.Frame:
    return shmtree.pack(value)


@pytest.mark.guarantee("ray-once-in-order")
def test_landed_message_is_not_put_again(channel: _core.Channel) -> None:
    _, table = _handles.new_table(WORDS)
    receiver = shmtree.Receiver._of(channel)
    landing = Landing(channel, table)
    for ticket in (0, 1, 0, 1, 2):
        landing.land(3, ticket, frame(("three", ticket)))
    landing.land(4, 0, frame(("four", 0)))
    assert receiver.get_many(9) == [("three", 0), ("three", 1), ("three", 2), ("four", 0)]


@pytest.mark.guarantee("ray-once-in-order")
def test_early_message_raises_gap(channel: _core.Channel) -> None:
    _, table = _handles.new_table(WORDS)
    receiver = shmtree.Receiver._of(channel)
    landing = Landing(channel, table)
    with pytest.raises(Gap, match="message 1 of origin 1 arrived before message 0"):
        landing.land(1, 1, frame("second"))
    assert receiver.empty()


def test_landing_in_a_full_channel_raises_full_and_lands_nothing() -> None:
    channel = _handles.new_channel({"kind": "pair", "capacity": 1})
    _, table = _handles.new_table(WORDS)
    receiver = shmtree.Receiver._of(channel)
    landing = Landing(channel, table)
    landing.land(1, 0, frame(0))
    with pytest.raises(queue.Full):
        landing.land(1, 1, frame(1))
    assert landing.next_ticket(1) == 1
    assert receiver.get() == 0
    landing.land(1, 1, frame(1))
    assert receiver.get() == 1


def test_message_counts_as_received_after_its_ack(channel: _core.Channel) -> None:
    _, table = _handles.new_table(WORDS)
    receiver = shmtree.Receiver._of(channel)
    landing = Landing(channel, table)
    for ticket in range(3):
        landing.land(1, ticket, frame(ticket))
    assert landing.received(1, [0, 1, 2, 3]) == []
    with receiver.take():
        assert receiver.get() == 1
        assert landing.received(1, [0, 1, 2, 3]) == [1]
    assert landing.received(1, [0, 2, 3]) == [0]
    assert receiver.get() == 2
    assert Landing(channel, table).received(1, [2, 3]) == [2]


def test_newer_landing_supersedes_the_older_one(channel: _core.Channel) -> None:
    _, table = _handles.new_table(WORDS)
    receiver = shmtree.Receiver._of(channel)
    first = Landing(channel, table)
    first.land(1, 0, frame(0))
    second = Landing(channel, table)
    with pytest.raises(Superseded):
        first.land(1, 1, frame(1))
    second.land(1, 1, frame(1))
    assert receiver.get_many(9) == [0, 1]


def land_until_killed(handle: bytes, table: bytes, how: Callable[[Landing], None], count: int) -> None:
    landing = Landing(_handles.open_quietly(handle), _handles.open_table(table))
    for ticket in range(landing.next_ticket(1), count - 1):
        landing.land(1, ticket, frame(ticket))
    how(landing)
    landing.land(1, count - 1, frame(count - 1))


class _Killed:
    """A sender. Its process is killed during a put."""

    def __init__(self, sender: Any, puts: bool) -> None:
        self._sender, self._puts = sender, puts

    def put_frame(self, *arguments: Any, **options: Any) -> None:
        if self._puts:
            self._sender.put_frame(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)


def before_the_put(landing: Any) -> None:
    landing.sender = _Killed(landing.sender, False)


def after_the_put(landing: Any) -> None:
    landing.sender = _Killed(landing.sender, True)


@pytest.mark.guarantee("ray-once-in-order")
@pytest.mark.parametrize("how", [before_the_put, after_the_put])
def test_kill_before_or_after_a_put_neither_loses_nor_duplicates(
    channel: _core.Channel, start: Start, how: Callable[[Landing], None]
) -> None:
    handle = _handles.handle_of(channel)
    table_handle, table = _handles.new_table(WORDS)
    sender, receiver = shmtree.Sender._of(channel), shmtree.Receiver._of(channel)
    for count in (3, 6):
        child = start(land_until_killed, handle, table_handle, how, count)
        child.join(60)
        assert child.exitcode == -signal.SIGKILL
        sender.put("from here")  # must not be mistaken for the put in doubt
    landing = Landing(channel, table)
    for ticket in range(8):  # an origin without a reply sends all messages again
        landing.land(1, ticket, frame(ticket))
    received = receiver.get_many(64)
    assert [each for each in received if each != "from here"] == list(range(8))
    assert received.count("from here") == 2


def test_batch_splits_into_the_frames_that_were_joined() -> None:
    frames = [bytes([number]) * size for number, size in enumerate((1, 63, 64, 65, 100_000, 5, 70_000, 80_000))]
    batch = _frames.join(frames)
    assert [bytes(each) for each in _frames.split(batch)] == frames
    assert [len(sizes) for _, sizes in batch] == [4, 1, 1, 1, 1]
