"""`multiprocessing.queues` with shmtree's classes."""

from __future__ import annotations

from queue import Empty as Empty
from queue import Full as Full

from .._ipc.queue import JoinableQueue, Queue, SimpleQueue

__all__ = ["JoinableQueue", "Queue", "SimpleQueue"]
