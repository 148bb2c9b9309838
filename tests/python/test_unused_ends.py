"""Streams that do not end because somebody keeps an end and never uses it: who waits for that is told."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing as mp
import os
import queue
import time
import warnings

import peers
import pytest

import shmtree


def kept_by(start, *ends, first=None):
    """A process that has these ends, and puts `first` or uses neither."""
    ours, theirs = mp.Pipe()
    use = (peers.hang, ends) if first is None else (peers.put_then_hang, ends[0], first)
    child = start(*use, theirs)
    ours.recv()
    return child


def keep_waiting(call):
    """For long enough, by several calls each of which waits too shortly."""
    for _ in range(8):
        with contextlib.suppress(queue.Empty, queue.Full, TimeoutError):
            call(timeout=0.06)


def iterate(receiver):
    with warnings.catch_warnings():
        warnings.simplefilter("error", shmtree.UnusedEndWarning)
        try:
            next(receiver)
        except shmtree.UnusedEndWarning as told:
            warning = told
    warnings.warn(warning, stacklevel=2)


@pytest.mark.parametrize(
    "wait",
    [
        lambda receiver: keep_waiting(receiver.get),
        lambda receiver: keep_waiting(receiver.take),
        lambda receiver: keep_waiting(lambda timeout: receiver.get_many(2, timeout)),
        lambda receiver: keep_waiting(lambda timeout: shmtree.wait([receiver], timeout)),
        lambda receiver: keep_waiting(lambda timeout: asyncio.run(receiver.get_async(timeout))),
        iterate,
    ],
    ids=["get", "take", "get_many", "wait", "get_async", "for"],
)
def test_a_receiver_that_waits_for_a_launcher_alone_is_told_who_that_is(arena, start, soon, wait):
    sender, receiver = arena.create_pair()
    launcher = kept_by(start, sender, receiver)
    sender.close()
    with pytest.warns(shmtree.UnusedEndWarning) as told:
        wait(receiver)
    assert len(told) == 1
    text = str(told[0].message)
    assert f"process {launcher.pid}, which has a sender and never used it" in text
    assert "calls close() of its sender" in text


@pytest.mark.parametrize(
    "wait",
    [
        lambda sender: keep_waiting(lambda timeout: sender.put(2, timeout=timeout)),
        lambda sender: keep_waiting(sender.wait_for_all_ack),
        lambda sender: keep_waiting(lambda timeout: asyncio.run(sender.put_async(2, timeout))),
    ],
    ids=["put", "wait_for_all_ack", "put_async"],
)
def test_a_sender_that_waits_for_a_launcher_alone_is_told_who_that_is(arena, start, soon, wait):
    sender, receiver = arena.create_pair(1)
    launcher = kept_by(start, sender, receiver)
    receiver.close()
    sender.put(1)
    with pytest.warns(shmtree.UnusedEndWarning, match=f"process {launcher.pid}, which has a receiver") as told:
        wait(sender)
    assert len(told) == 1


def test_several_who_keep_an_end_are_all_named_and_this_process_is_said_to_be_one(arena, start, soon):
    sender, receiver = arena.create_pair()
    launcher = kept_by(start, sender, receiver)
    with pytest.warns(shmtree.UnusedEndWarning) as told:
        assert shmtree.wait([receiver], timeout=0.5) == []  # a look is no use, so this process counts as well
    text = str(told[0].message)
    assert f"{os.getpid()} (this one)" in text
    assert str(launcher.pid) in text
    assert "which have a sender" in text


@pytest.mark.filterwarnings("error")
def test_who_waits_for_somebody_who_has_sent_is_not_warned(arena, start, soon):
    sender, receiver = arena.create_pair()
    kept_by(start, sender, receiver)
    kept_by(start, sender, first="x")
    sender.close()
    assert receiver.get(timeout=60) == "x"
    keep_waiting(receiver.get)


@pytest.mark.filterwarnings("error")
def test_who_only_looks_does_not_wait_and_is_not_warned(arena, start, soon):
    sender, receiver = arena.create_pair()
    kept_by(start, sender, receiver)
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        with pytest.raises(queue.Empty):
            receiver.get_nowait()


@pytest.mark.filterwarnings("error")
def test_who_waits_at_a_queue_which_has_no_end_is_not_warned(arena, start, soon):
    q = arena.Queue()
    kept_by(start, q)
    keep_waiting(q.get)


@pytest.mark.filterwarnings("error")
def test_who_waits_at_a_stream_that_is_kept_open_is_not_warned(arena, start, soon):
    sender, receiver = arena.create_pair(keep_open=True)
    kept_by(start, sender, receiver)
    sender.close()
    keep_waiting(receiver.get)


def test_a_stream_ends_as_soon_as_the_launcher_closes_its_ends(arena, start):
    sender, receiver = arena.create_pair()
    ours, theirs = mp.Pipe()
    start(peers.hang, (sender, receiver), theirs)
    ours.recv()
    sender.close()
    assert receiver.stats()["senders_counting"] == 1
    ours.send("go")
    assert list(receiver) == []


def test_stats_tell_those_who_count_from_those_who_do_not(arena, start):
    sender, receiver = arena.create_pair()
    launcher = kept_by(start, sender, receiver)
    user = kept_by(start, sender, first="x")
    assert receiver.get(timeout=60) == "x"  # from here on this process does not count as a sender
    stats = receiver.stats()
    assert (stats["senders"], stats["senders_counting"], stats["senders_unused"]) == (3, 2, [launcher.pid])
    assert (stats["receivers"], stats["receivers_counting"], stats["receivers_unused"]) == (3, 2, [launcher.pid])
    assert user.pid not in stats["senders_unused"]
