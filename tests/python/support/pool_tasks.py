"""Functions that pools, executors and child processes run in the tests of `shmtree.multiprocessing`.

They have their own module because spawn has to import it.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import signal
from typing import Any

import numpy as np

from shmtree import multiprocessing as mp

#: Objects that `remember` was given in this process.
_remembered: list[Any] = []


def square(number: int) -> int:
    return number * number


def filled(value: int) -> np.ndarray[Any, Any]:
    return np.full(100_000, value, np.int32)


def total(array: np.ndarray[Any, Any]) -> int:
    return int(array.sum())


def pid_of(_: object) -> int:
    return os.getpid()


def fail(what: str) -> None:
    raise LookupError(what)


class Unpicklable:
    def __reduce__(self) -> Any:
        raise RuntimeError("it does not want to")


def unpicklable(_: object) -> Unpicklable:
    return Unpicklable()


def wait_for(event: Any) -> bool:
    return bool(event.wait(60))


def kill_self(_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def remember(queue: Any) -> None:
    _remembered[:] = [queue]


def wait_for_remembered(_: object) -> bool:
    return bool(_remembered[0].wait(60))


def put_remembered(item: object) -> type:
    _remembered[0].put(item)
    return type(_remembered[0])


def start_method_and_queue(answers: Any) -> None:
    """Reports the start method according to both modules, and the module of a new queue."""
    import multiprocessing

    answers.put((multiprocessing.get_start_method(), mp.get_start_method(), type(mp.Queue()).__module__))


def log_and_leave(queue: Any, count: int) -> None:
    logger = logging.getLogger("shmtree-test")
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.handlers.QueueHandler(queue))
    for number in range(count):
        logger.info("record %d of %s", number, mp.current_process().name)
