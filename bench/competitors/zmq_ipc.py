"""pyzmq, PUSH to PULL over ipc: pickle 5 with each buffer as a separate frame, which pyzmq does not copy."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable
from typing import Any

import zmq

from bench.competitors import Base

_COPY_BELOW = 65536  # bytes; pyzmq's own threshold for zero-copy sends


class Competitor(Base):
    requires = ("pyzmq",)
    copies = 3

    def __init__(self, capacity: int, nbytes: int, kind: type) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="bench-zmq-")
        self.address = f"ipc://{self.folder.name}/socket"
        self.capacity, self.kind, self.copy = capacity, kind, nbytes < _COPY_BELOW

    def socket(self, kind: int) -> Any:
        socket: Any = zmq.Context.instance().socket(kind)
        socket.set_hwm(self.capacity)
        socket.linger = 0
        return socket

    def sender(self) -> Callable[[Any], Any]:
        socket, copy = self.socket(zmq.PUSH), self.copy
        socket.connect(self.address)
        if self.kind is bytes:
            return lambda message: socket.send(message, copy=copy)

        def put(message: Any) -> None:
            buffers: list[Any] = []
            head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
            socket.send_multipart([head, *buffers], copy=copy)

        return put

    def receiver(self) -> Callable[[], Any]:
        socket, copy = self.socket(zmq.PULL), self.copy
        socket.bind(self.address)
        if self.kind is bytes:
            return socket.recv if copy else lambda: socket.recv(copy=False).bytes
        if copy:
            return lambda: (parts := socket.recv_multipart()) and pickle.loads(parts[0], buffers=parts[1:])

        def get() -> Any:
            head, *buffers = socket.recv_multipart(copy=False)
            return pickle.loads(head.buffer, buffers=[frame.buffer for frame in buffers])

        return get

    def close(self) -> None:
        self.folder.cleanup()
