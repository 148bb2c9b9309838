"""A sender and a receiver of shmtree: large arrays arrive as views."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import shmtree
from bench.competitors import Base
from bench.workloads import GB


class Competitor(Base):
    requires = ("shmtree",)
    is_shared = True
    is_bounded = True
    copies = 3

    @classmethod
    def copies_of(cls, kind: type) -> float:
        return 2 if kind is np.ndarray else cls.copies  # a received array is a view

    def __init__(self, capacity: int, nbytes: int, kind: type) -> None:
        # The default arena has half of the free memory, which might not be enough for one huge message.
        arena = shmtree.Arena(2 * nbytes) if nbytes > 2 * GB else None
        self.put, self.get = shmtree.create_pair(capacity, arena=arena)

    def sender(self) -> Callable[[Any], Any]:
        return self.put.put

    def receiver(self) -> Callable[[], Any]:
        return self.get.get

    def loan(self) -> Callable[[tuple[int, ...]], Any]:
        return partial(self.put.new_empty, dtype=np.float32)

    def forward(self, put: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return partial(self.put.put, move=True)

    def close(self) -> None:
        self.put.close()
        self.get.close()
