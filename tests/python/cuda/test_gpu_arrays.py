"""Arrays of CuPy and Numba on a real device from process to process, with and without torch on the other side."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import gpu_array_peers
import numpy as np
import pytest
from cuda_processes import Process, gpus

import shmtree

pytestmark = pytest.mark.skipif(gpus() == 0, reason="no GPU")

VALUES = np.arange(24, dtype="float32").reshape(4, 6)


@pytest.fixture(params=["cupy", "numba"])
def library(request: pytest.FixtureRequest) -> str:
    # Do not import it: only the child processes do.
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return str(request.param)


StartPeer = Callable[[Any], Process]


@pytest.fixture
def start_peer(library: str) -> Iterator[StartPeer]:
    processes: list[Process] = []

    def run(end: Any) -> Process:
        processes.append(Process(end, peer=gpu_array_peers.Peer))
        processes[-1].ask("use", library)
        return processes[-1]

    yield run
    for process in processes:
        process.kill()


@pytest.fixture
def two(start_peer: StartPeer, arena: shmtree.Arena) -> tuple[Process, Process]:
    sender, receiver = arena.create_pair(allow_pickle=False)
    return start_peer(sender), start_peer(receiver)


Two = tuple[Process, Process]


def test_received_array_is_the_senders_memory(two: Two) -> None:
    sender, receiver = two
    sender.ask("put", VALUES)
    assert receiver.ask("get") == "DeviceArray"
    assert np.array_equal(receiver.ask("received"), VALUES)
    receiver.ask("write_received", 7)
    assert np.array_equal(sender.ask("values"), np.full((4, 6), 7))
    receiver.ask("drop")
    sender.ask("wait")


def test_slice_of_an_array_arrives_as_that_slice(two: Two) -> None:
    sender, receiver = two
    sender.ask("put_part", VALUES)
    receiver.ask("get")
    assert np.array_equal(receiver.ask("received"), VALUES[1:, ::2])


def test_small_arrays_in_one_driver_unit_arrive_separately(two: Two) -> None:
    """The driver exports memory in units of 2 MiB, which may contain several arrays."""
    sender, receiver = two
    sender.ask("put_several", VALUES, 3)
    for number, values in enumerate(receiver.ask("get_several")):
        assert np.array_equal(values, VALUES + number)
    receiver.ask("drop")
    sender.ask("wait")


def test_receiver_reads_after_work_in_the_senders_stream(two: Two) -> None:
    sender, receiver = two
    large = np.arange(4_000_000.0)
    sender.ask("put", large, True)
    receiver.ask("get")
    assert np.array_equal(receiver.ask("received"), large)


def test_receiver_with_torch_gets_a_tensor(two: Two) -> None:
    torch = pytest.importorskip("torch")
    if not torch.backends.cuda.is_built():
        pytest.skip("no GPU for torch")
    sender, receiver = two
    sender.ask("put", VALUES)
    assert np.array_equal(receiver.ask("get_as_tensor"), VALUES)


def test_process_receives_its_own_array_as_the_same_object(start_peer: StartPeer) -> None:
    process = start_peer(shmtree.create_pair()[0])
    assert process.ask("through_itself", VALUES) is True
