"""Tensors on a real device from process to process. The tests without torch are in test_cuda.py.

The processes come from the fork server, which has imported torch, except in tests of start methods.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cuda_processes import Process, gpus

import shmtree

torch = pytest.importorskip("torch")
gpu_peers = pytest.importorskip("gpu_peers")

pytestmark = pytest.mark.skipif(gpus() == 0 or not torch.backends.cuda.is_built(), reason="no GPU")

StartPeer = Callable[..., Process]
Two = tuple[Process, Process]


@pytest.fixture
def start_peer() -> Iterator[StartPeer]:
    processes: list[Process] = []

    multiprocessing.get_context("forkserver").set_forkserver_preload(["gpu_peers"])

    def run(end: Any, method: str = "forkserver", closes_end: bool = True) -> Process:
        processes.append(Process(end, peer=gpu_peers.Peer, method=method, closes_end=closes_end))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()


@pytest.fixture
def two(start_peer: StartPeer, arena: shmtree.Arena) -> Two:
    sender, receiver = arena.create_pair(allow_pickle=False)
    return start_peer(sender), start_peer(receiver)


WHOLE = [[float(6 * row + column) for column in range(6)] for row in range(4)]


def all_of(value: float) -> list[list[float]]:
    return [[value] * 6] * 4


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("channel", ["pair", "queue"])
def test_received_tensor_is_the_senders_memory(
    start_peer: StartPeer, arena: shmtree.Arena, channel: str, method: str
) -> None:
    if channel == "pair":
        ends = arena.create_pair()
        sender, receiver = start_peer(ends[0], method), start_peer(ends[1], method)
    else:
        queue = arena.Queue()
        sender, receiver = start_peer(queue, method, closes_end=False), start_peer(queue, method)
    sender.ask("put", "whole")
    assert receiver.ask("get") == sender.ask("describe_made")

    sender.ask("write", -1)
    assert receiver.ask("describe_received")[-1] == all_of(-1)
    receiver.ask("write_received", 5)
    assert sender.ask("describe_made")[-1] == all_of(5)

    receiver.ask("drop")
    sender.ask("wait")
    assert sender.ask("lent") == 0


@pytest.mark.parametrize("name", gpu_peers.TENSORS)
def test_tensor_arrives_unchanged(two: Two, name: str) -> None:
    sender, receiver = two
    sender.ask("put", name)
    assert receiver.ask("get") == sender.ask("describe_made")
    receiver.ask("drop")
    sender.ask("wait")


def test_views_of_one_tensor_still_share_memory(two: Two) -> None:
    sender, receiver = two
    sender.ask("put_views")
    assert receiver.ask("write_part", 7) == [WHOLE[0], *all_of(7)[1:]]


@pytest.mark.parametrize("name", ["with a gradient", "parameter"])
def test_receiver_computes_gradients_of_a_received_tensor(two: Two, name: str) -> None:
    sender, receiver = two
    sender.ask("put", name)
    receiver.ask("get")
    assert receiver.ask("gradient") == all_of(2)


# --- streams and events -----------------------------------------------------------------------------------------------


def test_receiver_reads_after_the_senders_pending_work(two: Two) -> None:
    sender, receiver = two
    sender.ask("put", "whole")
    receiver.ask("get")
    steps = sender.ask("put_while_writing", 7)
    assert all(is_busy for is_busy, _ in steps.values()), f"a step waited for the device: {steps}"
    assert receiver.ask("get_in_a_stream") == all_of(7)


def test_reused_events_order_each_message(two: Two) -> None:
    sender, receiver = two
    for value in range(3):
        sender.ask("put_while_writing", value)
        assert receiver.ask("get_in_a_stream") == all_of(value)
        receiver.ask("drop")
        sender.ask("wait")


def test_sender_reuses_memory_after_the_receivers_pending_reads(two: Two) -> None:
    sender, receiver = two
    sender.ask("put", "whole")
    receiver.ask("get")
    assert receiver.ask("read_late_and_drop"), "the kernel had run before the tensor was dropped"
    sender.told.send(("wait_and_write", -1))
    while receiver.ask("settle"):
        pass
    assert sender.hear() == (True, None)
    assert receiver.ask("late_values") == WHOLE


# --- devices ----------------------------------------------------------------------------------------------------------


def test_receiver_can_select_the_device_by_uuid(
    start_peer: StartPeer, arena: shmtree.Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, other = arena.create_pair()
    sender = start_peer(end, "spawn")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", sender.ask("uuid"))
    receiver = start_peer(other, "spawn")
    sender.ask("put", "whole")
    assert receiver.ask("get")[-1] == WHOLE


def test_get_without_a_visible_device_raises_device_error(
    start_peer: StartPeer, arena: shmtree.Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, other = arena.create_pair()
    sender = start_peer(end, "spawn")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    receiver = start_peer(other, "spawn")
    sender.ask("put", "whole")
    assert receiver.fail("get")[0] == "DeviceError"
    sender.ask("wait")


@pytest.mark.skipif(gpus() == 1, reason="there is one GPU only")
def test_device_is_found_under_another_number(
    start_peer: StartPeer, arena: shmtree.Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, other = arena.create_pair()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    sender = start_peer(end, "spawn")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    receiver = start_peer(other, "spawn")
    sender.ask("put", "whole")
    got = receiver.ask("get")
    assert got[2] == "cuda:1" and got[-1] == WHOLE


@pytest.mark.parametrize("setting", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_put_of_memory_without_a_handle_names_the_setting(
    start_peer: StartPeer, arena: shmtree.Arena, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    end, receiver = arena.create_pair()
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", setting)
    sender = start_peer(end, "spawn")
    name, text, _ = sender.fail("put", "whole")
    assert name == "DeviceError" and setting.partition(":")[0] in text
    assert receiver.empty() and sender.ask("lent") == 0


# --- deaths and exits -------------------------------------------------------------------------------------------------


def test_get_raises_peer_died_and_earlier_tensor_can_be_dropped(two: Two) -> None:
    sender, receiver = two
    sender.ask("put", "whole")
    receiver.ask("get")
    sender.ask("put", "large")
    sender.kill()
    name, _, pids = receiver.fail("get")
    assert name == "PeerDied" and pids == (sender.pid,)
    receiver.ask("drop")
    receiver.end()
    assert receiver.has_ended()


def test_sender_regains_memory_of_a_killed_receiver(two: Two) -> None:
    sender, receiver = two
    sender.ask("put", "large")
    receiver.ask("get")
    receiver.kill()
    sender.ask("wait")
    assert sender.ask("lent") == 0


def test_exiting_sender_waits_for_its_receivers(two: Two) -> None:
    sender, receiver = two
    sender.ask("put", "whole")
    receiver.ask("get")
    sender.end()
    sender.process.join(0.3)
    assert sender.process.is_alive() and receiver.ask("describe_received")[-1] == WHOLE
    receiver.ask("drop")
    assert sender.has_ended()


def test_exiting_receiver_releases_its_tensor(two: Two) -> None:
    sender, receiver = two
    sender.ask("put", "whole")
    receiver.ask("get")
    receiver.end()
    assert receiver.has_ended()
    sender.ask("wait")
