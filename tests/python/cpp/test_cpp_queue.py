"""A C++ program and Python share one queue."""

import os
import pathlib
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import shmtree

PROGRAMS = os.environ.get("SHMTREE_PROGRAMS")

needs_programs = pytest.mark.skipif(
    not PROGRAMS, reason="SHMTREE_PROGRAMS does not say where the C++ programs were built"
)

Ask = Callable[[], str]


@contextmanager
def peer(*arguments: str) -> Iterator[tuple[str, Ask]]:
    """Starts a C++ program with the queue.

    Yields its handle of the queue, and a function that lets the program go on and returns its output.
    """
    program = pathlib.Path(PROGRAMS or "") / "queue_peer"
    pipe = subprocess.PIPE
    with subprocess.Popen([program, *arguments], stdin=pipe, stdout=pipe, text=True, bufsize=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told, said = process.stdin, process.stdout

        def ask() -> str:
            told.write(".")
            told.flush()
            return said.readline().strip()

        yield said.readline().strip(), ask
        assert process.wait(timeout=60) == 0


def exchange(queue: "shmtree.JoinableQueue[dict[str, object]]", ask: Ask) -> None:
    """Sends three jobs, receives three answers, and checks that each job is done."""
    for n in range(3):
        values = np.arange(5_000.0) + n
        queue.put({"n": n, "values": values}, timeout=60)
        assert ask() == "answered"
        answer = queue.get(timeout=60)
        assert answer["n"] == n
        np.testing.assert_array_equal(answer["twice"], values * 2)  # type: ignore[arg-type]
        queue.task_done()
    assert ask() == "joined"
    queue.join(timeout=60)
    with pytest.raises(shmtree.ShutDown):
        queue.put({}, timeout=60)
    with pytest.raises(shmtree.ShutDown):
        queue.get(timeout=60)


@pytest.mark.guarantee("queue-languages")
@needs_programs
@pytest.mark.parametrize("by_name", [False, True])
def test_cpp_opens_a_python_queue(by_name: bool) -> None:
    name = f"queue-{uuid.uuid4().hex}"
    with shmtree.JoinableQueue[dict[str, object]](name=name) as queue:
        arguments = ["name", name] if by_name else ["open", queue.handle()]
        with peer(*arguments) as (_, ask):
            exchange(queue, ask)


@pytest.mark.guarantee("queue-languages")
@needs_programs
@pytest.mark.parametrize("by_name", [False, True])
def test_python_opens_a_cpp_queue(by_name: bool) -> None:
    name = f"queue-{uuid.uuid4().hex}" if by_name else ""
    with peer("make", name) as (handle, ask):
        opened = shmtree.JoinableQueue.open(name) if name else shmtree.JoinableQueue.open_handle(handle)
        with opened as queue:
            assert queue.allow_pickle is not bool(name)
            assert queue.capacity == 8
            exchange(queue, ask)


def test_queue_handle_opens_the_same_queue() -> None:
    queue: shmtree.Queue[int] = shmtree.Queue(3)
    same: shmtree.Queue[int] = shmtree.Queue.open_handle(queue.handle())
    queue.put(1)
    assert same.get(timeout=60) == 1
    assert same.capacity == 3
    queue.close()
    with pytest.raises(shmtree.ChannelClosed):
        queue.handle()


@pytest.mark.parametrize("text", ["", "no handle", "00" * 40])
def test_open_handle_rejects_an_invalid_text(text: str) -> None:
    with pytest.raises(ValueError):
        shmtree.Queue.open_handle(text)
