"""`multiprocessing.reduction.send_handle` and `recv_handle` for shmtree's connections.

The standard functions send a descriptor over the socket of a standard connection. A connection in shared memory has no
socket, so `install` replaces them by functions that send the descriptor as a message. Other connections are passed to
the standard functions.
"""

from __future__ import annotations

import functools
from multiprocessing import reduction
from typing import Any, NamedTuple

from .._ipc.pipe import Connection


class _Handle(NamedTuple):
    """The message with a descriptor."""

    duplicate: Any  # a `reduction.DupFd`


def install() -> None:
    standard_send, standard_recv = reduction.send_handle, reduction.recv_handle

    @functools.wraps(standard_send)
    def send_handle(conn: Any, handle: int, destination_pid: int | None) -> None:
        """Sends a descriptor. This process has to live until the receiver has fetched it from here."""
        if isinstance(conn, Connection):
            conn.send(_Handle(reduction.DupFd(handle)))
        else:
            standard_send(conn, handle, destination_pid)

    @functools.wraps(standard_recv)
    def recv_handle(conn: Any) -> int:
        """Receives a descriptor. Raises RuntimeError if the next message is something else."""
        if not isinstance(conn, Connection):
            return standard_recv(conn)
        message = conn.recv()
        if not isinstance(message, _Handle):
            raise RuntimeError(f"the next message is a {type(message).__name__}, not a descriptor from send_handle()")
        descriptor: int = message.duplicate.detach()
        return descriptor

    reduction.send_handle, reduction.recv_handle = send_handle, recv_handle  # type: ignore[assignment]
