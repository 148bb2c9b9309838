"""put_frame() with frames of pack(): the value arrives without being traversed a second time."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import pathlib
from typing import Any

import numpy as np
import pytest
from exact import assert_same

import shmtree

VALUES = {
    "small": {"id": 7, "text": "x"},
    "large": {"image": np.arange(100_000).reshape(100, 1000), "more": [np.ones(5000), "y" * 10_000]},
    "a str": "z" * 50_000,
    "none": None,
}


class Pickled:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pickled)

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.guarantee("put-frame")
@pytest.mark.parametrize("name", VALUES)
def test_put_of_a_frame_delivers_its_value(name: str) -> None:
    frame = shmtree.pack(VALUES[name])
    sender, receiver = shmtree.create_pair()
    assert [sender.put(frame), sender.put(frame), sender.put_nowait(frame)] == [0, 1, 2]
    for _ in range(3):
        assert_same(receiver.get(), VALUES[name])
    queue = shmtree.Queue()
    assert queue.put(frame) is None
    assert_same(queue.get(), VALUES[name])


@pytest.mark.guarantee("put-frame")
def test_each_receiver_gets_its_own_arrays() -> None:
    frame = shmtree.pack(np.zeros(10_000))
    arena = shmtree.Arena(16 << 20)
    pairs = [arena.create_pair() for _ in range(2)]
    for sender, _ in pairs:
        sender.put(frame)
    first, second = (receiver.get() for _, receiver in pairs)
    first[0] = 1
    assert second[0] == 0 and shmtree.unpack(frame)[0] == 0


@pytest.mark.guarantee("put-frame")
def test_put_many_mixes_frames_and_objects_in_order() -> None:
    sender, receiver = shmtree.create_pair(None)
    items = [
        value for pair in ((i, shmtree.pack({"i": i, "a": np.full(i * 100, i)})) for i in range(60)) for value in pair
    ]
    assert sender.put_many(items) == 120
    for i in range(60):
        assert receiver.get() == i
        assert_same(receiver.get(), {"i": i, "a": np.full(i * 100, i)})


@pytest.mark.guarantee("put-frame")
def test_put_of_a_frame_with_a_pickle_needs_allow_pickle() -> None:
    frame = shmtree.pack([Pickled()])
    sender, receiver = shmtree.create_pair(allow_pickle=True)
    sender.put(frame)
    assert receiver.get() == [Pickled()]
    refusing, empty = shmtree.create_pair(allow_pickle=False)
    with pytest.raises(shmtree.PickleRefused, match="frame"):
        refusing.put(frame)
    with pytest.raises(shmtree.PickleRefused) as caught:
        refusing.put_many([1, frame])
    assert caught.value.sent == 1 and empty.get() == 1  # type: ignore[attr-defined]
    assert empty.empty()
    refusing.put(shmtree.pack([1]))
    assert empty.get() == [1]


def test_put_of_a_frame_raises_the_errors_of_an_object() -> None:
    import queue

    arena = shmtree.Arena(2 << 20)
    sender, receiver = arena.create_pair(1)
    with pytest.raises(shmtree.MessageTooLarge):
        sender.put(shmtree.pack(np.zeros(1 << 20)))
    frame: Any = shmtree.pack(np.zeros(10_000))
    sender.put(frame)
    with pytest.raises(queue.Full):
        sender.put(frame, timeout=0)
    receiver.get()
    sender.put(frame)
    sender.close()
    with pytest.raises(shmtree.ChannelClosed):
        sender.put(frame)


# --- frames that no receiver would take -------------------------------------------------------------------------------


def altered(value: object, before: bytes, after: bytes) -> bytes:
    frame = bytes(shmtree.pack(value))
    assert frame.count(before) >= 1 and len(before) == len(after)
    return frame.replace(before, after)


def day(year: int, month: int, day: int) -> bytes:
    return (year << 9 | month << 5 | day).to_bytes(8, "little")


class Mark(enum.Enum):
    A = 1


NOW = dt.datetime(2024, 2, 29, 12)
UNSOUND = {
    "text": altered(["marker"], b"marker", b"mar\xffer"),
    "long text": altered(["m" * 5000], b"mmmmmmmm", b"mm\xffmmmmm"),
    "key": altered({"marker": 1}, b"marker", b"mar\xffer"),
    "decimal": altered(decimal.Decimal("123456"), b"123456", b"12\xff456"),
    "29 February": altered(NOW, day(2024, 2, 29), day(2023, 2, 29)),
    "month 13": altered(dt.date(2024, 2, 3), day(2024, 2, 3), day(2024, 13, 3)),
    "year 0": altered(dt.date(2024, 2, 3), day(2024, 2, 3), day(0, 2, 3)),
    "late time": altered(dt.time(1), (3_600_000_000).to_bytes(8, "little"), (86_400_000_000).to_bytes(8, "little")),
    "step 0": altered(range(5, 77, 9), (9).to_bytes(8, "little"), (0).to_bytes(8, "little")),
    "timedelta": altered(dt.timedelta(77), (77).to_bytes(8, "little"), (10**9).to_bytes(8, "little")),
    "class": altered(Mark.A, b"test_put_frames:Mark", b"test_put_frames.Mark"),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_put_frame_refuses_what_receivers_refuse(name: str) -> None:
    sender, _receiver = shmtree.create_pair()
    with pytest.raises(shmtree.CorruptMessage):
        shmtree.unpack(UNSOUND[name])
    with pytest.raises(shmtree.CorruptMessage):
        sender.put_frame(UNSOUND[name])


@pytest.mark.parametrize("value", [pathlib.PurePosixPath("x"), NOW, NOW.time(), dt.timezone(dt.timedelta(hours=1))])
def test_put_frame_refuses_unknown_flags(value: object) -> None:
    """Sets every metadata byte to every small number: a frame that put_frame() accepts can be received."""
    sender, receiver = shmtree.create_pair(capacity=1)
    frame = bytearray(shmtree.pack(value))
    for position in range(96, len(frame)):
        for flags in range(8):
            changed = frame[:]
            changed[position] = flags
            try:
                sender.put_frame(changed)
            except shmtree.CorruptMessage:
                continue
            receiver.get()


def test_put_frame_accepts_lone_surrogates_and_extreme_dates() -> None:
    sender, receiver = shmtree.create_pair()
    values = ["\ud800", "x" * 5000 + "\udfff", dt.date(2000, 2, 29), dt.date.max, dt.date.min, dt.datetime.max, NOW]
    for value in values:
        sender.put_frame(bytes(shmtree.pack(value)))
        assert receiver.get() == value
