"""multiprocessing.Queue: pickles through a pipe, by a feeder thread."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from bench.competitors import Base


class Competitor(Base):
    shares_tensors = True  # with torch imported
    is_shared = True
    is_bounded = True

    def __init__(self, capacity: int, nbytes: int, kind: type) -> None:
        self.queue: Any = multiprocessing.get_context("fork").Queue(capacity)

    def sender(self) -> Callable[[Any], Any]:
        put: Callable[[Any], Any] = self.queue.put
        return put

    def receiver(self) -> Callable[[], Any]:
        get: Callable[[], Any] = self.queue.get
        return get
