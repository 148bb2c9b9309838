"""Methods that count their calls in the row of the counters that the object's attribute `_row` selects.

Each call adds its time to the counters. Some calls are sampled: they also measure CPU time and the size of the message,
which takes longer. `results` estimates the totals from the samples.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter_ns, thread_time_ns
from typing import Any

from . import counters
from .counters import CPU_NS, GETS, NS, POLL_NS, PUT_BYTES, PUTS, SAMPLES, SHARED_TENSORS
from .sizes import size_of

_ALL_SAMPLED = 16
_PERIOD = 31  # a prime, so that the samples do not coincide with a period of the program

#: Functions of `--profile`, which are called with the row, object and size of each sampled message after it was sent.
on_sample: list[Callable[[int, object, int], None]] = []


def _counting(first: int, standard: Any) -> Any:
    """Returns a method that calls `standard`, which sends or receives an object, and counts it."""

    @functools.wraps(standard)
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        row = self._row
        at = row + first
        cells = counters.cells
        count = cells[at]
        is_sampled = count % _PERIOD == 0 or count < _ALL_SAMPLED
        cpu = thread_time_ns() if is_sampled else 0
        began = perf_counter_ns()
        try:
            result = standard(self, *arguments, **options)
            cells[at] += 1
        finally:
            wall = perf_counter_ns() - began
            cells[at + NS] += wall
        if is_sampled:
            cells[at + CPU_NS] += min(thread_time_ns() - cpu, wall)
            cells[at + SAMPLES] += 1
            if first == PUTS:
                _measure(row, (*arguments, *options.values())[0])
        return result

    return method


counting_put = functools.partial(_counting, PUTS)
counting_get = functools.partial(_counting, GETS)


def _measure(row: int, obj: object) -> None:
    size, is_shared = size_of(obj)
    counters.cells[row + PUT_BYTES] += size
    counters.cells[row + SHARED_TENSORS] += is_shared
    for each in on_sample:
        each(row, obj, size)


def counting_poll(standard: Any) -> Any:
    """Returns a method that calls `standard`, and adds its time to the row if it may wait."""

    @functools.wraps(standard)
    def poll(self: Any, timeout: float | None = 0.0) -> Any:
        began = perf_counter_ns()
        try:
            return standard(self, timeout)
        finally:
            if timeout is None or timeout > 0:
                counters.cells[self._row + POLL_NS] += perf_counter_ns() - began

    return poll
