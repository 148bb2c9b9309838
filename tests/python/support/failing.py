"""Functions of processes that fail, in a module of their own that spawned processes can import."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import shmtree


def divide(receiver: shmtree.Receiver, sender: shmtree.Sender) -> None:
    """Puts 12 / number for each received number."""
    for number in receiver:
        sender.put(12 // number, timeout=60)


def put_and_raise(sender: Any, error: BaseException) -> None:
    sender.put("before", timeout=60)
    raise error


def put_and_interrupt(sender: shmtree.Sender) -> None:
    sender.put("before", timeout=60)
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()


def raise_within(sender: shmtree.Sender, error: BaseException) -> None:
    """Leaves the `with` block of a sender by an exception, and handles it."""
    try:
        with sender:
            put_and_raise(sender, error)
    except type(error):
        pass


def put_in_a_fork(sender: shmtree.Sender) -> None:
    """Puts in a child of a bare fork, which then exits as this process does."""
    child = os.fork()
    if child == 0:
        sender.put("before", timeout=60)
    else:
        os.waitpid(child, 0)


def get_and_raise(receiver: Any) -> None:
    receiver.get(timeout=60)
    raise ZeroDivisionError


def get_and_exit(connection: Any, code: object) -> None:
    connection.recv()
    sys.exit(code)  # type: ignore[arg-type]


def publish_and_raise(publisher: Callable[[Any], object]) -> None:
    publisher("before")
    raise ZeroDivisionError


def open_and_raise(name: str) -> None:
    """Fails while a local variable has the sender."""
    sender = shmtree.open_sender(name, timeout=60)
    sender.put("before", timeout=60)
    raise ZeroDivisionError


def serve_and_raise(service: shmtree.Service) -> None:
    service.get(timeout=60).reply("first")
    raise ZeroDivisionError


def put_and_end_when_told(sender: shmtree.Sender, told: Any) -> None:
    """Puts the process id, and exits with the exit code that it receives."""
    sender.put(os.getpid(), timeout=60)
    sys.exit(told.recv())


def send_and_raise_in_block(connection: Any) -> None:
    with connection:
        connection.send(os.getpid())
        raise ValueError("as it should")
