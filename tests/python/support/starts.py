"""Start methods, and processes that are started for a test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from shmtree import multiprocessing as shared_mp

START_METHODS = ["fork", "spawn", "forkserver"]

# Warnings that depend on the machine: more workers than cores, and processes that take longer than 10 s to start.
OF_THIS_MACHINE = ["-W", "ignore:This DataLoader will create", "-W", "ignore:waited"]

Start = Callable[..., Any]


@contextlib.contextmanager
def running(target: Any, *args: Any, method: str = "fork") -> Iterator[tuple[Any, Any]]:
    """Starts a process of shmtree.multiprocessing. Its end of the pipe replaces the argument that is None."""
    context = shared_mp.get_context(method)
    mine, theirs = context.Pipe()
    process = context.Process(target=target, args=[theirs if each is None else each for each in args])
    process.start()
    theirs.close()
    try:
        yield process, mine
    finally:
        process.kill()
        process.join()
