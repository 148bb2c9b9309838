"""SPDL's ring, which copies in and out. The envelopes go through a pipe."""

from __future__ import annotations

from typing import Any

from spdl.pipeline._arena import SharedMemoryRingBuffer

from bench.competitors import spdl_pool


class Competitor(spdl_pool.Competitor):
    lends_bytes = False
    copies = 4

    def make_arena(self, capacity: int, nbytes: int) -> Any:
        return SharedMemoryRingBuffer(min(capacity, 64) * nbytes)
