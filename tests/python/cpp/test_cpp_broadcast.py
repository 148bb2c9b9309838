"""A C++ program and Python share one Broadcast."""

import os
import pathlib
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import numpy as np
import pytest

import shmtree

PROGRAMS = os.environ.get("SHMTREE_PROGRAMS")

needs_programs = pytest.mark.skipif(
    not PROGRAMS, reason="SHMTREE_PROGRAMS does not say where the C++ programs were built"
)


@contextmanager
def peer(how: str, name: str) -> Iterator[tuple[IO[str], IO[str]]]:
    """Starts a C++ program, and yields its standard input and output once it is ready."""
    program = pathlib.Path(PROGRAMS or "") / "broadcast_peer"
    pipe = subprocess.PIPE
    with subprocess.Popen([program, how, name], stdin=pipe, stdout=pipe, text=True, bufsize=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.stdin, process.stdout
        assert process.wait(timeout=60) == 0


@pytest.fixture
def name() -> str:
    return f"broadcast-{uuid.uuid4().hex}"


def message(n: int) -> dict[str, object]:
    return {"n": n, "values": np.full(5_000, float(n))}


@pytest.mark.guarantee("broadcast-languages")
@needs_programs
def test_cpp_reads_messages_that_python_puts(name: str) -> None:
    with shmtree.Broadcast(name=name) as broadcast:
        with peer("read", name) as (_, said):
            broadcast.put_many([message(n) for n in range(20)], timeout=60)
            broadcast.close()
            lines = said.read().splitlines()
        assert lines == [f"{n} {5_000 * n}" for n in range(20)] + ["end"]


@pytest.mark.guarantee("broadcast-languages")
@needs_programs
def test_python_reads_messages_that_cpp_puts(name: str) -> None:
    with peer("make", name) as (told, _):
        broadcast = shmtree.Broadcast.open(name)
        reader, falls_behind = broadcast.subscribe(), broadcast.subscribe(on_lag="latest")
        told.write(".")
        told.flush()
        for n in range(3):
            got = reader.get(timeout=60)
            assert got["n"] == n
            assert not got["values"].flags.writeable
            np.testing.assert_array_equal(got["values"], np.full(5_000, float(n)))
    assert falls_behind.get(timeout=60)["n"] == 2


@pytest.mark.guarantee("broadcast-languages")
@needs_programs
def test_cpp_receives_a_broadcast_and_subscription_in_a_message(name: str) -> None:
    sender, receiver = shmtree.create_pair(name=name)
    broadcast = shmtree.Broadcast()
    reader = broadcast.subscribe()
    broadcast.put(message(7))
    sender.put({"broadcast": broadcast, "reader": broadcast.subscribe(start="oldest")})
    with peer("given", name):
        assert reader.get(timeout=60)["n"] == 7
        assert reader.get(timeout=60) == "7 35000"
    receiver.close()
