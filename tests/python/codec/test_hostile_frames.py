"""Frames from a hostile writer, which may write during the read, are read or refused at bounded cost."""

from __future__ import annotations

import collections
import contextlib
import mmap
import random
import time
import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest
from test_pack_fuzz import survive, tree_with_builders, tree_with_classes, tree_with_everything

import shmtree

WORD = 2**64
REFUSED = (shmtree.CorruptMessage, shmtree.PickleRefused, MemoryError)


def metadata_of(frame: bytes | bytearray) -> int:
    return 16 + int.from_bytes(frame[4:8], "little")


def hurtful(before: int, generator: random.Random) -> list[int]:
    changes = [0, WORD - 1, before + 1, before - 1, ~before, before << 8, before >> 8, before ^ 1 << 63]
    return [value % WORD for value in [*changes, 1 << 40, generator.getrandbits(64)]]


@pytest.mark.guarantee("damaged-frame")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [tree_with_everything, tree_with_classes, tree_with_builders])
def test_every_changed_metadata_word_is_read_or_refused(make: Any) -> None:
    generator = random.Random(20261121)
    frame = bytearray(shmtree.pack(make()))
    for at in range(0, metadata_of(frame), 8):
        original = frame[at : at + 8]
        for value in hurtful(int.from_bytes(original, "little"), generator):
            frame[at : at + 8] = value.to_bytes(8, "little")
            survive(frame)
        frame[at : at + 8] = original


def flip(memory: mmap.mmap, size: int, seed: int) -> None:
    """Overwrites metadata forever, one word at a time, and restores it."""
    generator = random.Random(seed)
    while True:
        at = generator.randrange(0, size, 8)
        original = memory[at : at + 8]
        memory[at : at + 8] = hurtful(int.from_bytes(original, "little"), generator)[generator.randrange(10)].to_bytes(
            8, "little"
        )
        memory[at : at + 8] = original


@pytest.mark.guarantee("changing-frame")
@pytest.mark.filterwarnings("ignore")
def test_frame_changed_during_the_read_is_read_or_refused(start: Any) -> None:
    frame = bytes(shmtree.pack(tree_with_everything()))
    memory = mmap.mmap(-1, len(frame))
    memory[:] = frame
    start(flip, memory, metadata_of(frame), 7)
    read = refused = 0
    end = time.monotonic() + 60  # limit in case the writer gets no processor time
    while (read < 100 or refused < 20) and time.monotonic() < end:
        try:
            shmtree.unpack(memory, copy=True)
            read += 1
        except REFUSED:
            refused += 1
    assert read and refused


def fill(make: Any) -> bytes:
    """Returns the longest frame of at most 1 KiB with repetitions of a value."""
    count = 1
    while len(bytes(shmtree.pack(make(count + 1), allow_pickle=False))) <= 1024:
        count += 1
    return bytes(shmtree.pack(make(count), allow_pickle=False))


RECORD = np.dtype([(f"field{i}", "<i4") for i in range(20)])
COSTLY = {
    "lists": lambda count: [[] for _ in range(count)],
    "dicts": lambda count: [{} for _ in range(count)],
    "ordered dicts": lambda count: [collections.OrderedDict() for _ in range(count)],
    "default dicts": lambda count: [collections.defaultdict(list) for _ in range(count)],
    "counters": lambda count: [collections.Counter() for _ in range(count)],
    "deques": lambda count: [collections.deque() for _ in range(count)],
    "sets": lambda count: [set() for _ in range(count)],
    "big ints": lambda count: [1 << 1000 for _ in range(count)],
    "dtypes": lambda count: [RECORD, np.dtype("i4")] * count,
    "records": lambda count: [np.empty(0, RECORD) for _ in range(count)],
    "arrays of many dimensions": lambda count: [np.empty((0,) * 32) for _ in range(count)],
    "masked arrays": lambda count: [np.ma.array([]) for _ in range(count)],
    "memoryviews": lambda count: [memoryview(b"x") for _ in range(count)],
}


def cost_of(frame: bytes) -> tuple[int, float]:
    """Returns the peak bytes and the CPU seconds of reading a frame: the minimum of a few runs."""
    seconds = []
    for _ in range(5):
        began = time.thread_time()
        read(frame)
        seconds.append(time.thread_time() - began)
    tracemalloc.start()
    read(frame)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak, min(seconds)


def read(frame: bytes) -> None:
    with contextlib.suppress(REFUSED):
        shmtree.unpack(frame, copy=True)


@pytest.mark.guarantee("small-frame-cost")
@pytest.mark.parametrize("kind", COSTLY)
def test_frame_of_1_kib_allocates_at_most_1_mib(kind: str) -> None:
    peak, seconds = cost_of(fill(COSTLY[kind]))
    assert peak < 1 << 20
    assert seconds < 0.01  # CPU time of this thread, not wall time


@pytest.mark.guarantee("small-frame-cost")
def test_damaged_frame_of_1_kib_allocates_at_most_1_mib() -> None:
    generator = random.Random(11)
    frame = bytearray(shmtree.pack({"list": [1, 2.5, "text"], "array": np.arange(40.0), "set": {1}, "time": None}))
    assert len(frame) <= 1024
    worst = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tracemalloc.start()
        for at in range(0, metadata_of(frame), 8):
            original = frame[at : at + 8]
            for value in hurtful(int.from_bytes(original, "little"), generator):
                frame[at : at + 8] = value.to_bytes(8, "little")
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                read(bytes(frame))
                worst = max(worst, tracemalloc.get_traced_memory()[1] - before)
            frame[at : at + 8] = original
        tracemalloc.stop()
    assert worst < 1 << 20
