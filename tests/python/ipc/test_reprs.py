"""The text of an object shows its state: what a debugger or a log of the program prints."""

from __future__ import annotations

import itertools

import pytest

import shmtree
import shmtree.replay.cpprb
import shmtree.spdl


def test_repr_of_a_broadcast_and_its_subscriber():
    broadcast = shmtree.Broadcast()
    reader = broadcast.subscribe()
    broadcast.put_many([1, 2])
    assert repr(broadcast) == "<Broadcast, 2 put, 1 subscribed>"
    assert repr(reader) == "<Subscriber, 2 unread, 0 missed>"
    reader.close()
    broadcast.close()
    assert (repr(broadcast), repr(reader)) == ("<Broadcast, closed>", "<Subscriber, closed>")


def test_repr_of_a_service_and_its_client():
    service = shmtree.Service()
    client = shmtree.Client(service.sender)
    assert repr(client) == "<Client, 0 in flight>"
    futures = [client.submit(number) for number in range(3)]
    assert (repr(client), repr(service)) == ("<Client, 3 in flight>", "<Service, 3 queued>")
    answered, failed, unanswered = (service.get(timeout=60) for _ in futures)
    answered.reply(1)
    failed.fail("no")
    assert repr(answered) == "<Request, answered>"
    assert repr(failed) == "<Request, failed>"
    assert repr(unanswered) == "<Request, unanswered>"
    assert futures[0].result(60) == 1
    client.close()
    service.close()
    assert (repr(client), repr(service)) == ("<Client, closed>", "<Service, closed>")


def test_repr_of_an_iterator_shows_its_process():
    with shmtree.iterate_in_subprocess(itertools.count) as items:
        assert next(items) == 0
        assert repr(items).startswith(f"<SubprocessIterator of process {items.pid}, ")
    assert repr(items) == f"<SubprocessIterator of process {items.pid}, closed>"


def test_repr_of_an_arena_of_spdl_and_its_ends():
    pool = shmtree.spdl.SegmentPool()
    writer, reader = pool.open_writer(), pool.open_reader()
    writer.begin_unit()
    writer.write_binary(b"x")
    writer.commit_unit()
    assert repr(pool) == "<SegmentPool, 1 units queued>"
    assert repr(writer) == "<ArenaWriter, 1 units unread>"
    assert repr(reader) == "<ArenaReader, 1 units queued>"
    pool.close()
    assert (repr(pool), repr(reader)) == ("<SegmentPool, closed>", "<ArenaReader, closed>")


@pytest.mark.parametrize("name", ["ReplayBuffer", "PrioritizedReplayBuffer"])
def test_repr_of_a_buffer_of_cpprb(name: str):
    rows = getattr(shmtree.replay.cpprb, name)(4, {"done": {}})
    rows.add(done=[0, 0, 0])
    assert repr(rows) == f"<{name}, 3 of 4 rows>"
