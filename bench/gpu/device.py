"""The measured device: a CUDA device, or the CPU, which only shows that a program runs."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch


class Device:
    def __init__(self, name: str, seconds: float) -> None:
        self.name = name
        self.is_cuda = name != "cpu"
        self.seconds = seconds  # approximate time for each figure

    def synchronize(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()

    def stream(self) -> Any:
        stream: Any = torch.cuda.Stream
        return stream() if self.is_cuda else None

    def on(self, stream: Any) -> Any:
        """Enqueues the device's work of a `with` block in `stream`."""
        return torch.cuda.stream(stream) if self.is_cuda else contextlib.nullcontext()

    def mark(self) -> Any:
        """Returns an event for `wait_for`, after all work that the current stream has so far."""
        return torch.cuda.current_stream().record_event() if self.is_cuda else None

    def wait_for(self, mark: Any) -> None:
        if mark is not None:
            mark.synchronize()

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a copy in memory that torch has pinned."""
        return tensor.pin_memory() if self.is_cuda else tensor.clone()

    def pin(self, arena: Any) -> None:
        if self.is_cuda:
            arena.pin()

    def time(self, work: Callable[[], Any]) -> tuple[float, float]:
        """Returns the median seconds until the call returned, and until the device finished its work."""
        returned: list[float] = []
        done: list[float] = []
        end = time.perf_counter() + self.seconds
        work()
        self.synchronize()
        while len(done) < 5 or time.perf_counter() < end:
            began = time.perf_counter()
            kept = work()
            returned.append(time.perf_counter() - began)
            self.synchronize()
            done.append(time.perf_counter() - began)
            del kept
        return statistics.median(returned), statistics.median(done)


class Skip(Exception):
    """A requirement of the measurement is missing."""
