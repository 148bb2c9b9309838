"""What sampled messages of standard queues and pipes cost, and what they would cost with shmtree."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time_ns
from typing import Any

from .._codec.frames import pack, unpack
from ..errors import PickleRefused
from . import counters
from .counters import (
    PICKLE_NS,
    PICKLE_SAMPLES,
    RECEIPT_CPU_NS,
    RECEIPT_SAMPLES,
    REFUSALS,
    SEND_CPU_NS,
    SEND_SAMPLES,
    TRIAL_NS,
    TRIALS,
    UNPICKLE_NS,
    UNPICKLE_SAMPLES,
)
from .queues import ALL_SAMPLED, PERIOD, sampled_put
from .sizes import size_of

_MAX_TRIAL_BYTES = 64 << 20


def _try(row: int, obj: object) -> None:
    """Encodes and decodes a message as shmtree would."""
    if size_of(obj)[0] > _MAX_TRIAL_BYTES:
        return
    cells = counters.cells
    # Items of an executor are objects of its own class: only their pickles have the native parts.
    pickles = type(obj).__module__ == "concurrent.futures.process"
    try:
        unpack(pack(obj, allow_pickle=pickles))  # warms up
        began = thread_time_ns()
        unpack(pack(obj, allow_pickle=pickles))
    except PickleRefused:
        cells[row + REFUSALS] += 1
        return
    except Exception:  # the program gets the error from its own call, if there is one
        return
    cells[row + TRIAL_NS] += thread_time_ns() - began
    cells[row + TRIALS] += 1


def sample_put(row: int, count: int, obj: object, put: Callable[[], Any]) -> None:
    """Calls `put`. Then tries the message if it is the first, second, fourth, ... of those sampled.

    A put that fails tries nothing: a program may repeat it in a loop while the queue is full.
    """
    sampled_put(row, obj, put)
    number = count + 1 if count < ALL_SAMPLED else count // PERIOD
    if number & (number - 1) == 0:
        _try(row, obj)


def count_sent(row: int, pickle_ns: int, send_ns: int) -> None:
    """Adds the CPU time of a message's way into the pipe."""
    cells = counters.cells
    cells[row + PICKLE_NS] += pickle_ns
    cells[row + PICKLE_SAMPLES] += 1
    cells[row + SEND_CPU_NS] += send_ns
    cells[row + SEND_SAMPLES] += 1


def count_received(row: int, receive_ns: int, unpickle_ns: int) -> None:
    """Adds the CPU time of a message's way out of the pipe."""
    cells = counters.cells
    cells[row + RECEIPT_CPU_NS] += receive_ns
    cells[row + RECEIPT_SAMPLES] += 1
    cells[row + UNPICKLE_NS] += unpickle_ns
    cells[row + UNPICKLE_SAMPLES] += 1
