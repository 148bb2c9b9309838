"""subetha-ipc: a ring for one sender and one receiver, without blocking calls. Large messages travel in blocks."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import subetha

from bench.competitors import InFolder
from bench.competitors.raw import codec

_PLACE = struct.Struct("=QQ")  # of a message in a block: index and length


class Competitor(InFolder):
    requires = ("subetha-ipc",)

    def __init__(self, capacity: int, nbytes: int, kind: type) -> None:
        self.path = f"{self.folder()}/{self.new_name()}"
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
