"""Raw frames: messages that are taken and put without decoding, pickled out of band, and portable."""

from __future__ import annotations

import collections
import copy
import dataclasses
import os
import pickle
import queue
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exact import assert_same
from hypothesis import given
from test_pack_fuzz import relaxed, trees
from test_types import CONTAINERS, SCALARS, STANDARD, cases

import shmtree


@dataclasses.dataclass
class Sample:
    obs: Any
    reward: float


class Pickled:
    def __init__(self, inside: Any = None) -> None:
        self.inside = inside

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pickled) and self.inside == other.inside

    __hash__ = None  # type: ignore[assignment]


ARRAYS = [
    np.arange(10_000).reshape(100, 100),
    np.asfortranarray(np.arange(10_000.0).reshape(100, 100)),
    np.arange(20_000, dtype=">i4")[::-2],
    np.zeros((0, 3)),
    np.array(7.5),
    np.ma.masked_array(np.arange(5000), np.arange(5000) % 2 == 0),
    np.arange(20_000, dtype=np.uint8)[3:],
]
OTHERS = [
    Sample(np.arange(3000), 0.5),
    "y" * 50_000,
    b"z" * 50_000,
    collections.OrderedDict(a=np.arange(5000), b=[1.5] * 100),
    [Pickled([1, 2])],
]


def frame_of(arena: shmtree.Arena, value: Any) -> shmtree.Frame:
    """Sends a value, and returns it as the frame that a receiver takes. Acknowledges it."""
    sender, receiver = arena.create_pair()
    sender.put(value)
    (frame,) = receiver.take_frames(8)
    frame.ack()
    return frame


def forwarded(arena: shmtree.Arena, value: Any) -> Any:
    """Sends a value, puts its frame into another channel as bytes at another address, and returns what arrives."""
    frame = frame_of(arena, value)
    sender, receiver = arena.create_pair()
    unaligned = memoryview(b"x" + bytes(frame))[1:]
    sender.put_frame(frame if not frame.portable else unaligned)
    return receiver.get()


EACH_VALUE = pytest.mark.parametrize("value", cases(SCALARS, CONTAINERS, STANDARD, {"array": ARRAYS, "other": OTHERS}))


@EACH_VALUE
def test_values_of_every_kind_survive_frames(arena: shmtree.Arena, value: object) -> None:
    assert_same(shmtree.unpack(frame_of(arena, value)), value)
    assert_same(forwarded(arena, value), value)


@pytest.mark.parametrize("size", [0, 1, 100, 5_000, 200_000])
def test_bytes_are_sent_without_metadata(arena: shmtree.Arena, size: int) -> None:
    value = os.urandom(size)
    frame = frame_of(arena, value)
    assert frame.nbytes - size in (16, 64) and bytes(frame)[frame.nbytes - size :] == value
    assert shmtree.unpack(frame) == value == forwarded(arena, value)
    sender, receiver = arena.create_pair()
    assert sender.put_many([value, [value], value]) == 3
    assert receiver.get_many(3) == [value, [value], value]


@EACH_VALUE
def test_values_of_every_kind_are_items_of_a_shared_list(tmp_path: Path, value: object) -> None:
    shared = shmtree.SharedList(["before", value, "after"])
    shared.dump(tmp_path / "list.smt")
    for items in (shared, shmtree.SharedList.load(tmp_path / "list.smt", allow_pickle=True)):
        assert_same(items[1], value)
        assert items[0] == "before" and items[2] == "after"


@relaxed
@given(trees)
def test_any_tree_survives_frames(value: Any) -> None:
    sender, receiver = shmtree.create_pair()
    sender.put(value)
    with receiver.take_frames(1)[0] as frame:
        sender.put_frame(bytes(frame))
    assert_same(receiver.get(), value)


# --- what is in it ----------------------------------------------------------------------------------------------------


def test_large_frame_shares_the_memory_of_its_message(arena: shmtree.Arena) -> None:
    sender, receiver = arena.create_pair()
    sender.put(np.arange(1_000_000))
    (frame,) = receiver.take_frames(1)
    held = arena.stats()["held_bytes"]
    array = shmtree.unpack(frame)
    assert arena.stats()["held_bytes"] == held and not array.flags.owndata and array.ctypes.data % 64 == 0
    assert not array.flags.writeable and memoryview(frame).readonly
    frame.ack()
    del frame
    assert np.array_equal(array, np.arange(1_000_000))


def test_arrays_sent_by_reference_are_part_of_the_frame(arena: shmtree.Arena) -> None:
    sender, receiver = arena.create_pair()
    first, second = sender.new_empty(50_000, "int32"), sender.new_empty((300, 300), order="F")
    first[:], second[:] = np.arange(50_000), np.arange(90_000).reshape(300, 300)
    sender.put({"a": first, "between": np.arange(5000), "b": [second]})
    (frame,) = receiver.take_frames(1)
    frame.ack()
    assert len(frame) > 50_000 * 4 + 90_000 * 8
    loaded = shmtree.unpack(bytes(frame))
    assert np.array_equal(loaded["a"], np.arange(50_000)) and np.array_equal(loaded["between"], np.arange(5000))
    assert np.array_equal(loaded["b"][0], np.arange(90_000).reshape(300, 300)) and loaded["b"][0].flags.f_contiguous
    assert loaded["a"].ctypes.data % 4 == 0


def test_overlapping_received_views_overlap_in_the_frame(arena: shmtree.Arena) -> None:
    sender, receiver = arena.create_pair()
    sender.put(np.arange(100_000.0))
    whole = receiver.get(copy=False)
    parts = {"low": whole[10:60_000], "high": whole[50_001:], "odd": whole.view(np.uint8)[100:4000]}
    expected = {name: part.copy() for name, part in parts.items()}
    sender.put(parts, move=True)
    (frame,) = receiver.take_frames(1)
    assert 100_000 * 8 - 100 < len(frame) < 100_000 * 8 + 1000
    loaded = shmtree.unpack(bytearray(frame), copy=False)
    for name, part in expected.items():
        assert np.array_equal(loaded[name], part)
    loaded["low"][-1] = -1
    assert loaded["high"][60_000 - 50_001 - 1] == -1
    assert loaded["low"].flags.aligned and loaded["high"].flags.aligned
    frame.ack()


def test_frame_is_a_sized_buffer(arena: shmtree.Arena) -> None:
    frame = frame_of(arena, {"x": 1})
    assert len(frame) == frame.nbytes == len(bytes(frame)) == memoryview(frame).nbytes
    assert bytes(frame) == bytes(shmtree.pack({"x": 1}))
    assert "Frame of" in repr(frame) and "settled" in repr(frame)
    assert shmtree.unpack(frame) == {"x": 1}


def test_take_frames_returns_each_kind_of_message_as_a_frame(arena: shmtree.Arena) -> None:
    sender, receiver = arena.create_pair(None)
    sender.put_many([b"x" * 100_000, shmtree.pack({"a": np.arange(50_000)}), 3])
    frames = receiver.take_frames(10)
    assert shmtree.unpack(frames[0]) == b"x" * 100_000 and shmtree.unpack(frames[2]) == 3
    assert np.array_equal(shmtree.unpack(frames[1])["a"], np.arange(50_000))
    assert [frame.ticket for frame in frames] == [0, 1, 2]


# --- acknowledged, or given back --------------------------------------------------------------------------------------


def test_frames_arrive_in_order_and_stay_pending_until_acked(arena: shmtree.Arena) -> None:
    sender, receiver = arena.create_pair(None)
    sender.put_many({"i": i, "pad": b"p" * (i % 700)} for i in range(1000))
    frames = receiver.take_frames(2000)
    assert [shmtree.unpack(frame)["i"] for frame in frames] == list(range(1000))
    assert sender.pending_acks == 1000 and receiver.stats()["taken"] == 1000
    for frame in frames[::2]:
        frame.ack()
    assert sender.pending_acks == 500
    del frames, frame
    assert receiver.qsize() == 500
    assert [receiver.get()["i"] for _ in range(500)] == list(range(1, 1000, 2))


def test_take_frames_returns_at_most_n(arena: shmtree.Arena) -> None:
    sender, receiver = arena.create_pair(None)
    sender.put_many(range(5))
    assert len(receiver.take_frames(2)) == 2  # the frames are returned to the channel
    assert [shmtree.unpack(frame) for frame in receiver.take_frames(3)] == [0, 1, 2]
    assert receiver.qsize() == 5


def test_frame_supports_ack_nack_and_requeue(arena: shmtree.Arena) -> None:
    sender, receiver = arena.create_pair()
    sender.put_many(["a", "b"])
    frame = receiver.take_frames(1)[0]
    assert (frame.ticket, frame.attempts, frame.redelivered, frame.settled) == (0, 1, False, False)
    frame.nack()
    again = receiver.take_frames(1)[0]
    assert (shmtree.unpack(again), again.attempts, again.redelivered) == ("a", 2, True)
    again.requeue()
    with receiver.take_frames(1)[0] as once:
        assert once.attempts == 1
    assert once.settled
    with pytest.raises(ValueError):
        once.ack()
    with pytest.raises(KeyError), receiver.take_frames(1)[0]:
        raise KeyError
    assert receiver.get() == "b"


def test_packed_frame_has_nothing_to_ack() -> None:
    frame = shmtree.pack(1)
    assert (frame.ticket, frame.attempts, frame.redelivered, frame.settled) == (None,) * 4
    with pytest.raises(ValueError, match="not taken"):
        frame.ack()
    with frame as same:
        assert same is frame


def test_take_frames_stops_at_max_unacked(arena: shmtree.Arena) -> None:
    sender, receiver = arena.create_pair(None, max_unacked=3)
    sender.put_many(range(10))
    frames = receiver.take_frames(10, timeout=30)
    assert len(frames) == 3
    with pytest.raises(queue.Empty, match="max_unacked"):
        receiver.take_frames(1, timeout=0)
    frames[0].ack()
    assert len(receiver.take_frames(10, timeout=30)) == 1


def test_frame_dropped_max_attempts_times_is_dead_lettered(arena: shmtree.Arena) -> None:
    sender, receiver = arena.create_pair(max_attempts=2)
    sender.put("poison")
    for _ in range(2):
        receiver.take_frames(1)
    assert [delivery.item for delivery in receiver.dead_letters()] == ["poison"]


def test_take_frames_waits_and_raises_like_take(arena: shmtree.Arena) -> None:
    sender, receiver = arena.create_pair()
    with pytest.raises(queue.Empty):
        receiver.take_frames(1, timeout=0.01)
    for wrong, error in ((0, ValueError), (-1, ValueError), (True, TypeError), ("1", TypeError)):
        with pytest.raises(error):
            receiver.take_frames(wrong)  # type: ignore[arg-type]
    sender.put(1)
    sender.close()
    assert [shmtree.unpack(frame) for frame in receiver.take_frames(4)] == [1]
    receiver.take_frames(4)[0].ack()
    with pytest.raises(shmtree.ChannelClosed):
        receiver.take_frames(4)
    receiver.close()
    with pytest.raises(shmtree.ChannelClosed):
        receiver.take_frames(4)


def test_queue_sends_and_takes_frames(arena: shmtree.Arena) -> None:
    ours = arena.JoinableQueue()
    ours.put_frame(shmtree.pack({"x": np.arange(5000)}))
    ours.put(2)
    first, second = ours.take_frames(5)
    assert np.array_equal(shmtree.unpack(first)["x"], np.arange(5000))
    first.ack()
    del second
    assert ours.get() == 2
    ours.task_done()
    ours.task_done()
    ours.join(30)


def hold_frames(receiver: shmtree.Receiver, told: Any) -> None:
    frames = receiver.take_frames(10, timeout=30)
    frames[0].ack()
    told.send(len(frames))
    told.recv()


def test_unacked_frames_of_a_killed_process_are_redelivered(arena: shmtree.Arena, start: Callable[..., Any]) -> None:
    import multiprocessing

    sender, receiver = arena.create_pair()
    sender.put_many([{"n": 0}, {"n": 1, "a": np.arange(50_000)}, {"n": 2}])
    ours, theirs = multiprocessing.Pipe()
    child = start(hold_frames, receiver, theirs)
    assert ours.recv() == 3
    os.kill(child.pid, signal.SIGKILL)
    child.join(30)
    frames = [receiver.take_frames(1, timeout=30)[0] for _ in range(2)]
    assert [shmtree.unpack(frame)["n"] for frame in frames] == [1, 2]
    assert all(frame.redelivered for frame in frames)
    assert np.array_equal(shmtree.unpack(frames[0])["a"], np.arange(50_000))
    for frame in frames:
        frame.ack()


# --- bytes from outside -----------------------------------------------------------------------------------------------


def test_bytes_that_are_no_frame_raise_with_the_reason(pair: tuple[shmtree.Sender, shmtree.Receiver]) -> None:
    sender, receiver = pair
    whole = bytes(shmtree.pack({"a": [1, 2.5], "b": np.arange(1000)}))
    for wrong, text in (
        (b"", "0 bytes"),
        (b"x" * 100, "SHMT"),
        (whole[:-1], "the buffer has"),
        (whole[:14] + b"\x09" + whole[15:], "version 9"),
        (whole[:15] + b"\x02" + whole[16:], "flags"),
    ):
        with pytest.raises(shmtree.CorruptMessage, match=text):
            sender.put_frame(wrong)
    kinds = whole.index(bytes([31, 20]))
    with pytest.raises(shmtree.CorruptMessage, match="node 2 of"):
        sender.put_frame(whole[: kinds + 1] + b"\xfe" + whole[kinds + 2 :])
    with pytest.raises(TypeError):
        sender.put_frame("text")  # type: ignore[arg-type]
    assert receiver.empty()


def test_bytes_after_a_frame_are_not_sent(pair: tuple[shmtree.Sender, shmtree.Receiver]) -> None:
    sender, receiver = pair
    sender.put_frame(bytes(shmtree.pack([1, 2])) + b"behind")
    assert len(receiver.take_frames(1)[0]) == len(shmtree.pack([1, 2]))


def test_damaged_frames_are_refused_or_readable(pair: tuple[shmtree.Sender, shmtree.Receiver]) -> None:
    sender, receiver = pair
    whole = bytes(shmtree.pack({"a": [1, (2.5, "x")], "b": np.arange(40), "c": b"y" * 5000}, allow_pickle=False))
    generator = np.random.default_rng(7)
    for _ in range(3000):
        damaged = bytearray(whole)
        for _ in range(generator.integers(1, 4)):
            damaged[generator.integers(0, 480)] = generator.integers(0, 256)
        try:
            sender.put_frame(damaged)
        except (ValueError, TypeError):
            continue
        try:
            receiver.get(timeout=30)
        except (shmtree.CorruptMessage, shmtree.PickleRefused):
            continue
    assert receiver.empty()
    sender.put(1)
    assert receiver.get() == 1


def test_frames_with_pickles_need_allow_pickle(arena: shmtree.Arena) -> None:
    frame = frame_of(arena, [Pickled()])
    assert shmtree.unpack(frame) == [Pickled()]  # the channel's senders may pickle
    refusing, _ = arena.create_pair(allow_pickle=False)
    for each in (frame, bytes(frame)):
        with pytest.raises(shmtree.PickleRefused):
            refusing.put_frame(each)
    with pytest.raises(shmtree.PickleRefused):
        shmtree.unpack(bytes(frame))


def test_frame_taken_without_allow_pickle_unpickles_nothing(arena: shmtree.Arena) -> None:
    sender, receiver = arena.create_pair()
    careful = shmtree.Receiver._of(receiver._channel, False)
    sender.put([Pickled()])
    (frame,) = careful.take_frames(1)
    for each in (frame, pickle.loads(pickle.dumps(frame))):
        with pytest.raises(shmtree.PickleRefused):
            shmtree.unpack(each)
    frame.ack()


# --- pickled ----------------------------------------------------------------------------------------------------------


def test_frame_is_pickled_out_of_band_without_a_copy(arena: shmtree.Arena) -> None:
    value = {"x": np.arange(100_000), "y": "z"}
    frame = frame_of(arena, value)
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps([frame, 1], protocol=5, buffer_callback=buffers.append)
    assert len(data) < 300 and len(buffers) == 1
    memory = bytearray(buffers[0].raw())
    loaded, _ = pickle.loads(data, buffers=[memory])
    assert isinstance(loaded, shmtree.Frame) and loaded.portable and loaded.settled is None
    array = shmtree.unpack(loaded)["x"]
    assert not array.flags.owndata and not array.flags.writeable
    memory[-8:] = (-1).to_bytes(8, "little", signed=True)
    assert array[-1] == -1


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_frame_is_pickled_in_band_too(protocol: int) -> None:
    frame = shmtree.pack([1, {"x": 2}])
    for loaded in (pickle.loads(pickle.dumps(frame, protocol=protocol)), copy.copy(frame), copy.deepcopy(frame)):
        assert isinstance(loaded, shmtree.Frame) and bytes(loaded) == bytes(frame)
        assert shmtree.unpack(loaded) == [1, {"x": 2}]


def test_pickled_frame_with_damaged_bytes_is_refused() -> None:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(shmtree.pack([1, 2]), protocol=5, buffer_callback=buffers.append)
    with pytest.raises(shmtree.CorruptMessage):
        pickle.loads(data, buffers=[b"nonsense" * 8])


def test_frame_within_a_message_arrives_as_a_frame(pair: tuple[shmtree.Sender, shmtree.Receiver]) -> None:
    sender, receiver = pair
    sender.put({"frame": shmtree.pack({"x": np.arange(50_000)})})
    frame = receiver.get()["frame"]
    assert isinstance(frame, shmtree.Frame) and np.array_equal(shmtree.unpack(frame)["x"], np.arange(50_000))
