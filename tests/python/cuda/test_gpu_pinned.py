"""Copies from a pinned arena to a real device. The tests without torch are in test_pinned.py."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest
from cuda_processes import Process, gpus

import shmtree

torch = pytest.importorskip("torch")
gpu_peers = pytest.importorskip("gpu_peers")

pytestmark = pytest.mark.skipif(gpus() == 0 or not torch.backends.cuda.is_built(), reason="no GPU")

Consumer = tuple[Process, shmtree.Sender]


@pytest.fixture
def consumer(arena: shmtree.Arena) -> Iterator[Consumer]:
    """Starts a process with an arena that it has not pinned yet. Yields the process and its channel's sender."""
    sender, receiver = arena.create_pair()
    multiprocessing.get_context("forkserver").set_forkserver_preload(["gpu_peers"])
    process = Process(receiver, arena, gpu_peers.PinningPeer, method="forkserver")
    yield process, sender
    process.kill()


def sums(number: int) -> dict[str, float]:
    return {"a": 1e6 * number, "b": 5e4 * number}


def test_torch_sees_received_arrays_as_pinned(consumer: Consumer) -> None:
    process, sender = consumer
    sender.put(gpu_peers.message(1))
    assert not process.ask("get")
    process.ask("pin")
    sender.put(gpu_peers.message(2))
    assert process.ask("get") and process.ask("pinned_bytes") >= 4_000_000
    process.ask("unpin")
    assert not process.ask("is_pinned") and process.ask("pinned_bytes") == 0


@pytest.mark.parametrize("is_pinned", [True, False])
def test_each_message_reaches_the_device_unchanged(consumer: Consumer, is_pinned: bool) -> None:
    """Sends many messages, so that memory of earlier ones is reused."""
    process, sender = consumer
    if is_pinned:
        process.ask("pin")
    for number in range(50):
        sender.put(gpu_peers.message(number))
        assert process.ask("get_to") == sums(number)


def test_get_to_does_not_block_and_retains_memory_being_copied(consumer: Consumer, arena: shmtree.Arena) -> None:
    process, sender = consumer
    process.ask("pin")
    sender.put(gpu_peers.message(3))
    process.ask("get_to")  # loads all modules and kernels
    assert process.ask("copies_left") == 0
    sender.put(gpu_peers.message(4))
    assert process.ask("get_to_behind_work") == (True, 1)
    assert process.ask("copies_left") == 0 and process.ask("sum_of_kept") == 4e6


def test_a_view_is_copied_without_waiting(consumer: Consumer) -> None:
    process, sender = consumer
    process.ask("pin")
    sender.put(gpu_peers.message(3))
    process.ask("get_to")
    sender.put(gpu_peers.message(5))
    assert process.ask("copy_behind_work")
    assert process.ask("sum_of_moved") == 5e6


def test_unpin_waits_for_copies_in_progress(consumer: Consumer) -> None:
    process, sender = consumer
    process.ask("pin")
    sender.put(gpu_peers.message(3))
    process.ask("get_to")
    sender.put(gpu_peers.message(6))
    assert process.ask("get_to_behind_work") == (True, 1)
    process.ask("unpin")
    assert process.ask("copies_left") == 0 and process.ask("sum_of_kept") == 6e6


def test_forked_child_reads_pinned_memory_and_parent_can_copy(consumer: Consumer) -> None:
    process, sender = consumer
    process.ask("pin")
    sender.put(gpu_peers.message(7))
    process.ask("get")
    seen, pinned_bytes, said = process.ask("fork")
    assert seen == 7e6 and pinned_bytes == 0 and "spawn" in said
    for number in range(5):
        sender.put(gpu_peers.message(number))
        assert process.ask("get_to") == sums(number)


def test_data_loader_batches_are_pinned_without_a_pinning_thread(consumer: Consumer) -> None:
    process, _ = consumer
    pinned, right, threads = process.ask("load")
    assert pinned == right == [True] * 8
    assert not [name for name in threads if "pin" in name.lower()]


def test_sampled_replay_batches_are_pinned(consumer: Consumer) -> None:
    process, _ = consumer
    pinned, right = process.ask("draw")
    assert pinned == right == [True] * 8
