"""faster-fifo: a ring of bytes in shared memory, with pickle."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import faster_fifo

from bench.competitors import Base

_FOREVER = 1e6  # seconds; the default timeout is 10 s


class Competitor(Base):
    requires = ("faster-fifo",)
    is_shared = True
    shares_tensors = True  # uses multiprocessing's pickler

    def __init__(self, capacity: int, nbytes: int, kind: type) -> None:
        self.queue: Any = faster_fifo.Queue(ring_bytes(capacity, nbytes), maxsize=capacity)

    def sender(self) -> Callable[[Any], Any]:
        return partial(self.queue.put, timeout=_FOREVER)

    def receiver(self) -> Callable[[], Any]:
        return partial(self.queue.get, timeout=_FOREVER)


def ring_bytes(capacity: int, nbytes: int) -> int:
    """Returns the size of a ring for `capacity` pickled messages."""
    return capacity * (nbytes + 1000)
