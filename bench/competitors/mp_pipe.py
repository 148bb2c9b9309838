"""multiprocessing.Pipe: one producer, one consumer, pickles, no locks."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from bench.competitors import Base


class Competitor(Base):
    shares_tensors = True  # with torch imported
    is_deep = False

    def __init__(self, capacity: int, nbytes: int, kind: type) -> None:
        self.reader, self.writer = multiprocessing.get_context("fork").Pipe(duplex=False)

    def sender(self) -> Callable[[Any], Any]:
        return self.writer.send

    def receiver(self) -> Callable[[], Any]:
        return self.reader.recv
