"""Pinned arenas: memory is registered with CUDA, its pages stay, and arrays are held while they are copied.

Each test runs twice: on a fake driver (fake_cuda.c), which logs what is registered, and on the real one, which is
skipped without a GPU. Copies to a device are in test_gpu_pinned.py.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from cuda_processes import ON_THE_FAKE, Log, Process, Spawn, has_driver

import shmtree
from shmtree.cuda import _pinned

KIB = 1 << 10


@pytest.fixture
def consumer(spawn: Spawn, arena: shmtree.Arena) -> tuple[Process, shmtree.Sender]:
    """Starts a process that pinned the arena. Yields it and the sender to it."""
    sender, receiver = arena.create_pair()
    process = spawn(receiver, arena=arena)
    process.ask("pin")
    return process, sender


Consumer = tuple[Process, shmtree.Sender]


def test_received_blocks_are_registered(consumer: Consumer) -> None:
    process, sender = consumer
    assert process.ask("registered") == 0
    for number in range(3):  # each message gets the same block
        sender.put(np.full(100 * KIB, number, np.uint8))
        assert process.ask("get_array") == (100 * KIB, number * 100 * KIB)
        assert process.ask("registered") >= 100 * KIB
        process.ask("drop")
    assert process.ask("pinned_bytes") == process.ask("registered")


@ON_THE_FAKE
def test_a_block_is_registered_once(consumer: Consumer, driver_log: Log) -> None:
    process, sender = consumer
    for _ in range(3):
        sender.put(np.ones(100 * KIB, np.uint8))
        process.ask("get_array")
        process.ask("drop")
    registered = [line for line in driver_log(process) if line.startswith("register")]
    assert len(registered) == 1 and registered[0].endswith("flags 1")  # flag 1: registered for all devices


def test_a_block_that_grew_is_registered_whole(consumer: Consumer) -> None:
    process, sender = consumer
    for nbytes in (70 * KIB, 120 * KIB):  # the two sizes have the same size class
        sender.put(np.ones(nbytes, np.uint8))
        process.ask("get_array")
        assert process.ask("registered") >= nbytes
        process.ask("drop")


@ON_THE_FAKE
def test_a_block_that_grew_is_registered_anew(consumer: Consumer, driver_log: Log) -> None:
    process, sender = consumer
    for nbytes in (70 * KIB, 120 * KIB):
        sender.put(np.ones(nbytes, np.uint8))
        process.ask("get_array")
        process.ask("drop")
    lines = [line.split()[0] for line in driver_log(process) if "register" in line]
    assert lines == ["register", "unregister", "register"]


def test_arrays_that_are_sent_by_reference_are_registered_too(consumer: Consumer) -> None:
    process, sender = consumer
    array = sender.new_empty(200 * KIB, np.uint8)
    array[:] = 1
    sender.put(array)
    assert process.ask("get_array") == (200 * KIB, 200 * KIB)
    assert process.ask("registered") >= 200 * KIB


def test_arrays_allocated_by_the_consumer_are_registered(consumer: Consumer) -> None:
    process, _ = consumer
    process.ask("make_array", 300 * KIB)
    assert process.ask("registered") >= 300 * KIB


def test_trim_frees_no_pages_while_a_process_pins_the_arena(consumer: Consumer, arena: shmtree.Arena) -> None:
    process, sender = consumer
    sender.put(np.ones(500 * KIB, np.uint8))
    process.ask("get_array")
    process.ask("drop")
    committed = arena.stats()["committed_bytes"]
    assert arena.trim() == 0 and process.ask("trim") == 0
    assert arena.stats()["committed_bytes"] == committed

    process.ask("unpin")

    assert process.ask("registered") == process.ask("pinned_bytes") == 0
    assert arena.trim() >= 500 * KIB


def test_closing_the_arena_unpins_it(consumer: Consumer, arena: shmtree.Arena) -> None:
    process, sender = consumer
    sender.put(np.ones(500 * KIB, np.uint8))
    process.ask("get_array")
    process.ask("drop")
    process.ask("close_arena")
    assert process.ask("registered") == 0
    assert arena.trim() >= 500 * KIB


@pytest.mark.parametrize("is_killed", [True, False])
def test_exited_or_killed_process_pins_nothing(
    consumer: Consumer,
    arena: shmtree.Arena,
    is_killed: bool,
) -> None:
    process, sender = consumer
    sender.put(np.ones(500 * KIB, np.uint8))
    process.ask("get_array")
    if is_killed:
        process.kill()
    else:
        process.end()
        assert process.has_ended()
    assert arena.trim() >= 500 * KIB


@ON_THE_FAKE
def test_exiting_process_unregisters_its_blocks(consumer: Consumer, driver_log: Log) -> None:
    process, sender = consumer
    sender.put(np.ones(500 * KIB, np.uint8))
    process.ask("get_array")
    process.end()
    assert process.has_ended()
    lines = [line.split()[0] for line in driver_log(process)]
    assert lines.count("register") == lines.count("unregister") == 1


def test_pinning_twice_is_pinning_once(consumer: Consumer, arena: shmtree.Arena) -> None:
    process, _ = consumer
    process.ask("pin")
    process.ask("make_array", 300 * KIB)
    process.ask("unpin")
    process.ask("unpin")
    assert process.ask("registered") == 0
    process.ask("drop")
    assert arena.trim() >= 300 * KIB


def test_sender_registers_nothing_and_needs_no_driver(consumer: Consumer, arena: shmtree.Arena) -> None:
    _, sender = consumer
    sender.put(np.ones(500 * KIB, np.uint8))
    assert arena.pinned_bytes == 0 and not arena._core.is_pinned_here
    assert sender.new_empty(100 * KIB, np.uint8).nbytes == 100 * KIB


@pytest.mark.skipif(has_driver(), reason="this machine has a CUDA driver")
def test_pin_without_cuda_raises_device_error(arena: shmtree.Arena) -> None:
    with pytest.raises(shmtree.DeviceError, match="no CUDA driver"):
        arena.pin()
    assert not arena._core.is_pinned_here


# --- copies ---------------------------------------------------------------------------------------------------------


class Event:
    """An event of a device that passes when the test sets `has_passed`."""

    def __init__(self) -> None:
        self.has_passed = False
        self.was_waited_for = False

    def query(self) -> bool:
        return self.has_passed

    def synchronize(self) -> None:
        self.was_waited_for = True


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch, arena: shmtree.Arena) -> list[Event]:
    """Makes `get_to` copy to the CPU as if the CPU had streams and the arena were pinned.

    Returns the events of its copies.
    """
    pytest.importorskip("torch")

    made: list[Event] = []

    def mark(device: Any) -> Event:
        made.append(Event())
        return made[-1]

    monkeypatch.setattr("shmtree._torch.devices._mark", mark)
    monkeypatch.setattr("shmtree._torch.devices._has_streams", lambda device: True)
    arena._core.set_pinned(True)
    return made


def test_get_to_retains_the_message_until_its_event_has_passed(arena: shmtree.Arena, events: list[Event]) -> None:
    torch = pytest.importorskip("torch")
    sender, receiver = arena.create_pair()
    own = len(arena.holders())
    for number in range(2):
        sender.put({"a": torch.full((50_000,), float(number)), "b": [np.full(50_000, number)]})

    got = receiver.get_to("cpu")
    gc.collect()
    assert torch.equal(got["a"], torch.zeros(50_000)) and torch.equal(got["b"][0], torch.zeros(50_000, dtype=int))
    assert len(events) == 1 and len(arena.holders()) == own + 1

    second = receiver.get_to("cpu")  # checks the first copy, which is not done
    assert float(second["a"][0]) == 1 and len(arena.holders()) == own + 2
    events[0].has_passed = True
    assert _pinned.settle() == 1 and len(arena.holders()) == own + 1
    events[1].has_passed = True
    assert _pinned.settle() == 0 and len(arena.holders()) == own


def test_unpinning_waits_for_the_copies(arena: shmtree.Arena, events: list[Event]) -> None:
    torch = pytest.importorskip("torch")
    sender, receiver = arena.create_pair()
    own = len(arena.holders())
    sender.put(torch.zeros(50_000))
    receiver.get_to("cpu")
    arena.unpin()
    assert events[0].was_waited_for and len(arena.holders()) == own


def test_get_to_without_a_pin_retains_nothing(arena: shmtree.Arena, events: list[Event]) -> None:
    torch = pytest.importorskip("torch")
    arena._core.set_pinned(False)
    sender, receiver = arena.create_pair()
    own = len(arena.holders())
    sender.put(torch.zeros(50_000))
    receiver.get_to("cpu")
    assert not events and len(arena.holders()) == own
