"""py-sharedmemory: a shared memory segment per message, with its name sent through a multiprocessing.Queue."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from py_sharedmemory import create_shared_memory_pair

from bench.competitors import Base


class Competitor(Base):
    requires = ("py-sharedmemory",)
    copies = 3

    def __init__(self, capacity: int, nbytes: int, kind: type) -> None:
        self.put, self.get = create_shared_memory_pair(capacity, ctx=multiprocessing.get_context("fork"))

    def sender(self) -> Callable[[Any], Any]:
        put: Callable[[Any], Any] = self.put.put
        return put

    def receiver(self) -> Callable[[], Any]:
        get: Callable[[], Any] = self.get.get
        return get

    def close(self) -> None:
        self.put.close()
        self.get.close()
