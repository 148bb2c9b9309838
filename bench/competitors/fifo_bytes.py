"""faster-fifo with bytes, and with pickle only where necessary, as its documentation advises."""

from __future__ import annotations

from typing import Any

import faster_fifo
import numpy as np

from bench.competitors import fifo_pickled
from bench.competitors.raw import codec


class Competitor(fifo_pickled.Competitor):
    def __init__(self, capacity: int, nbytes: int, kind: type) -> None:
        encode, decode = codec(kind)
        self.queue: Any = faster_fifo.Queue(
            fifo_pickled.ring_bytes(capacity, nbytes),
            maxsize=capacity,
            dumps=encode if kind is not np.ndarray else np.ndarray.tobytes,  # it accepts bytes only
            loads=decode,
        )
