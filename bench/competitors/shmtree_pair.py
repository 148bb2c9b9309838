"""A sender and a receiver of shmtree: large arrays arrive as views."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import shmtree
from bench.competitors import Base


class Competitor(Base):
    requires = ("shmtree",)
    is_shared = True
    is_bounded = True
    copies = 3  # for bytes; 2 for arrays

    def __init__(self, capacity: int, nbytes: int, kind: type) -> None:
        self.put, self.get = shmtree.create_pair(capacity=capacity)

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
