"""vLLM's ring in shared memory, with which a process sends work to its workers: pickle 5, one writer.

Imports only that module: `pip install --no-deps vllm` and the packages that it then misses are enough.
"""

from __future__ import annotations

from typing import Any

PLACES = 64
PLACE_BYTES = 2 << 20


class Publisher:
    def __init__(self, readers: int) -> None:
        from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

        self._queue: Any = MessageQueue(readers, readers, max_chunk_bytes=PLACE_BYTES, max_chunks=PLACES)
        self._is_ready = False

    def subscription(self, rank: int) -> Subscription:
        return Subscription(self._queue.export_handle(), rank)

    def put(self, message: object) -> None:
        if not self._is_ready:  # every reader has the handle by now
            self._queue.wait_until_ready()
            self._is_ready = True
        self._queue.enqueue(message)


class Subscription:
    """Receives in the process that unpickles it."""

    def __init__(self, handle: Any, rank: int) -> None:
        self._handle, self._rank = handle, rank
        self._is_ready = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

        self.__dict__.update(state)
        self._queue: Any = MessageQueue.create_from_handle(self._handle, self._rank)

    def get(self) -> Any:
        if not self._is_ready:
            self._queue.wait_until_ready()
            self._is_ready = True
        return self._queue.dequeue(indefinite=True)
