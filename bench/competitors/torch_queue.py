"""torch.multiprocessing.Queue: the standard queue, which sends tensors as shared memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.multiprocessing

from bench.competitors import Base


class Competitor(Base):
    requires = ("torch",)
    is_shared = True
    is_bounded = True
    shares_tensors = True

    def __init__(self, capacity: int, nbytes: int, kind: type) -> None:
        self.queue: Any = torch.multiprocessing.get_context("fork").Queue(capacity)

    def sender(self) -> Callable[[Any], Any]:
        put: Callable[[Any], Any] = self.queue.put
        return put

    def receiver(self) -> Callable[[], Any]:
        get: Callable[[], Any] = self.queue.get
        return get
