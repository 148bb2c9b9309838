"""The queue of calls of a `ProcessPoolExecutor`. Replaces the executor's own class."""

from __future__ import annotations

import sys
from concurrent.futures import process as _process
from typing import Any

from .queues import Queue

#: The standard class. In a process of a run, the hook has put a function in its place.
_standard: Any = getattr(_process._SafeQueue, "standard", _process._SafeQueue)


class SafeQueue(Queue):
    """Passes errors of `put` to the future of the call.

    In the standard class, the thread that pickles does so. Here, `put` raises the errors in the executor's own thread.
    """

    def __init__(self, max_size: int = 0, *, ctx: object = None, **attributes: Any) -> None:
        super().__init__(max_size)
        self._count_from("Queue")
        vars(self).update(attributes)  # pending_work_items, thread_wakeup, and shutdown_lock in some versions

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:  # type: ignore[override]
        try:
            super().put(obj, block, timeout)
        except Exception as error:
            if obj is None or not hasattr(self, "pending_work_items"):
                raise
            _standard._on_queue_feeder_error(self, error, obj)

    def _terminate_broken(self) -> None:
        self.close()


if not getattr(sys, "_shmtree_run", {"profile": True})["profile"]:
    _process._SafeQueue = SafeQueue  # type: ignore[misc, assignment]
