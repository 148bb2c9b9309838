"""SPDL's pool of shared segments, which returns views. The envelopes go through a pipe."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from spdl.pipeline._arena import SharedMemorySegmentPool, _Arena

from bench.competitors import Base


class Competitor(Base):
    requires = ("spdl-core",)
    is_deep = False
    lends_bytes = True
    copies = 2

    def __init__(self, capacity: int, nbytes: int, kind: type) -> None:
        self.arena = self.make_arena(capacity, nbytes + 64_000)
        self.reader, self.writer = multiprocessing.get_context("fork").Pipe(duplex=False)

    def make_arena(self, capacity: int, nbytes: int) -> Any:
        return SharedMemorySegmentPool(
            nbytes, min(capacity, 64) + 2
        )  # each segment has a descriptor; the consumer holds one

    def sender(self) -> Callable[[Any], Any]:
        offload, send = _Arena(self.arena).offload, self.writer.send_bytes
        return lambda message: send(offload(message))

    def receiver(self) -> Callable[[], Any]:
        restore, receive = _Arena(self.arena).restore, self.reader.recv_bytes
        return lambda: restore(receive())

    def close(self) -> None:
        self.arena.close()
        self.arena.unlink()
