"""An observer changes no byte of an arena and allocates no page in it, even if it is killed at any moment."""

from __future__ import annotations

import contextlib
import http.client
import json
import multiprocessing as mp
import os
import random
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from test_observe import arena_called, wait_until_stopped

import shmtree
from shmtree.replay import ReplayBuffer

pytestmark = pytest.mark.usefixtures("runtime_directory")

KILLS = 6  # per command
COMMANDS = {
    "top": ["--json", "--interval", "0.01"],
    "inspect": ["--json"],
    "why": ["--json"],
    "crashdump": ["--json", "--interval", "0.01", "--out"],
    "metrics": ["--port", "0"],
}
END_BY_THEMSELVES = {"inspect", "why"}


class File(NamedTuple):
    data: bytes
    size: int
    blocks: int  # allocated disk blocks, as in st_blocks


class Stopped(NamedTuple):
    """An arena that this process is not attached to. Its participants are stopped."""

    path: str  # of the arena's file, under /proc of a participant
    pids: list[int]
    to_kill: Any  # a further participant
    pipes: list[Any]  # the participants live as long as these are open

    def read(self) -> File:
        with open(self.path, "rb") as file:
            status = os.fstat(file.fileno())
            return File(file.read(), status.st_size, status.st_blocks)


def use_everything(name: str, told: Connection) -> None:
    """Creates a small arena with one object of each kind that an observer reads."""
    arena = shmtree.Arena(8 << 20, name=name)
    sender, receiver = arena.create_pair(capacity=3, name=name + "-samples")
    _actions, _asked = arena.create_pair(name=name + "-actions")
    latest = shmtree.Latest(arena=arena, history=1)
    broadcast = shmtree.Broadcast(capacity=4, arena=arena)
    _reader = broadcast.subscribe()
    rows = ReplayBuffer(100, example={"x": 0.0}, arena=arena)
    for number in range(3):
        sender.put({"obs": np.full(20_000, number), "text": "words"})
        latest.publish(np.zeros(5000))
        broadcast.put(number)
        rows.add({"x": float(number)})
    _held = receiver.get()
    told.send(os.getpid())
    told.recv()


def wait_for_a_message(name: str, told: Connection) -> None:
    receiver = shmtree.open_receiver(name + "-actions")
    told.send(os.getpid())
    receiver.get()


@pytest.fixture
def stopped(name, start) -> Stopped:
    processes, pipes = [], []
    for what in (use_everything, wait_for_a_message, wait_for_a_message):
        ours, theirs = mp.Pipe()
        pipes.append(ours)
        processes.append(start(what, name, theirs, method="spawn"))
        theirs.close()
        assert ours.recv() == processes[-1].pid
    pids = [process.pid for process in processes]
    while sum(bool(one["waits"]) for one in arena_called(shmtree.observe(), name)["participants"]) < 2:
        time.sleep(0.01)
    for pid in pids:
        wait_until_stopped(pid)
    openers = arena_called(shmtree.observe(), name)["openers"]
    (fd,) = [each["fd"] for each in openers if each["pid"] == pids[0]]
    return Stopped(f"/proc/{pids[0]}/fd/{fd}", pids[:2], processes[2], pipes)


def start_looking(command: str, arguments: list[str]) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "shmtree", command, *COMMANDS[command], *arguments]
    return subprocess.Popen(line, stdout=subprocess.PIPE, text=True)


def read_answers(command: str, process: subprocess.Popen[str]) -> Iterator[str]:
    """Yields the output of a command until it ends: its lines, or the replies to repeated requests."""
    assert process.stdout
    if command != "metrics":
        yield from process.stdout
        return
    address = process.stdout.readline().strip()
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError):  # the process is killed
        while True:
            yield urllib.request.urlopen(address, timeout=60).read().decode()


@pytest.mark.guarantee("observer-is-passive")
@pytest.mark.parametrize("command", COMMANDS)
def test_killed_observer_leaves_the_arena_unchanged(command: str, name: str, stopped: Stopped, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    moments = random.Random(seed)
    arguments = {"inspect": [str(stopped.pids[0])], "crashdump": [str(tmp_path / "dumps"), name]}.get(command, [])
    before = stopped.read()
    begin = time.monotonic()
    with start_looking(command, arguments) as process:
        answers = read_answers(command, process)
        first = next(answers)
        took = time.monotonic() - begin
        stopped.to_kill.kill()  # the command observes this process too
        if command == "crashdump":
            assert json.loads(next(answers))["killed"] == [stopped.to_kill.pid]
        elif command not in END_BY_THEMSELVES:
            assert len([next(answers) for _ in range(5)]) == 5
        process.kill()
    assert command == "crashdump" or name in first
    assert stopped.read() == before
    for _ in range(KILLS):
        with start_looking(command, arguments) as process:
            asks = threading.Thread(target=list, args=(read_answers(command, process),))
            asks.start()
            time.sleep(moments.uniform(0.2, 1.3) * took)
            process.kill()
            asks.join()
        assert stopped.read() == before
