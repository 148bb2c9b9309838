"""What `ls` lists, and that it only reads; `clean` removes names that killed processes left."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_observe import run

import shmtree
from shmtree.replay import ReplayBuffer

pytestmark = pytest.mark.usefixtures("runtime_directory")


def listed() -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in json.loads(run("ls", "--json"))["names"]}


def have_a_name(name: str, told: Any) -> None:
    _sender, _receiver = shmtree.create_pair(name=name)
    told.send(os.getpid())
    told.recv()


def test_ls_lists_each_kind_of_object(name: str) -> None:
    arena = shmtree.Arena(16 << 20, name="arena")
    made = {
        "arena": arena,
        "array": arena.array((10,), np.uint8, name="array"),
        "broadcast": shmtree.Broadcast(name="broadcast"),
        "channel": shmtree.create_pair(name="channel"),
        "latest": shmtree.Latest(name="latest"),
        "queue": shmtree.Queue(name="queue"),
        "replay": ReplayBuffer(10, example=0.0, name="replay"),
    }
    known = {each.name: each for each in shmtree.list_names()}
    found = listed()
    assert list(found) == list(made) == sorted(found)
    for each in made:
        assert (found[each]["kind"], found[each]["pids"]) == (known[each].kind, [os.getpid()])


def test_ls_keeps_stale_names_and_clean_removes_them(name: str, start: Any, runtime_directory: Path) -> None:
    ours, theirs = mp.Pipe()
    child = start(have_a_name, name, theirs, method="spawn")
    assert ours.recv() == child.pid
    assert listed()[name]["pids"] == [child.pid]
    os.kill(child.pid, signal.SIGKILL)
    child.join(60)
    file = runtime_directory / "shmtree" / name
    before = file.read_bytes()
    while listed()[name]["pids"]:  # an exiting process keeps its part of the name a little longer
        pass
    assert f"{name}\t{listed()[name]['kind']}\tno process; shmtree clean removes it\n" in run("ls")
    assert file.read_bytes() == before
    assert json.loads(run("clean", "--json")) == {"removed": [name]}
    assert not file.exists()
    assert listed() == {}
