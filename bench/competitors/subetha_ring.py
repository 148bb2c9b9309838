"""subetha-ipc: a ring for one sender and one receiver, without blocking calls. Large messages travel in blocks."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import subetha

from bench.competitors import Base
from bench.competitors.raw import codec

_ROOT = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
_FOLDER = f"shmtree-bench-{os.getpid()}-subetha"
_PLACE = struct.Struct("=QQ")  # of a message in a block: index and length


class Competitor(Base):
    requires = ("subetha-ipc",)
    _made = 0

    @classmethod
    def sweep(cls) -> None:
        shutil.rmtree(_ROOT / _FOLDER, ignore_errors=True)

    def __init__(self, capacity: int, nbytes: int, kind: type) -> None:
        Competitor._made += 1
        (_ROOT / _FOLDER).mkdir(exist_ok=True)
        self.path = str(_ROOT / _FOLDER / f"ring-{Competitor._made}")
        self.capacity = 1 << (capacity - 1).bit_length()
        self.block_bytes = 1 << (nbytes + 1024).bit_length()
        self.has_blocks = nbytes > 4000  # the ring's own frames hold 8 KB
        self.encode, self.decode = codec(kind)
        if kind is np.ndarray:
            self.encode = np.ndarray.tobytes  # it accepts bytes only
        self.kept = self.ends(subetha.Ring, subetha.FrameRegion)

    def ends(self, ring: Any, region: Any) -> tuple[Any, Any]:
        blocks = region(self.path + ".blocks", self.block_bytes, self.capacity) if self.has_blocks else None
        return ring(self.path, capacity=self.capacity), blocks

    def sender(self) -> Callable[[Any], Any]:
        ring, blocks = self.ends(subetha.Ring.open, subetha.FrameRegion.open)
        producer, encode = ring.register_producer(), self.encode

        def put(message: Any) -> None:
            data = encode(message)
            while not ring.send_frame(producer, data):
                pass

        def put_block(message: Any) -> None:
            data = encode(message)
            while (index := blocks.write_new(data)) is None:
                pass
            while not ring.send(producer, _PLACE.pack(index, len(data))):
                pass

        return put_block if self.has_blocks else put

    def receiver(self) -> Callable[[], Any]:
        ring, blocks = self.ends(subetha.Ring.open, subetha.FrameRegion.open)
        consumer, decode = ring.register_consumer(), self.decode

        def get() -> Any:
            while (data := ring.recv_frame(consumer)) is None:
                pass
            return decode(data)

        def get_block() -> Any:
            while (place := ring.recv(consumer)) is None:
                pass
            return decode(blocks.take_block(*_PLACE.unpack_from(place)))

        return get_block if self.has_blocks else get
