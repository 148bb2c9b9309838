"""Device memory from process to process: which process keeps it, for how long, and the errors if that is not possible.

Uses real processes. Each test runs twice: on a fake driver (fake_cuda.c), and on the real one, which is skipped without
a GPU. Tests that read the log of the fake driver run on that one only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_processes import ON_THE_FAKE, Log, Process, Spawn, has_driver

import shmtree
from shmtree._torch import leaves
from shmtree.cuda import _received

Values = np.ndarray[Any, Any]


@pytest.fixture
def two(spawn: Spawn, arena: shmtree.Arena) -> tuple[Process, Process]:
    sender, receiver = arena.create_pair(allow_pickle=False)
    return spawn(sender), spawn(receiver)


VALUES = np.arange(24, dtype="float32").reshape(4, 6)


def test_received_array_is_the_senders_memory(two: tuple[Process, Process]) -> None:
    sender, receiver = two
    sender.ask("put", VALUES)
    kind, got = receiver.ask("get")
    assert kind == "DeviceArray" and got.dtype == VALUES.dtype and np.array_equal(got, VALUES)

    sender.ask("write", VALUES + 1)
    assert np.array_equal(receiver.ask("read"), VALUES + 1)
    receiver.ask("write_received", VALUES - 1)
    assert np.array_equal(sender.ask("read_made"), VALUES - 1)


def test_each_of_many_messages_has_the_values_at_its_put(two: tuple[Process, Process]) -> None:
    sender, receiver = two
    sender.ask("put", VALUES)
    assert np.array_equal(receiver.ask("get")[1], VALUES)
    for number in range(1, 6):  # from the second message on, events and handles are reused
        receiver.ask("drop")
        sender.ask("wait")
        sender.ask("write", VALUES + number)
        sender.ask("put_again")
        assert np.array_equal(receiver.ask("get")[1], VALUES + number)


def test_sender_retains_memory_until_the_receiver_drops_it(two: tuple[Process, Process]) -> None:
    sender, receiver = two
    sender.ask("put", VALUES)
    assert sender.ask("lent") == 1  # by the queue
    receiver.ask("get")
    assert sender.ask("lent") == 1  # by the receiver
    name, text, _ = sender.fail("wait_no_time")
    assert name == "TimeoutError" and "1 tensors" in text

    receiver.ask("drop")
    sender.ask("wait")

    assert sender.ask("lent") == 0 and receiver.ask("opened") == 0


@ON_THE_FAKE
def test_drop_closes_the_allocation(two: tuple[Process, Process], driver_log: Log) -> None:
    sender, receiver = two
    sender.ask("put", VALUES)
    receiver.ask("get")
    receiver.ask("drop")
    sender.ask("wait")
    assert [line.split()[0] for line in driver_log(receiver)].count("close") == 1


def test_copied_message_still_references_device_memory(two: tuple[Process, Process]) -> None:
    sender, receiver = two
    sender.ask("put", VALUES)
    assert np.array_equal(receiver.ask("get_copied"), VALUES)
    assert sender.ask("lent") == 1
    receiver.ask("drop")
    sender.ask("wait")


def test_allocation_is_opened_once_and_closed_by_its_last_user(two: tuple[Process, Process]) -> None:
    sender, receiver = two
    sender.ask("put", VALUES)
    sender.ask("put_again")
    receiver.ask("get")
    receiver.ask("get")
    assert receiver.ask("opened") == 1
    receiver.ask("drop")
    assert receiver.ask("opened") == 1 and np.array_equal(receiver.ask("read"), VALUES)
    receiver.ask("drop")
    assert receiver.ask("opened") == 0
    sender.ask("wait")


@pytest.mark.parametrize(
    "values", [VALUES[:, ::2], VALUES.T, VALUES[1:3, 2:4], np.float64(3.5).reshape(()), np.zeros(0, "int16")], ids=str
)
def test_shapes_and_strides_are_preserved(two: tuple[Process, Process], values: Values) -> None:
    sender, receiver = two
    sender.ask("put", values)
    kind, got = receiver.ask("get")
    assert kind == "DeviceArray" and got.dtype == values.dtype
    assert got.shape == values.shape and np.array_equal(got, values)
    assert receiver.ask("strides") == np.copy(values, order="K").strides or values.size == 0


@ON_THE_FAKE
def test_stream_of_the_receiver_waits_for_that_of_the_sender(two: tuple[Process, Process], driver_log: Log) -> None:
    sender, receiver = two
    sender.ask("put", VALUES, 7)
    receiver.ask("get")
    recorded = [line.split() for line in driver_log(sender) if line.startswith("record")]
    waited = [line.split() for line in driver_log(receiver) if line.startswith("wait")]
    assert [line[2:] for line in recorded] == [["in", "7"]]
    assert [line[1:] for line in waited] == [["in", "0", "for", recorded[0][1]]]
    assert not [line for line in driver_log(sender) + driver_log(receiver) if line.startswith("synchronize")]


@ON_THE_FAKE
def test_memory_is_released_when_the_device_is_done(two: tuple[Process, Process]) -> None:
    sender, receiver = two
    sender.ask("put", VALUES)
    receiver.ask("get")
    receiver.ask("keep_busy", True)
    receiver.ask("drop")
    assert receiver.ask("settle") == 1 and receiver.ask("opened") == 1 and sender.ask("lent") == 1
    receiver.ask("keep_busy", False)
    assert receiver.ask("settle") == 0 and receiver.ask("opened") == 0
    sender.ask("wait")


def test_memory_outlives_the_first_of_two_receivers_to_drop_it(spawn: Spawn, arena: shmtree.Arena) -> None:
    end, receiver = arena.create_pair()
    receivers = [spawn(shmtree.Receiver._of(receiver._channel)), spawn(receiver)]
    sender = spawn(end)
    sender.ask("put", VALUES)
    sender.ask("put_again")
    for each in receivers:
        each.ask("get")
    receivers[0].ask("drop")
    assert np.array_equal(receivers[1].ask("read"), VALUES) and sender.ask("lent") >= 1
    receivers[1].ask("drop")
    sender.ask("wait")


def test_memory_of_a_killed_receiver_is_released(two: tuple[Process, Process]) -> None:
    sender, receiver = two
    sender.ask("put", VALUES)
    receiver.ask("get")
    assert sender.ask("lent") == 1
    receiver.kill()
    sender.ask("wait")
    assert sender.ask("lent") == 0


def test_exiting_sender_waits_for_users_of_its_memory(two: tuple[Process, Process]) -> None:
    sender, receiver = two
    sender.ask("put", VALUES)
    receiver.ask("get")
    sender.end()
    sender.process.join(0.3)
    assert sender.process.is_alive()
    assert np.array_equal(receiver.ask("read"), VALUES)
    receiver.ask("drop")
    assert sender.has_ended()


def test_exit_timeout_bounds_the_wait_of_a_sender(two: tuple[Process, Process]) -> None:
    sender, receiver = two
    sender.ask("exit_timeout", 0)
    sender.ask("put", VALUES)
    receiver.ask("get")
    sender.end()
    assert sender.has_ended()


def test_exit_does_not_wait_without_other_processes(spawn: Spawn) -> None:
    process = spawn(shmtree.create_pair()[0])
    process.ask("exit_timeout", 1000)
    process.ask("put_to_itself", VALUES)
    process.end()
    assert process.has_ended()


def test_get_raises_peer_died_after_the_sender_was_killed(two: tuple[Process, Process]) -> None:
    sender, receiver = two
    sender.ask("put", VALUES)
    sender.kill()
    name, text, pids = receiver.fail("get")
    assert name == "PeerDied" and pids == (sender.pid,) and "the memory was freed" in text
    assert receiver.ask("opened") == 0


def test_get_raises_peer_died_for_already_opened_memory(two: tuple[Process, Process]) -> None:
    sender, receiver = two
    sender.ask("put", VALUES)
    sender.ask("put_again")
    receiver.ask("get")
    sender.kill()
    assert receiver.fail("get")[0] == "PeerDied"


@ON_THE_FAKE
def test_device_is_found_by_uuid_not_by_number(spawn: Spawn, arena: shmtree.Arena, driver_log: Log) -> None:
    end, other = arena.create_pair()
    sender, receiver = spawn(end, "ab"), spawn(other, "ba")
    sender.ask("put", VALUES)
    assert np.array_equal(receiver.ask("get")[1], VALUES)
    assert next(line for line in driver_log(receiver) if line.startswith("open")).endswith("on a")


@ON_THE_FAKE
def test_get_without_the_device_raises_device_error(spawn: Spawn, arena: shmtree.Arena) -> None:
    end, other = arena.create_pair()
    sender, receiver = spawn(end, "a"), spawn(other, "bc")
    sender.ask("put", VALUES)
    name, text, _ = receiver.fail("get")
    assert name == "DeviceError" and "CUDA_VISIBLE_DEVICES" in text
    assert "GPU-61616161-6161" in text and "GPU-62626262-6262" in text
    sender.ask("wait")


@ON_THE_FAKE
@pytest.mark.skipif(has_driver(), reason="this machine has a CUDA driver")
def test_get_without_a_cuda_driver_raises_device_error(
    spawn: Spawn, arena: shmtree.Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, other = arena.create_pair()
    sender = spawn(end)
    monkeypatch.delenv("LD_LIBRARY_PATH")
    receiver = spawn(other)
    sender.ask("put", VALUES)
    name, text, _ = receiver.fail("get")
    assert name == "DeviceError" and "no CUDA driver" in text
    sender.ask("wait")


def test_process_receives_its_own_memory_as_the_same_object(spawn: Spawn) -> None:
    process = spawn(shmtree.create_pair()[0])
    assert process.ask("through_itself", VALUES) is True
    assert process.ask("lent") == 0 and process.ask("opened") == 0


@ON_THE_FAKE
def test_receiving_ones_own_memory_waits_for_its_event(spawn: Spawn, driver_log: Log) -> None:
    process = spawn(shmtree.create_pair()[0])
    process.ask("through_itself", VALUES)
    recorded = next(line.split() for line in driver_log(process) if line.startswith("record"))
    assert f"wait in 0 for {recorded[1]}" in driver_log(process)


def test_message_that_needs_pickle_shares_device_memory_too(spawn: Spawn, arena: shmtree.Arena) -> None:
    end, other = arena.create_pair()
    sender, receiver = spawn(end), spawn(other)
    sender.ask("put", VALUES)
    receiver.ask("get")
    sender.ask("put_with_unnative")
    assert receiver.ask("get")[0] == "DeviceArray"
    receiver.ask("drop")
    assert sender.ask("lent") == 1
    receiver.ask("drop")
    sender.ask("wait")


def test_queue_returns_device_values_to_their_own_process(spawn: Spawn, arena: shmtree.Arena) -> None:
    queue = arena.Queue()
    one = spawn(queue)
    one.ask("put", VALUES)
    assert one.ask("get")[0] == "DeviceValues"


def test_failed_put_retains_no_memory(spawn: Spawn, arena: shmtree.Arena) -> None:
    end, receiver = arena.create_pair(capacity=1)
    sender = spawn(end)
    sender.ask("put", VALUES)
    assert sender.fail("put_again", 0)[0] == "Full"
    assert sender.ask("lent") == 1
    receiver.close()


def test_put_of_memory_without_a_handle_names_the_setting(spawn: Spawn, arena: shmtree.Arena) -> None:
    end, receiver = arena.create_pair()
    sender = spawn(end)
    name, text, _ = sender.fail("put", VALUES, 1, False)
    assert name == "DeviceError" and "expandable_segments" in text and "CUDA_ERROR_INVALID_VALUE" in text
    assert receiver.empty() and sender.ask("lent") == 0


def test_put_of_received_memory_raises_device_error(two: tuple[Process, Process]) -> None:
    sender, receiver = two
    sender.ask("put", VALUES)
    receiver.ask("get")
    name, text, _ = receiver.fail("put_received")
    assert name == "DeviceError" and "clone()" in text


def test_put_in_a_forked_process_recommends_spawn(two: tuple[Process, Process]) -> None:
    sender, receiver = two
    sender.ask("put", VALUES)
    assert "spawn" in sender.ask("put_forked")
    receiver.ask("get")
    receiver.ask("drop")
    sender.ask("wait")  # the forked child had a reference to the token too


# --- what a message says --------------------------------------------------------------------------------------------

SENDER = (b"u" * 16, 5, 1025, 77)
LOCATION = (b"d" * 16, b"h" * 64, 0, 4096, b"e" * 64)
ABOUT = ("array", "<f4", 0, (4,), None, False)


@pytest.mark.parametrize(
    "flat",
    [
        (),
        None,
        (ABOUT, SENDER),
        (ABOUT, SENDER[:3], LOCATION, 0),
        (ABOUT, (b"short", *SENDER[1:]), LOCATION, 0),
        (ABOUT, SENDER, (*LOCATION[:2], -1, 4096, LOCATION[4]), 0),
        (ABOUT, SENDER, (LOCATION[0], b"h" * 63, *LOCATION[2:]), 0),
        (ABOUT, SENDER, LOCATION, 0),  # no arena with this identity
        (("thing",),),
        ((1,),),
        (ABOUT,),  # four elements without memory
        (("array", "O", 0, (0,), None, False),),
        (("torch", "nothing", 0, (0,), (1,), False, False),),
    ],
)
def test_forged_message_is_corrupt(flat: Any) -> None:
    if flat and flat[0][0] == "torch":
        pytest.importorskip("torch")
    with pytest.raises(shmtree.CorruptMessage):
        leaves.receive_device(flat, True)


class Bytes:
    """Host memory in place of device memory."""

    device = 0

    def __init__(self, array: Values) -> None:
        self.array = array
        self.nbytes = array.nbytes


def test_tensor_is_rebuilt_as_it_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from shmtree.cuda import _sent

    memory = np.arange(64, dtype=np.uint8)
    whole = torch.from_numpy(memory).view(torch.bfloat16).reshape(4, 8)
    monkeypatch.setattr(_received, "as_bytes", lambda torch, memory: torch.from_numpy(memory.array))

    source = _sent.source_of_storage(whole[1:, ::2], 0, True, False)
    made = _received.build(source.about, Bytes(memory))

    assert source.pointer == memory.ctypes.data and source.nbytes == 64
    assert made.dtype is torch.bfloat16 and made.requires_grad and type(made) is torch.Tensor
    assert made.stride() == (8, 2) and made.storage_offset() == 8
    assert torch.equal(made, whole[1:, ::2]) and made.data_ptr() == whole[1].data_ptr()
    parameter = _received.build((*source.about[:5], False, True), Bytes(memory))
    assert type(parameter) is torch.nn.Parameter and not parameter.requires_grad
    with pytest.raises(shmtree.CorruptMessage, match="outside"):
        _received.build(source.about, Bytes(memory[:32]))
