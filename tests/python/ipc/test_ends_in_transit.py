"""Ends in transit: how long they count as attached, and how waiting processes detect their loss."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import multiprocessing as mp
import os
import pickle
import queue
import signal
import time
import warnings

import peers
import pytest

import shmtree

_dumped: list[bytes] = []


def dumps(obj: object) -> bytes:
    """Pickles an end. `arrivals` loads the pickle at the end of the test."""
    _dumped.append(pickle.dumps(obj))
    return _dumped[-1]


@pytest.fixture(autouse=True)
def arrivals():
    """Loads the pickles of the test. Until then this process would keep their memory."""
    yield
    for data in _dumped:
        with contextlib.suppress(shmtree.Error):
            pickle.loads(data)
    _dumped.clear()


def word_of(data: bytes) -> bytes:
    """Returns the word that identifies the transfer of the pickled end in shared memory."""
    handle = data.index(b"smthand1")
    return data[handle + 40 : handle + 48]


def advance_one_minute(arena: shmtree.Arena, word: bytes) -> None:
    """Makes the transfer look as if its sender had been found dead 61 s ago."""
    number = int.from_bytes(word, "little")
    second = (int(time.monotonic()) - 61) & 0x3FFFFFFF
    gone = number & ~(0x3FFFFFFF << 3) | second << 3 | 4
    fd = arena._core.fd
    places = range(2304, 2304 + 64 * 32, 32)  # docs/internals/memory-layout.md, Transfer
    (at,) = (at for at in places if int.from_bytes(os.pread(fd, 8, at), "little") >> 33 == number >> 33)
    os.pwrite(fd, gone.to_bytes(8, "little"), at)


def test_pickled_sender_keeps_the_stream_open_until_loaded(arena):
    sender, receiver = arena.create_pair()
    data = dumps(sender)
    sender.close()
    assert receiver.stats()["senders_in_transit"] == 1
    with pytest.raises(queue.Empty):
        receiver.get(timeout=0.1)
    late = pickle.loads(data)
    assert receiver.stats()["senders_in_transit"] == 0
    late.put(1)
    late.close()
    assert list(receiver) == [1]


def test_copies_and_a_twice_loaded_pickle_count_once(arena):
    sender, receiver = arena.create_pair()
    data = dumps(sender)
    ends = [copy.deepcopy(sender), pickle.loads(data), pickle.loads(data)]
    assert receiver.stats()["senders_in_transit"] == 0
    for end in (sender, *ends):
        end.close()
    assert list(receiver) == []


def test_thousand_pickled_ends_all_count_as_in_transit(arena):
    sender, receiver = arena.create_pair(capacity=None)
    tasks = [dumps((sender, i)) for i in range(1000)]
    sender.close()
    assert receiver.stats()["senders_in_transit"] == 1000
    for task in tasks:
        end, i = pickle.loads(task)
        end.put(i)
        del end
    assert list(receiver) == list(range(1000))


@pytest.fixture
def given(arena, start):
    """Returns a child that pickled a sender and closed its own ends, the pickle, and the receiver."""
    ours, theirs = mp.Pipe()
    child = start(peers.give_away, arena, theirs)
    data, receiver = ours.recv()
    ours.send("close")
    assert ours.recv() == "closed"
    return child, data, receiver


def end_it(child) -> None:
    os.kill(child.pid, signal.SIGKILL)
    child.join(30)


def test_pickled_end_counts_until_shortly_after_its_sender_died(given):
    child, data, receiver = given
    with pytest.raises(queue.Empty):
        receiver.get(timeout=0.3)
    end_it(child)
    assert receiver.stats()["senders_in_transit"] == 1
    sender = pickle.loads(data)
    sender.put("in time")
    sender.close()
    assert list(receiver) == ["in time"]


@pytest.mark.guarantee("ends-in-transit")
def test_late_unpickle_raises_with_pid_and_age(given, arena):
    child, data, receiver = given
    end_it(child)
    assert receiver.stats()["senders_in_transit"] == 1
    advance_one_minute(arena, word_of(data))
    assert receiver.stats()["senders_in_transit"] == 0
    with pytest.raises(shmtree.ChannelClosed, match=rf"by process {child.pid}, .* [6-9]\d s ago.* this stream is over"):
        pickle.loads(data)
    assert list(receiver) == []


@pytest.mark.guarantee("unused-end-warning")
def test_receiver_waiting_for_a_pickled_sender_is_warned_once(arena, soon):
    sender, receiver = arena.create_pair()
    dumps(sender)
    sender.close()

    def wait() -> None:
        for _ in range(8):
            with pytest.raises(queue.Empty):
                receiver.get(timeout=0.2)

    with pytest.warns(shmtree.UnusedEndWarning, match=rf"sender that process {os.getpid()} pickled \d+ s ago") as told:
        wait()
    assert len(told) == 1


def test_sender_waiting_for_a_pickled_receiver_is_warned_once(arena, soon):
    sender, receiver = arena.create_pair(1)
    dumps(receiver)
    receiver.close()
    sender.put(1)

    def wait() -> None:
        for _ in range(4):
            with pytest.raises(queue.Full):
                sender.put(2, timeout=0.2)
            with pytest.raises(TimeoutError):
                sender.wait_for_all_ack(timeout=0.2)

    with pytest.warns(shmtree.UnusedEndWarning, match=rf"receiver that process {os.getpid()} pickled") as told:
        wait()
    assert len(told) == 1


def test_wait_and_get_async_warn_about_a_pickled_sender(arena, soon):
    sender, receiver = arena.create_pair()
    dumps(sender)
    sender.close()
    with pytest.warns(shmtree.UnusedEndWarning):
        assert shmtree.wait([receiver], timeout=1) == []
    other = pickle.loads(dumps(receiver))
    with pytest.warns(shmtree.UnusedEndWarning), pytest.raises(queue.Empty):
        asyncio.run(other.get_async(timeout=1))


def test_wait_with_another_sender_or_at_a_queue_does_not_warn(arena, soon):
    sender, receiver = arena.create_pair()
    sender.put(1)
    receiver.get()
    dumps(sender)
    q = arena.Queue()
    dumps(q)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for get in (receiver.get, q.get):
            with pytest.raises(queue.Empty):
                get(timeout=0.6)


def test_warning_as_error_ends_get(arena, soon):
    sender, receiver = arena.create_pair()
    dumps(sender)
    sender.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(shmtree.UnusedEndWarning):
            receiver.get(timeout=30)


@pytest.mark.guarantee("unused-end-warning")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_failed_process_start_returns_its_end(arena, method):
    sender, receiver = arena.create_pair()
    process = mp.get_context(method).Process(target=peers.put_all, args=(sender, [1], lambda: 0))
    with pytest.raises(Exception, match="lambda") as kept:
        process.start()
    sender.close()
    assert list(receiver) == []
    assert kept.value is not None


def test_slow_process_start_keeps_its_end(arena):
    """A wait in this process, while the other one is being started, does not take the end back."""
    sender, receiver = arena.create_pair()
    process = mp.get_context("spawn").Process(target=peers.put_all, args=(sender, peers.LooksWhilePickled(receiver)))
    process.start()
    sender.close()
    assert list(receiver) == [1, 2]
    process.join(60)


class Unsendable:
    def __reduce__(self):
        raise RuntimeError("not to be pickled")


@pytest.mark.guarantee("ends-in-transit")
@pytest.mark.parametrize(
    ("put", "error"),
    [
        (lambda requests, end: requests.put(end, timeout=0.01), queue.Full),
        (lambda requests, end: requests.put_nowait({"reply": end}), queue.Full),
        (lambda requests, end: requests.put_many([end, end], timeout=0.01), queue.Full),
        (lambda requests, end: asyncio.run(requests.put_async(end, timeout=0.1)), queue.Full),
        (lambda requests, end: requests.put([end, bytes(1 << 22)]), shmtree.MessageTooLarge),
        (lambda requests, end: requests.put([end, Unsendable()]), RuntimeError),
        (lambda requests, end: requests.put([end, print]), shmtree.PickleRefused),
    ],
    ids=["timeout", "nowait", "many", "async", "too large", "unsendable", "refused"],
)
def test_end_in_a_failed_put_is_not_in_transit(arena, put, error):
    allow_pickle = error is not shmtree.PickleRefused
    requests, _served = arena.create_pair(1, max_bytes=1 << 20, allow_pickle=allow_pickle)
    requests.put("busy")
    sender, receiver = arena.create_pair()

    with pytest.raises(error):
        put(requests, sender)

    assert receiver.stats()["senders_in_transit"] == 0
    sender.close()
    with pytest.raises(shmtree.ChannelClosed):
        receiver.get(timeout=60)


def test_ends_in_put_messages_are_in_transit(arena):
    requests, served = arena.create_pair()
    sender, receiver = arena.create_pair()

    requests.put(sender)
    requests.put_many([sender, 1, sender])
    sender.close()

    assert receiver.stats()["senders_in_transit"] == 3
    for reply in (served.get() for _ in range(4)):
        if reply != 1:
            reply.put("answered")
            reply.close()
    assert list(receiver) == ["answered"] * 3
