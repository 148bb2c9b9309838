"""After a fork at any moment, both sides can continue, and nothing is left behind."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from queue import Empty
from typing import Any

import numpy as np
import pytest
from forks import NOT_BESIDE_THREADS, WITHOUT_GIL, fork, in_small_process, join, wait_until_all_sleep

import shmtree

# Since Python 3.12 os.fork warns if there are other threads. These tests fork with threads on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

beside_running_threads = pytest.mark.skipif(WITHOUT_GIL, reason=NOT_BESIDE_THREADS)

# An arena also has the participant table. Its pages stay allocated once they have been used.
PLACES_BYTES = 2 << 20


@contextlib.contextmanager
def threads(*functions: Callable[[], None]) -> Iterator[None]:
    """Calls each function repeatedly in its own thread until the end of the block."""
    over = threading.Event()
    errors: list[BaseException] = []

    def run(function: Callable[[], None]) -> None:
        try:
            while not over.is_set():
                function()
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in running:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in running:
            thread.join(60)
    assert not errors


@pytest.mark.parametrize("kind", ["pair", "queue"])
def test_fork_beside_threads_blocked_in_put_and_get_works(arena, kind):
    make = arena.create_pair if kind == "pair" else lambda size: (arena.Queue(size),) * 2
    full, drain = make(1)
    fill, empty = make(1)
    full.put("first")
    got: list[Any] = []
    waiting = [
        threading.Thread(target=lambda: full.put("second", timeout=60)),
        threading.Thread(target=lambda: got.append(empty.get(timeout=60))),
    ]
    for thread in waiting:
        thread.start()
    wait_until_all_sleep(2)

    def act() -> None:
        assert drain.get(timeout=30) == "first"
        assert drain.get(timeout=30) == "second"  # the parent's thread has continued
        fill.put("from the child", timeout=30)
        fill.put("and another", timeout=30)  # as soon as the parent's thread has taken the first
        assert empty.get(timeout=30) == "and another"

    join(fork(act))
    for thread in waiting:
        thread.join(60)
    assert got == ["from the child"]
    full.put("again")
    assert drain.get(timeout=30) == "again"


def footprint(arena: shmtree.Arena) -> dict[str, int]:
    gc.collect()
    stats = arena.stats()
    assert os.fstat(arena._core.fd).st_blocks * 512 < stats["committed_bytes"] + PLACES_BYTES
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": sum("memfd:shmtree" in line for line in mappings()),
        "participants": stats["participants"],
        "blocks": stats["blocks"],
        "used_bytes": stats["used_bytes"],
        "committed_bytes": stats["committed_bytes"],
    }


def mappings() -> list[str]:
    """Returns all mappings of the process. Python and malloc add some of their own at any time."""
    with open("/proc/self/maps") as maps:
        return maps.readlines()


def resident_kib() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") >> 10


@pytest.mark.guarantee("no-leak")
def test_thousand_forks_leak_nothing():
    in_small_process(leak_nothing_in_a_thousand_forks)


def leak_nothing_in_a_thousand_forks(arena):
    sender, receiver = arena.create_pair()
    queue = arena.Queue()
    sender.put(np.ones(100_000))
    view = receiver.get()

    def act() -> None:
        assert view[-1] == 1
        sender.put(np.zeros(5_000), timeout=30)
        kept = receiver.get(timeout=30)
        queue.put(kept, timeout=30)
        queue.get(timeout=30)

    for _ in range(100):  # after this, the arena caches as many free blocks as it may
        join(fork(act))
    before, mapped, resident = footprint(arena), len(mappings()), resident_kib()
    for _ in range(1000):
        join(fork(act))
    assert footprint(arena) == before
    assert len(mappings()) < mapped + 100
    assert resident_kib() < resident + 4096
    assert view.sum() == 100_000


@beside_running_threads
def test_forks_beside_busy_threads_lose_and_leak_nothing(arena):
    sender, receiver = arena.create_pair(capacity=4)
    queue = arena.Queue(4)

    def act() -> None:  # at most three run at once, so there is always space, and always a message
        sender.put(np.zeros(3_000), timeout=60)
        receiver.get(timeout=60)
        queue.put(np.zeros(3_000), timeout=60)
        queue.get(timeout=60)

    act()
    before = footprint(arena)
    with threads(act, act):
        for _ in range(200):
            join(fork(act))
    with pytest.raises(Empty):  # raised only after get() has detected the dead and cleaned up after them
        receiver.get(timeout=1)
    assert queue.empty()
    after = footprint(arena)
    for what in ("descriptors", "participants", "blocks", "used_bytes"):
        assert after[what] == before[what], what


def test_idle_children_leave_nothing_behind():
    in_small_process(leave_nothing_of_children_that_do_nothing)


def leave_nothing_of_children_that_do_nothing(arena):
    sender, receiver = arena.create_pair()
    sender.put(np.ones(100_000))
    view = receiver.get()
    before = footprint(arena)
    for _ in range(1100):  # more than the participant table has slots
        join(fork(lambda: None))
    assert footprint(arena) == before
    assert view[0] == 1
    assert not [holder for holder in arena.holders() if holder.pid != os.getpid()]


def test_two_hundred_children_are_attached_at_once(arena):
    sender, receiver = arena.create_pair(capacity=None)
    reading, writing = os.pipe()

    def act() -> None:
        sender.put(os.getpid(), timeout=60)
        os.read(reading, 1)

    children = [fork(act) for _ in range(200)]
    assert {receiver.get(timeout=60) for _ in children} == set(children)
    assert arena.stats()["participants"] == 201
    os.write(writing, b"x" * len(children))
    for child in children:
        join(child)
    os.close(reading)
    os.close(writing)


def test_orphan_keeps_using_its_ends_and_views(arena):
    sender, receiver = arena.create_pair()
    reading, writing = os.pipe()

    def child() -> None:
        sender.put(np.arange(50_000))
        view = receiver.get()

        def orphan() -> None:
            os.read(reading, 1)  # until the parent exits
            assert view.sum() == sum(range(50_000))
            sender.put("from the orphan", timeout=30)

        fork(orphan)

    join(fork(child))
    os.write(writing, b"x")
    assert receiver.get(timeout=30) == "from the orphan"
    os.close(reading)
    os.close(writing)


def test_child_forked_by_a_thread_can_put(arena):
    sender, receiver = arena.create_pair()
    waiting = threading.Thread(target=receiver.get, kwargs={"timeout": 60})
    waiting.start()
    wait_until_all_sleep(1)
    forking = threading.Thread(target=lambda: join(fork(lambda: sender.put("from a child of a thread"))))
    forking.start()
    forking.join(60)
    waiting.join(60)
    assert not waiting.is_alive()


@beside_running_threads
def test_fork_beside_threads_that_use_names_keeps_no_other_name(tmp_path, monkeypatch):
    monkeypatch.setenv("SHMTREE_NAMES_DIR", str(tmp_path / "shmtree"))
    name = f"test-{os.getpid()}-fork"
    reading, writing = os.pipe()
    children: list[int] = []
    rounds = itertools.count()

    def make_and_drop() -> None:
        shmtree.Arena(1 << 20, name=f"{name}-{next(rounds)}")

    try:
        with threads(make_and_drop, make_and_drop):
            # Each child has the descriptors that its parent's threads had at that moment, until it exits.
            children.extend(fork(lambda: os.read(reading, 1)) for _ in range(60))
        # A child also has the objects that a thread had at the fork. No other name may be left.
        for known in shmtree.list_names():
            assert name not in known.name or (known.pids and set(known.pids) <= set(children)), known
    finally:
        os.write(writing, b"x" * len(children))
        for child in children:
            join(child)
        os.close(reading)
        os.close(writing)


def test_forks_leave_no_entries_in_the_file_of_a_name(tmp_path, monkeypatch):
    monkeypatch.setenv("SHMTREE_NAMES_DIR", str(tmp_path / "shmtree"))
    name = f"test-{os.getpid()}-entries"
    queue = shmtree.Queue(name=name)
    for _ in range(50):
        join(fork(functools.partial(queue.put, 1)))
        queue.get(timeout=30)
    file = tmp_path / "shmtree" / name
    assert file.stat().st_size <= 512 + 16 * 3
    del queue
    assert not file.exists()


def test_child_stopped_right_after_fork_blocks_no_peer(arena):
    sender, receiver = arena.create_pair()
    child = fork(lambda: os.kill(os.getpid(), signal.SIGSTOP))
    os.waitpid(child, os.WUNTRACED)
    for i in range(100):
        sender.put(i, timeout=30)
        assert receiver.get(timeout=30) == i
    os.kill(child, signal.SIGCONT)
    join(child)


@pytest.mark.guarantee("redelivery-is-copied")
@pytest.mark.parametrize("made", ["received", "in the arena"])
def test_child_keeps_an_array_that_its_parent_moves_on(arena, made):
    sender, receiver = arena.create_pair()
    array = sender.new_empty(100_000)
    if made == "received":
        sender.put(np.empty(100_000))
        array = receiver.get()
    array[:] = 1
    told, tell = os.pipe()

    def look() -> None:
        os.read(told, 1)
        assert (array == 1).all()

    child = fork(look)
    sender.put(array, move=True)
    got = receiver.get()
    got[:] = 2
    os.write(tell, b"x")
    join(child)
    array[:] = 3  # a copy stays with the parent
    assert (got == 2).all()
    sender.put(array, move=True)
    assert receiver.get().ctypes.data == array.ctypes.data  # the child has exited
    os.close(told)
    os.close(tell)
