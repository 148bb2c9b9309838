"""Streams that do not end because a process keeps an end and never uses it: waiting calls warn about it."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing as mp
import os
import queue
import subprocess
import sys
import time
import warnings

import peers
import pytest

import shmtree
import shmtree.compat.memory
import shmtree.multiprocessing


def used_by(start, sender, first):
    """Starts a process that has a sender, puts `first` and stays."""
    ours, theirs = mp.Pipe()
    child = start(peers.put_then_hang, sender, first, theirs)
    ours.recv()
    return child


def keep_waiting(call):
    """Waits for long enough in total, in several calls that are each too short."""
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


@pytest.mark.guarantee("unused-end-warning")
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
def test_receiver_waiting_only_for_a_launcher_is_warned_with_pid(arena, launcher, soon, wait):
    sender, receiver = arena.create_pair()
    pid = launcher()
    sender.close()
    with pytest.warns(shmtree.UnusedEndWarning) as told:
        wait(receiver)
    assert len(told) == 1
    text = str(told[0].message)
    assert f"process {pid}, which has a sender and never used it" in text
    assert "The stream cannot end while a sender is open: call close() on it" in text


@pytest.mark.guarantee("unused-end-warning")
@pytest.mark.parametrize(
    "wait",
    [
        lambda sender: keep_waiting(lambda timeout: sender.put(2, timeout=timeout)),
        lambda sender: keep_waiting(sender.wait_for_all_ack),
        lambda sender: keep_waiting(lambda timeout: asyncio.run(sender.put_async(2, timeout))),
    ],
    ids=["put", "wait_for_all_ack", "put_async"],
)
def test_sender_waiting_only_for_a_launcher_is_warned_with_pid(arena, launcher, soon, wait):
    sender, receiver = arena.create_pair(1)
    pid = launcher()
    receiver.close()
    sender.put(1)
    with pytest.warns(shmtree.UnusedEndWarning, match=f"process {pid}, which has a receiver") as told:
        wait(sender)
    assert len(told) == 1


def test_warning_names_all_holders_and_marks_this_process(arena, launcher, soon):
    _sender, receiver = arena.create_pair()
    pid = launcher()
    with pytest.warns(shmtree.UnusedEndWarning) as told:
        # wait() does not use the end, so the warning lists this process too
        assert shmtree.wait([receiver], timeout=0.5) == []
    text = str(told[0].message)
    assert f"{os.getpid()} (this one)" in text
    assert str(pid) in text
    assert "which have a sender" in text


@pytest.mark.filterwarnings("error")
def test_receiver_waiting_for_an_active_sender_is_not_warned(arena, launcher, start, soon):
    sender, receiver = arena.create_pair()
    launcher()
    used_by(start, sender, "x")
    sender.close()
    assert receiver.get(timeout=60) == "x"
    keep_waiting(receiver.get)


@pytest.mark.filterwarnings("error")
def test_polling_receiver_is_not_warned(arena, launcher, soon):
    _sender, receiver = arena.create_pair()
    launcher()
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        with pytest.raises(queue.Empty):
            receiver.get_nowait()


@pytest.mark.filterwarnings("error")
def test_waiting_get_of_a_queue_is_not_warned(arena, launcher, soon):
    q = arena.Queue()
    launcher()
    keep_waiting(q.get)


@pytest.mark.filterwarnings("error")
def test_receiver_of_a_keep_open_stream_is_not_warned(arena, launcher, soon):
    sender, receiver = arena.create_pair(keep_open=True)
    launcher()
    sender.close()
    keep_waiting(receiver.get)


def test_stream_ends_when_the_launcher_closes_its_ends(arena, start):
    sender, receiver = arena.create_pair()
    ours, theirs = mp.Pipe()
    start(peers.hang, (sender, receiver), theirs)
    ours.recv()
    sender.close()
    assert receiver.stats()["senders_attached"] == 1
    ours.send("go")
    assert list(receiver) == []


@pytest.mark.guarantee("unused-end-warning")
def test_stats_separate_attached_and_never_used_ends(arena, launcher, start):
    sender, receiver = arena.create_pair()
    pid = launcher()
    user = used_by(start, sender, "x")
    assert receiver.get(timeout=60) == "x"  # from now on this process does not count as a sender
    stats = receiver.stats()
    assert (stats["senders"], stats["senders_attached"], stats["senders_never_used"]) == (3, 2, [pid])
    assert (stats["receivers"], stats["receivers_attached"], stats["receivers_never_used"]) == (2, 2, [pid])
    assert user.pid not in stats["senders_never_used"]


@pytest.mark.guarantee("unused-end-warning")
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_receiver_waiting_for_a_starting_worker_is_not_warned(arena, start, soon, method):
    sender, receiver = arena.create_pair()
    ours, theirs = mp.Pipe()
    start(peers.hang, (sender,), theirs, method=method)
    sender.close()
    ours.recv()
    keep_waiting(receiver.get)


def test_wait_warns_about_the_launcher_once_the_worker_died(arena, start, soon):
    sender, receiver = arena.create_pair()
    ours, theirs = mp.Pipe()
    worker = start(peers.hang, (sender,), theirs)
    ours.recv()
    worker.kill()
    worker.join()
    with pytest.warns(shmtree.UnusedEndWarning, match=r"\(this one\)"):
        assert shmtree.wait([receiver], timeout=0.5) == []


@pytest.mark.filterwarnings("error")
def test_poll_of_a_pipe_with_both_ends_here_is_not_warned(soon):
    reader, _writer = shmtree.multiprocessing.Pipe(duplex=False)
    for _ in range(8):
        assert not reader.poll(0.06)


@pytest.mark.filterwarnings("error")
def test_compat_receiver_is_not_warned(soon):
    _sender, receiver = shmtree.compat.memory.create_shared_memory_pair()
    keep_waiting(receiver.get)


ALONE = """
import queue, warnings
import shmtree
from shmtree import _core

_core.set_unused_after(0.1)
sender, receiver = shmtree.create_pair(1)
{before}
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for _ in range(8):
        try:
            {wait}
        except (queue.Empty, queue.Full):
            pass
print([str(each.message) for each in told])
"""


def alone(wait, before=""):
    program = ALONE.format(wait=wait, before=before)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=250, check=True)
    return done.stdout.strip()


@pytest.mark.filterwarnings("error")
def test_wait_for_receivers_is_not_warned_of_unused_ones(arena, launcher, soon):
    sender, _receiver = arena.create_pair()
    launcher()
    with pytest.raises(TimeoutError, match="of 3 receivers"):
        sender.wait_for_receivers(3, timeout=0.5)


def test_wait_for_an_end_that_only_this_process_has_warns_once():
    told = alone("receiver.get(timeout=0.06)")
    assert told.count("waited") == 1
    assert "(this one), which has a sender and never used it" in told


@pytest.mark.parametrize(
    "before",
    [
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
        "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: None)",
    ],
    ids=["thread", "signal"],
)
def test_wait_that_a_thread_or_signal_may_end_does_not_warn(before):
    assert alone("receiver.get(timeout=0.06)", before) == "[]"


def test_coroutine_that_waits_for_its_own_process_is_not_warned():
    assert alone("asyncio.run(receiver.get_async(0.06))", "import asyncio") == "[]"


def test_used_sender_of_the_same_process_is_not_warned_about():
    assert alone("receiver.get(timeout=0.06)", "sender.put(1); receiver.get()") == "[]"
