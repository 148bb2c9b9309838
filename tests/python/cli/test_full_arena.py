"""Commands on an arena without free memory: they work without it, or skip the channel with a line of text."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_record import Recorder, shmtree_run
from test_trace import Tracer, by_kind

import shmtree
from shmtree.recording import Recording

pytestmark = pytest.mark.usefixtures("runtime_directory")

PAGE = 4096


def fill(arena: shmtree.Arena, free: int = 0) -> list[Any]:
    """Allocates arrays until the arena has `free` bytes left. Returns the arrays, which keep the memory."""
    arrays = []
    while (left := arena.stats()["max_bytes"] - arena.stats()["used_bytes"] - free) > 0:
        arrays.append(arena.new_empty(min(left, 1 << 20), np.uint8))
    return arrays


@pytest.fixture
def arena() -> Iterator[shmtree.Arena]:
    with shmtree.Arena(4 << 20) as made:
        yield made


@pytest.mark.serial  # it traces the channels of other tests
def test_trace_of_all_channels_works_on_a_full_arena(arena: shmtree.Arena, name: str, tmp_path: Path) -> None:
    sender, receiver = arena.create_pair(name=name)
    kept = fill(arena)
    tracer = Tracer(tmp_path / "run.json", "--all")
    sender.put(1)
    assert receiver.get() == 1
    events = [each for each in by_kind(tracer.end())["X"] if each["args"]["channel"] == name]
    assert [each["name"] for each in events] == [f"put {name}", f"get {name}"]
    assert "Traceback" not in tracer.err
    del kept


def test_tap_takes_few_notes_in_an_almost_full_arena(arena: shmtree.Arena, name: str, tmp_path: Path) -> None:
    sender, receiver = arena.create_pair(name=name)
    kept = fill(arena, 4 * PAGE)
    recorder = Recorder(tmp_path / "run.mcap", name)
    for step in range(20):
        sender.put(step)
        assert receiver.get() == step
        while len(Recording(tmp_path / "run.mcap")) <= step:
            pass
    assert recorder.end(signal.SIGINT) == (f"{name}: 20 recorded, 0 missed\n", "")
    del kept


def test_record_skips_the_channels_of_a_full_arena(arena: shmtree.Arena, name: str, tmp_path: Path) -> None:
    _ends = arena.create_pair(name=name)
    frames: shmtree.Broadcast[int] = shmtree.Broadcast(name=f"{name}-frames", arena=arena)
    kept = fill(arena)
    out = str(tmp_path / "run.mcap")
    for each in (name, f"{name}-frames"):
        ran = shmtree_run("record", each, "--seconds", "0", "--out", out)
        assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 1)
        assert ran.stderr.startswith("shmtree: no shared memory ")
    other = shmtree.create_pair(name=f"{name}-other")
    ran = shmtree_run("record", name, f"{name}-frames", f"{name}-other", "--seconds", "0", "--out", out)
    assert ran.returncode == 0
    lines = ran.stderr.splitlines()
    assert [each.split(": ")[:3] for each in lines] == [
        ["shmtree", "not recorded", name],
        ["shmtree", "not recorded", f"{name}-frames"],
    ]
    assert ran.stdout == f"recording 1 channel to {out}\n{name}-other: 0 recorded, 0 missed\n"
    del kept, frames, other


def test_latest_in_a_full_arena_is_recorded(arena: shmtree.Arena, name: str, tmp_path: Path) -> None:
    latest: shmtree.Latest[Any] = shmtree.Latest(name=name, arena=arena)
    latest.publish(np.arange(1000))
    kept = fill(arena)
    ran = shmtree_run("record", name, "--seconds", "0.5", "--out", str(tmp_path / "run.mcap"))
    assert (ran.returncode, ran.stderr) == (0, "")
    (message,) = Recording(tmp_path / "run.mcap")
    assert (message.load() == np.arange(1000)).all()
    del kept


@pytest.mark.parametrize("queued", [0, 3])
def test_inspect_reads_the_messages_of_a_full_arena(arena: shmtree.Arena, name: str, queued: int) -> None:
    sender, _receiver = arena.create_pair(None, name=name)
    for step in range(queued):
        sender.put(np.full(1000, step))
    kept = fill(arena)
    ran = shmtree_run("inspect", name, "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    (found,) = json.loads(ran.stdout)["arenas"]
    assert found["used_bytes"] == found["max_bytes"]
    assert len(found["channels"][0]["messages"]) == queued
    del kept


def test_play_waits_for_memory_of_a_full_arena(arena: shmtree.Arena, name: str, tmp_path: Path) -> None:
    sender, receiver = shmtree.create_pair(name=f"{name}-source")
    recorder = Recorder(tmp_path / "run.mcap", f"{name}-source")
    sender.put(np.zeros(100_000))
    receiver.get()
    sender.close()
    recorder.end()
    latest: shmtree.Latest[Any] = shmtree.Latest(name=name, arena=arena)
    kept = fill(arena)
    command = [sys.executable, "-m", "shmtree", "play", str(tmp_path / "run.mcap"), "--to", name, "--rate", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as player:
        assert player.stdout is not None
        assert player.stdout.readline().startswith("playing 1 message")
        del kept
        assert latest.get(timeout=60)[1].shape == (100_000,)
        assert player.communicate(timeout=60) == ("1 message played\n", "")
