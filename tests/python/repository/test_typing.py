"""Types of ends and queues, as type checkers and programs that read annotations see them."""

from __future__ import annotations

import os
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import shmtree

PROGRAM = """
from __future__ import annotations

from typing import Any

from typing_extensions import assert_type

import shmtree

pair: tuple[shmtree.Sender[int], shmtree.Receiver[int]] = shmtree.create_pair()
sender, receiver = pair
assert_type(sender.put(1), int)
assert_type(receiver.get(), int)
assert_type(receiver.get_many(2), list[int])
assert_type([item for item in receiver], list[int])
sender.put_many([1, 2])
queue: shmtree.Queue[str] = shmtree.Queue()
assert_type(queue.get(), str)
opened: shmtree.Receiver[bytes] = shmtree.open_receiver("x")
assert_type(opened.get_nowait(), bytes)


async def wait(receiver: shmtree.Receiver[int], sender: shmtree.Sender[int]) -> None:
    assert_type(await receiver.get_async(), int)
    async for item in receiver:
        assert_type(item, int)
    await sender.put_async(1)


service: shmtree.Service[int] = shmtree.Service()
for request in service:
    assert_type(request, shmtree.Request[int])
    assert_type(request.value, int)
    assert_type(request.reply(1), bool)


def plain(sender: shmtree.Sender, receiver: shmtree.Receiver) -> None:
    sender.put(object())
    assert_type(receiver.get(), Any)
"""
WRONG = """
sender.put("x")
sender.put_many(["x"])
receiver.get().upper()
queue.put(1)
"""


@pytest.mark.parametrize("kind", [shmtree.Sender, shmtree.Receiver, shmtree.Queue, shmtree.JoinableQueue])
def test_ends_and_queues_can_be_subscripted(kind):
    of_int = kind[int]
    assert typing.get_origin(of_int) is kind
    assert typing.get_args(of_int) == (int,)


def test_subclass_of_a_subscripted_class_works_like_the_class():
    sender, receiver = shmtree.create_pair()

    class Numbers(shmtree.Receiver[int]):
        pass

    numbers = Numbers(receiver._channel)
    sender.put(1)
    assert numbers.get(timeout=60) == 1
    assert isinstance(numbers, shmtree.Receiver)


def test_type_checkers_know_the_item_type_of_a_channel(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + WRONG)
    lines = PROGRAM.count("\n")
    package = str(Path(shmtree.__file__).parents[1])
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--follow-imports=silent",
            "--cache-dir",
            str(tmp_path / "cache"),
            str(program),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | ({} if "site-packages" in package else {"MYPYPATH": package}),
        timeout=250,
    )
    wrong = sorted(
        {
            int(line.split(":")[1])
            for line in ran.stdout.splitlines()
            if line.startswith("program.py:") and ": error:" in line
        }
    )
    assert wrong == [lines + at for at in (2, 3, 4, 5)], ran.stdout + ran.stderr
