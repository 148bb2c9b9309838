"""Queues with `on_peer_death="raise"` report killed processes instead of blocking forever."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing as mp
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from starts import START_METHODS

import shmtree

NEVER = 60  # seconds: no call that must fail may block for that long


def put_and_wait(q: Any, values: list[Any], ready: Any) -> None:
    for value in values:
        q.put(value)
    ready.set()
    threading.Event().wait()


def get_and_wait(q: Any, ready: Any) -> None:
    q.get()
    ready.set()
    threading.Event().wait()


def killed(target: Callable[..., None], *arguments: Any, method: str = "fork") -> int:
    """Runs a function in a process, kills the process once it has set the event, and returns its pid."""
    context = mp.get_context(method)
    ready = context.Event()
    process = context.Process(target=target, args=(*arguments, ready))
    process.start()
    assert ready.wait(NEVER)
    process.kill()
    process.join()
    assert process.pid is not None
    return process.pid


def get_nowait(q: Any) -> Any:
    """Calls `get_nowait` until it finds an object or an error: a death may be detected a moment later."""
    while True:
        with contextlib.suppress(queue.Empty):
            return q.get_nowait()
        time.sleep(0.01)


CALLS: dict[str, Callable[[Any], Any]] = {
    "get": lambda q: q.get(),
    "get with a timeout": lambda q: q.get(timeout=NEVER),
    "get_nowait": get_nowait,
    "get_many": lambda q: q.get_many(3, timeout=NEVER),
    "iteration": next,
    "get_async": lambda q: asyncio.run(q.get_async(timeout=NEVER)),
    "wait": lambda q: shmtree.wait([q], timeout=NEVER)[0].get_nowait(),
}


@pytest.mark.guarantee("queue-peer-died")
@pytest.mark.parametrize("call", CALLS)
def test_get_raises_peer_died_when_all_producers_were_killed(call: str):
    q: Any = shmtree.Queue(on_peer_death="raise")
    pid = killed(put_and_wait, q, [1, 2])
    assert [q.get(timeout=NEVER), q.get(timeout=NEVER)] == [1, 2]
    for _ in range(2):
        with pytest.raises(shmtree.PeerDied, match="no other process is left that could put into this queue") as caught:
            CALLS[call](q)
        assert caught.value.pids == (pid,)


@pytest.mark.guarantee("queue-peer-died")
def test_get_raises_peer_died_with_every_killed_producer():
    q: Any = shmtree.Queue(on_peer_death="raise")
    pids = {killed(put_and_wait, q, [1]) for _ in range(2)}
    assert [q.get(), q.get()] == [1, 1]
    with pytest.raises(shmtree.PeerDied) as caught:
        q.get()
    assert set(caught.value.pids) == pids


@pytest.mark.guarantee("queue-peer-died")
def test_put_raises_peer_died_when_all_consumers_were_killed():
    q: Any = shmtree.Queue(1, on_peer_death="raise")
    q.put(1)
    pid = killed(get_and_wait, q)
    q.put(2)
    for call in (lambda: q.put(3), lambda: q.put(3, timeout=NEVER), lambda: asyncio.run(q.put_async(3, timeout=NEVER))):
        with pytest.raises(shmtree.PeerDied, match="that could get from this queue") as caught:
            call()
        assert caught.value.pids == (pid,)
    assert q.get() == 2


@pytest.mark.guarantee("queue-peer-died")
def test_join_raises_peer_died_when_all_consumers_were_killed():
    q: Any = shmtree.JoinableQueue(on_peer_death="raise")
    q.put(1)
    pid = killed(get_and_wait, q)
    with pytest.raises(shmtree.PeerDied, match="that could get from this queue") as caught:
        q.join()
    assert caught.value.pids == (pid,)


def test_blocked_get_ends_when_the_last_producer_is_killed():
    q: Any = shmtree.Queue(on_peer_death="raise")
    ready = mp.get_context("fork").Event()
    process = mp.get_context("fork").Process(target=put_and_wait, args=(q, [], ready))
    process.start()
    assert ready.wait(NEVER)
    timer = threading.Timer(0.2, process.kill)
    timer.start()
    with pytest.raises(shmtree.PeerDied):
        q.get()
    process.join()


def test_get_waits_again_for_a_new_producer():
    q: Any = shmtree.Queue(on_peer_death="raise")
    killed(put_and_wait, q, [])
    with pytest.raises(shmtree.PeerDied):
        q.get()
    process = mp.get_context("spawn").Process(target=q.put, args=(3,))
    process.start()
    assert q.get() == 3
    process.join()


def test_get_keeps_waiting_while_another_process_may_put():
    q: Any = shmtree.Queue(on_peer_death="raise")
    done = mp.get_context("fork").Event()
    idle = mp.get_context("fork").Process(target=wait_with, args=(q, done))
    idle.start()
    killed(put_and_wait, q, [])
    with pytest.raises(queue.Empty):
        q.get(timeout=0.5)
    done.set()
    idle.join()
    with pytest.raises(shmtree.PeerDied):
        q.get()


@pytest.mark.parametrize("method", START_METHODS)
def test_get_raises_if_the_process_was_killed_while_it_started(method: str):
    q: Any = shmtree.Queue(on_peer_death="raise")
    context = mp.get_context(method)
    process = context.Process(target=put_and_wait, args=(q, [1], context.Event()))
    process.start()
    process.kill()
    process.join()
    with pytest.raises(shmtree.PeerDied) as caught:
        list(q)
    # empty: a child that was killed within fork(), before it stored its pid
    assert caught.value.pids in [(process.pid,), ()]


def wait_with(q: Any, done: Any) -> None:
    done.wait()


def test_get_keeps_waiting_after_a_clean_exit():
    q: Any = shmtree.Queue(on_peer_death="raise")
    process = mp.get_context("fork").Process(target=q.put, args=(1,))
    process.start()
    process.join()
    assert q.get() == 1
    with pytest.raises(queue.Empty):
        q.get(timeout=0.5)


def test_shut_down_queue_raises_shut_down():
    q: Any = shmtree.Queue(on_peer_death="raise")
    killed(put_and_wait, q, [])
    q.shutdown()
    with pytest.raises(shmtree.ShutDown):
        q.get()


def test_open_with_another_option_is_refused():
    q: Any = shmtree.Queue(name="raising", on_peer_death="raise")
    with pytest.raises(ValueError, match="on_peer_death"):
        shmtree.Queue(name="raising", exist_ok=True)
    opened: Any = shmtree.Queue(name="raising", on_peer_death="raise", exist_ok=True)
    opened.put(1)
    assert q.get() == 1


@pytest.mark.parametrize("word", ["each", "never", "queue_raise"])
def test_other_values_are_refused(word: str):
    with pytest.raises(ValueError, match=f"on_peer_death is '{word}'; it must be 'wait' or 'raise'"):
        shmtree.Queue(on_peer_death=word)  # type: ignore[arg-type]
