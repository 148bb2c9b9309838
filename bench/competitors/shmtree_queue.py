"""shmtree.Queue, the drop-in. The receiver owns each message, so it is copied twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import shmtree
from bench.competitors import Base


class Competitor(Base):
    requires = ("shmtree",)
    is_shared = True
    is_bounded = True
    copies = 3

    def __init__(self, capacity: int, nbytes: int, kind: type) -> None:
        self.queue: shmtree.Queue[Any] = shmtree.Queue(capacity)

    def sender(self) -> Callable[[Any], Any]:
        return self.queue.put

    def receiver(self) -> Callable[[], Any]:
        return self.queue.get
