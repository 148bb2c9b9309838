"""The connections and locks inside multiprocessing's queues, as views of a shmtree queue."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

from . import waiting

if TYPE_CHECKING:
    from .queue import BaseQueue


class _Half:
    """One end of a queue, with the interface of a `multiprocessing.connection.Connection`."""

    _receiving: bool

    def __init__(self, queue: BaseQueue[Any]) -> None:
        self._queue = queue

    def __eq__(self, other: object) -> bool:  # for `q._reader in wait(...)`: each access makes a new object
        return isinstance(other, _Half) and (other._queue, other._receiving) == (self._queue, self._receiving)

    def __hash__(self) -> int:
        return hash((self._queue, self._receiving))

    @property
    def closed(self) -> bool:
        return self._queue._end_closed(self._receiving)

    @property
    def readable(self) -> bool:
        return self._receiving

    @property
    def writable(self) -> bool:
        return not self._receiving

    def close(self) -> None:
        """Closes this half of the queue in this process."""
        self._queue._close_end(self._receiving)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class QueueReader(_Half):
    """The receiving end."""

    _receiving = True

    def fileno(self) -> int:
        """Returns a descriptor that is readable while there is a message."""
        return self._queue.fileno()

    def _open_to_wait(self) -> tuple[int, bool]:
        return self._queue._open_to_wait()

    def _close_after_wait(self) -> None:
        self._queue._close_after_wait()

    def _ready(self) -> bool:
        return self._queue._ready()

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Returns True if there is a message within `timeout` seconds."""
        return not self._queue.empty() if timeout == 0 else bool(waiting.wait([self._queue], timeout))

    def recv(self) -> Any:
        return self._queue.get()

    def recv_bytes(self, maxlength: int | None = None) -> bytes:
        """Returns the next object, pickled."""
        data = bytes(ForkingPickler.dumps(self._queue.get()))
        if maxlength is not None and len(data) > maxlength:
            raise OSError(f"the message has {len(data)} bytes, but maxlength is {maxlength}")
        return data


class QueueWriter(_Half):
    """The sending end."""

    _receiving = False

    def fileno(self) -> int:
        """Returns a descriptor that is readable while there is space to send."""
        return self._queue._fileno_to_put()

    def send(self, obj: object) -> None:
        self._queue.put(obj)

    def send_bytes(self, buf: Any, offset: int = 0, size: int | None = None) -> None:
        """Unpickles an object from these bytes and sends it."""
        view = memoryview(buf)[offset:]
        self._queue.put(ForkingPickler.loads(view if size is None else view[:size]))


class QueueLock:
    """Reserves one end of a queue for this process. The reservation ends if the process dies.

    It is not recursive. Within the process that holds it, all threads can use the end.
    """

    def __init__(self, queue: BaseQueue[Any], receiving: bool) -> None:
        self._queue = queue
        self._receiving = receiving

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        return self._queue._reserve(self._receiving, block, timeout)

    def release(self) -> None:
        if not self._queue._release(self._receiving):
            raise ValueError("semaphore or lock released too many times")

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()
