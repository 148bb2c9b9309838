"""References to device memory are released if a driver call fails, threads race, or a process forks."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import threading
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forks import fork, join

import shmtree
from shmtree import _core
from shmtree.cuda import _driver, _events, _pinned, _received, _sent

LOCATION = _received._Location(b"d" * 16, b"h" * 64, 0, 4096, b"e" * 64)


class Driver:
    """A driver that records its calls, and fails in the calls that a test selects."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {
            "allocation_of": (4096, 4096),
            "buffer_of": 1,
            "create_event": itertools.count(7).__next__,
            "device_of": 0,
            "device_with": 0,
            "event_handle": LOCATION.event,
            "has_passed": True,
            "memory_handle": LOCATION.handle,
            "open_event": itertools.count(80).__next__,
            "open_memory": 4096,
            "uuid": LOCATION.device,
        }
        self.calls: list[tuple[Any, ...]] = []
        self.failing: dict[str, type[BaseException]] = {}

    @contextlib.contextmanager
    def on(self, device: int) -> Any:
        self._call("on", device)
        yield

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **named: self._call(name, *arguments)

    def _call(self, name: str, *arguments: Any) -> Any:
        self.calls.append((name, *arguments))
        if name in self.failing:
            raise self.failing[name]("said by the test")
        answer = self.answers.get(name)
        return answer() if callable(answer) else answer

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == name]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(_driver, "driver", lambda: made)
    monkeypatch.setattr(_sent, "_lent", OrderedDict())
    monkeypatch.setattr(_sent, "_free_events", _events.Pool(is_shared=True))
    monkeypatch.setattr(_sent, "_handles", {})
    monkeypatch.setattr(_received, "_free_events", _events.Pool(is_shared=False))
    monkeypatch.setattr(_received, "_senders_events", _events.Opened())
    monkeypatch.setattr(_received, "_opened", {})
    monkeypatch.setattr(_received, "_departed", deque())
    monkeypatch.setattr(_received, "current_stream", lambda device: 5)
    return made


def receive(arena: shmtree.Arena, is_array: bool = False) -> tuple[_received.Memory, int]:
    """Returns memory as if another process had sent it, and its token, which only that memory keeps alive."""
    token = arena._core.new_array(64, np.uint8, "C", True, True)
    block = _core.block_of(token)
    sender = _received._Sender(arena._core.uuid, block, arena._core.identity, os.getpid())
    return _received._open(arena._core, sender, LOCATION, is_array), block


def lend(arena: shmtree.Arena) -> Any:
    return _sent._lend(_sent.Source(object(), 4096, 64, 0, ()), arena._core)


# --- received ---------------------------------------------------------------------------------------------------------


def test_forked_child_does_not_retain_received_memory(arena: shmtree.Arena, driver: Driver) -> None:
    memory, block = receive(arena)
    there, here = socket.socketpair()

    def stay() -> None:
        here.close()
        there.send(b"x")
        there.recv(1)  # until the other side is closed

    child = fork(stay)
    there.close()
    with here:
        assert here.recv(1) == b"x" and not arena._core.is_shared(block)
    join(child)
    assert memory.nbytes == 4096  # keeps `memory` alive up to here


@pytest.mark.parametrize(("is_array", "streams"), [(True, {5, 0}), (False, {5})])
def test_array_is_awaited_in_the_default_stream_too(
    arena: shmtree.Arena, driver: Driver, is_array: bool, streams: set[int]
) -> None:
    memory, _ = receive(arena, is_array)
    assert memory.__cuda_array_interface__["stream"] == 1
    assert sorted(driver.of("wait_in_stream")) == sorted((stream, 80) for stream in streams)


def test_dropped_memory_stays_open_until_an_event_is_recorded(arena: shmtree.Arena, driver: Driver) -> None:
    memory, _ = receive(arena)
    driver.failing["record"] = shmtree.DeviceError
    del memory
    assert _received.settle() == 1 and driver.of("close_memory") == []
    driver.failing.clear()
    assert _received.settle() == 0 and driver.of("close_memory") == [(4096,)]


def test_failing_close_leaves_the_allocation_without_users(arena: shmtree.Arena, driver: Driver) -> None:
    memory, _ = receive(arena)
    driver.failing["close_memory"] = shmtree.DeviceError
    del memory
    assert _received.settle() == 0 and not _received.has_opened(0, 4096)


def test_failing_device_leaves_the_allocation_without_users(arena: shmtree.Arena, driver: Driver) -> None:
    driver.answers["has_passed"] = False
    memory, _ = receive(arena)
    del memory
    (departure,) = _received._departed
    driver.failing["on"] = shmtree.DeviceError
    departure.end()
    assert not _received.has_opened(0, 4096)


def test_interrupted_settle_checks_the_memory_again(arena: shmtree.Arena, driver: Driver) -> None:
    driver.answers["has_passed"] = False
    memory, _ = receive(arena)
    del memory
    driver.failing["has_passed"] = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        _received.settle()
    driver.failing.clear()
    assert _received.settle() == 1
    driver.answers["has_passed"] = True
    assert _received.settle() == 0 and driver.of("close_memory") == [(4096,)]


def test_settle_queries_one_pending_event_per_stream(
    arena: shmtree.Arena, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.answers["has_passed"] = False
    for stream in (5, 5, 6, 5, 6):
        monkeypatch.setattr(_received, "current_stream", lambda device, stream=stream: stream)
        memory, _ = receive(arena)
        del memory
    driver.calls.clear()
    assert _received.settle() == 5 and len(driver.of("has_passed")) == 2
    driver.answers["has_passed"] = True
    assert _received.settle() == 0


def test_event_that_cannot_be_queried_is_recorded_anew(arena: shmtree.Arena, driver: Driver) -> None:
    memory, _ = receive(arena)
    driver.failing["has_passed"] = shmtree.DeviceError
    del memory
    assert _received.settle() == 1
    driver.failing.clear()
    driver.calls.clear()
    assert _received.settle() == 0 and len(driver.of("record")) == 1


# --- sent -------------------------------------------------------------------------------------------------------------


def test_event_is_destroyed_when_its_send_fails(arena: shmtree.Arena, driver: Driver) -> None:
    driver.failing["event_handle"] = shmtree.DeviceError
    with pytest.raises(shmtree.DeviceError, match="said by the test"):
        lend(arena)
    assert _sent.look() == 0 and driver.of("destroy_event") == [(7,)]


@pytest.mark.parametrize("call", ["buffer_of", "memory_handle"])
def test_memory_without_a_handle_is_explained(arena: shmtree.Arena, driver: Driver, call: str) -> None:
    def refuse() -> None:
        raise shmtree.DeviceError("refused", code=1)

    driver.answers[call] = refuse
    with pytest.raises(shmtree.DeviceError, match=r"expandable_segments.*refused"):
        lend(arena)
    assert _sent.look() == 0 and driver.of("record") == []


def test_handle_is_exported_again_for_a_new_allocation(arena: shmtree.Arena, driver: Driver) -> None:
    lend(arena)
    lend(arena)
    assert len(driver.of("memory_handle")) == 1
    driver.answers["buffer_of"] = 2  # the same address, after a free and another allocation
    lend(arena)
    assert len(driver.of("memory_handle")) == 2


def test_threads_lend_and_release_memory_concurrently(arena: shmtree.Arena, driver: Driver) -> None:
    """Each look() releases memory that was lent, so the threads race to release it."""
    count, errors = 200, []
    start = threading.Barrier(4)

    def work() -> None:
        try:
            start.wait()
            for _ in range(count):
                lend(arena)
                _sent.look()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and _sent.look() == 0
    assert len(driver.of("record")) == 4 * count
    # A thread has lent at most one event, and is putting back at most one.
    assert len(driver.of("create_event")) <= 8 and driver.of("destroy_event") == []


EXITING = """
import multiprocessing
import device_peers, numpy, shmtree, shmtree.cuda

shmtree.cuda.set_exit_timeout(1000)
sender, receiver = shmtree.Arena(64 << 20).create_pair()
context = multiprocessing.get_context("spawn")
told, theirs = context.Pipe()
context.Process(target=device_peers.serve, args=(receiver, theirs), daemon=True).start()
sender.put({"it": device_peers.DeviceValues(numpy.arange(10.0))})
told.send(("get",))
assert told.recv()[0] and shmtree.cuda.lent() == 1
"""


def test_exit_does_not_wait_for_daemon_processes(driver_log: object) -> None:
    path = f"{Path(__file__).parents[1] / 'support'}:{os.environ.get('PYTHONPATH', '')}"
    subprocess.run([sys.executable, "-c", EXITING], env={**os.environ, "PYTHONPATH": path}, check=True, timeout=90)


# --- pinned -----------------------------------------------------------------------------------------------------------


class Core:
    """An arena in which the first pin is interrupted."""

    uuid = b"i" * 16

    def __init__(self) -> None:
        self.said: list[bool] = []

    def set_pinned(self, pinned: bool) -> None:
        self.said.append(pinned)
        if self.said == [True]:
            raise KeyboardInterrupt


def test_interrupted_pin_is_repeated(driver: Driver) -> None:
    core: Any = Core()
    with pytest.raises(KeyboardInterrupt):
        _pinned.pin(core)
    _pinned.pin(core)
    assert core.said == [True, True]
    _pinned.unpin(core)
    assert core.said == [True, True, False]


def test_arena_is_unpinned_even_if_the_device_fails(driver: Driver) -> None:
    core: Any = Core()
    core.said.append(False)
    _pinned.pin(core)
    driver.failing["on"] = shmtree.DeviceError
    with pytest.raises(shmtree.DeviceError):
        _pinned.unpin(core)
    assert core.said == [False, True, False]


def test_wait_for_copies_includes_one_being_queried() -> None:
    class Event:
        waited = 0

        def query(self) -> bool:
            _pinned.wait_for_copies()  # another thread that unpins does the same
            return True

        def synchronize(self) -> None:
            self.waited += 1

    event = Event()
    _pinned.keep(event, None)
    assert _pinned.settle() == 0 and event.waited == 1
