"""zerochannel: a ring of entries of one size, without blocking calls.

Its writer overwrites entries that the reader has not read. So the reader shares its position, and the sender waits
while the ring is full.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zerochannel

from bench.competitors import Base
from bench.competitors.raw import codec

_PREFIX = f"shmtree-bench-{os.getpid()}-zerochannel"
_HEADER = 8  # length of the message, before it in the entry


class Competitor(Base):
    requires = ("zerochannel",)
    is_bounded = True
    _made = 0

    @classmethod
    def sweep(cls) -> None:
        for path in Path("/dev/shm").glob(f"{_PREFIX}*"):
            path.unlink(missing_ok=True)

    def __init__(self, capacity: int, nbytes: int, kind: type) -> None:
        Competitor._made += 1
        self.name = f"/{_PREFIX}_{Competitor._made}"
        self.capacity = capacity
        self.is_array = kind is np.ndarray and nbytes % 8 == 0
        self.read = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")  # [0]: last entry that was read
        self.encode, self.decode = codec(kind)
        if self.is_array:
            self.writer = zerochannel.Float64Writer(self.name, entry_length=nbytes // 8, entry_count=capacity + 1)
            return
        if kind is np.ndarray:
            self.encode = np.ndarray.tobytes  # the class for bytes accepts nothing else
        self.entry_bytes = (nbytes + (0 if kind is bytes else 1024) + _HEADER + 7) // 8 * 8  # pickles are longer
        self.writer = zerochannel.BytesWriter(self.name, entry_length=self.entry_bytes, entry_count=capacity + 1)

    def entry(self, message: Any) -> Any:
        if self.is_array:
            return message.view(np.float64)
        data = self.encode(message)
        return b"".join((len(data).to_bytes(_HEADER, "little"), data)).ljust(self.entry_bytes, b"\0")

    def message(self, entry: Any) -> Any:
        if self.is_array:
            return entry.view(np.float32)
        return self.decode(entry[_HEADER : _HEADER + int.from_bytes(entry[:_HEADER], "little")])

    def sender(self) -> Callable[[Any], Any]:
        writer, read, entry, capacity = self.writer, self.read, self.entry, self.capacity

        def put(message: Any) -> None:
            data = entry(message)
            while writer.last_entry_seq - read[0] >= capacity:
                pass
            writer.write(data)

        return put

    def receiver(self) -> Callable[[], Any]:
        reader = (zerochannel.Float64Reader if self.is_array else zerochannel.BytesReader)(self.name)
        read, message = self.read, self.message

        def get() -> Any:
            while (entry := reader.read()) is None:
                pass
            received = message(entry[1])
            read[0] = entry[0]
            return received

        return get
