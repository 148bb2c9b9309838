"""ZeroMQ's PUB and SUB over ipc, as an alternative to a Broadcast, with pickle 5 and out-of-band buffers.

The publisher waits for slow subscribers (XPUB_NODROP), like a Broadcast with blocking readers.
"""

from __future__ import annotations

import pickle
import tempfile
from typing import Any

HIGH_WATER = 64
COPY_BELOW = 65536  # bytes; pyzmq's own threshold for zero-copy sends


class Publisher:
    def __init__(self, readers: int) -> None:
        import zmq

        self._folder = tempfile.TemporaryDirectory(prefix="bench-zmq-")
        self._expected = readers
        self._socket: Any = zmq.Context.instance().socket(zmq.XPUB)
        self._socket.set_hwm(HIGH_WATER)
        self._socket.setsockopt(zmq.XPUB_NODROP, 1)
        self._socket.setsockopt(zmq.XPUB_VERBOSE, 1)  # report every subscription
        self._socket.bind(self.address)

    @property
    def address(self) -> str:
        return f"ipc://{self._folder.name}/socket"

    def put(self, message: object) -> None:
        while self._expected:  # wait for the remaining subscriptions
            self._socket.recv()
            self._expected -= 1
        buffers: list[Any] = []
        head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
        copy = all(buffer.raw().nbytes < COPY_BELOW for buffer in buffers)
        self._socket.send_multipart([head, *buffers], copy=copy)

    def close(self) -> None:
        self._socket.close(linger=0)
        self._folder.cleanup()


class Subscription:
    """Subscribes in the process that unpickles it."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __setstate__(self, state: dict[str, Any]) -> None:
        import zmq

        self.__dict__.update(state)
        self._socket: Any = zmq.Context.instance().socket(zmq.SUB)
        self._socket.set_hwm(HIGH_WATER)
        self._socket.connect(self._address)
        self._socket.subscribe(b"")

    def get(self) -> Any:
        head, *buffers = self._socket.recv_multipart(copy=False)
        return pickle.loads(head.buffer, buffers=[frame.buffer for frame in buffers])
