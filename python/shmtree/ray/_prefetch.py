"""A thread that prepares values before they are requested."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

_T = TypeVar("_T")
_SLICE_S = 0.25


def ahead(make: Callable[[threading.Event], _T], most: int) -> Iterator[_T]:
    """Yields the results of `make`, up to `most` in advance. Raises an error of `make` after the values before it.

    The event that is passed to `make` is set when no more values are requested: `make` should then return or raise
    soon.
    """
    stop = threading.Event()
    items: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(most)

    def run() -> None:
        while not stop.is_set():
            try:
                item: tuple[Any, BaseException | None] = (make(stop), None)
            except BaseException as error:
                item = (None, error)
            while not stop.is_set():
                with contextlib.suppress(queue.Full):
                    items.put(item, timeout=_SLICE_S)
                    break
            if item[1] is not None:
                return

    thread = threading.Thread(target=run, name="shmtree-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            value, error = items.get()
            if error is not None:
                raise error
            yield value
    finally:
        stop.set()
