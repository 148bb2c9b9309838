"""`multiprocessing.reduction.send_handle` and `recv_handle` for connections of shmtree.

The standard functions send a descriptor over the socket that a standard connection is. A connection in shared memory is
none, so `install` puts functions in their place that send it as a message. Other connections go to the standard ones.
"""

from __future__ import annotations

import functools
from multiprocessing import reduction
from typing import Any, NamedTuple

from .._ipc.pipe import Connection


class _Handle(NamedTuple):
    """The message."""

    duplicate: Any  # of `reduction.DupFd`


def install() -> None:
    standard_send, standard_recv = reduction.send_handle, reduction.recv_handle

    @functools.wraps(standard_send)
    def send_handle(conn: Any, handle: int, destination_pid: int | None) -> None:
        """Sends a descriptor. This process has to live until the receiver has taken it, which fetches it from here."""
        if isinstance(conn, Connection):
            conn.send(_Handle(reduction.DupFd(handle)))
        else:
            standard_send(conn, handle, destination_pid)

    @functools.wraps(standard_recv)
    def recv_handle(conn: Any) -> int:
        """The next message, which must be a descriptor: RuntimeError otherwise."""
        if not isinstance(conn, Connection):
            return standard_recv(conn)
        message = conn.recv()
        if not isinstance(message, _Handle):
            raise RuntimeError(f"the next message is a {type(message).__name__}, and not a descriptor of send_handle")
        descriptor: int = message.duplicate.detach()
        return descriptor

    reduction.send_handle, reduction.recv_handle = send_handle, recv_handle  # type: ignore[assignment]
