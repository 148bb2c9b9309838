"""Recording and playing of Broadcasts, Latests and queues by their names."""

from __future__ import annotations

import contextlib
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_record import Recorder, shmtree_run

import shmtree
from shmtree.recording import Recording

pytestmark = pytest.mark.usefixtures("runtime_directory")


@contextlib.contextmanager
def playing(path: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "shmtree", "play", str(path), "--to", name, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as player:
        try:
            yield player
        finally:
            player.kill()


def values_of(path: Path) -> list[Any]:
    return [each.load() for each in Recording(path)]


def image(step: int, side: int = 100) -> dict[str, Any]:
    return {"step": step, "image": np.full((side, side, 3), step % 256, np.uint8)}


def test_broadcast_is_recorded_beside_its_subscriber(name: str, tmp_path: Path) -> None:
    broadcast: shmtree.Broadcast[Any] = shmtree.Broadcast(16, name=name)
    broadcast.put("before")
    recorder = Recorder(tmp_path / "run.mcap", name)
    subscriber = broadcast.subscribe()
    for step in range(300):
        broadcast.put(image(step, 4 if step % 2 else 100))
        assert subscriber.get()["step"] == step
        while len(Recording(tmp_path / "run.mcap")) <= step:  # else it may miss overwritten versions
            pass
    broadcast.close()
    out, err = recorder.end()
    assert (recorder.process.returncode, err, out) == (0, "", f"{name}: 300 recorded, 0 missed\n")
    recording = Recording(tmp_path / "run.mcap")
    assert [each.load()["step"] for each in recording] == list(range(300))
    assert [each.sequence for each in recording] == list(range(1, 301))
    assert recording.whole and recording.missed == {}


@pytest.mark.guarantee("taps-do-not-disturb")
@pytest.mark.parametrize("by", [signal.SIGSTOP, signal.SIGKILL])
def test_stopped_or_killed_recorder_blocks_no_publisher(name: str, tmp_path: Path, by: signal.Signals) -> None:
    broadcast: shmtree.Broadcast[Any] = shmtree.Broadcast(4, name=name)
    recorder = Recorder(tmp_path / "run.mcap", name)
    recorder.process.send_signal(by)
    for step in range(1000):
        broadcast.put(step, timeout=60)
    broadcast.wait_for_all_ack(timeout=60)  # no message waits for the recorder
    if by == signal.SIGKILL:
        recorder.end()
        return
    recorder.process.send_signal(signal.SIGCONT)
    while not (values := values_of(tmp_path / "run.mcap")):
        pass
    out, _ = recorder.end(signal.SIGINT)
    missed = Recording(tmp_path / "run.mcap").missed[name]
    values = values_of(tmp_path / "run.mcap")
    assert out == f"{name}: {len(values)} recorded, {missed} missed\n"
    assert len(values) + missed == 1000 and values == sorted(set(values)) and values[-1] == 999


def test_latest_is_recorded_from_its_newest_version(name: str, tmp_path: Path) -> None:
    latest: shmtree.Latest[Any] = shmtree.Latest(name=name)
    for step in range(3):
        latest.publish(image(step))
    recorder = Recorder(tmp_path / "run.mcap", name)
    while len(Recording(tmp_path / "run.mcap")) < 1:
        pass
    for step in range(3, 50):
        latest.publish(image(step))
        while len(Recording(tmp_path / "run.mcap")) < step - 1:
            pass
    latest.close()
    out, err = recorder.end()
    assert (recorder.process.returncode, err, out) == (0, "", f"{name}: 48 recorded, 0 missed\n")
    assert [each["step"] for each in values_of(tmp_path / "run.mcap")] == list(range(2, 50))
    assert [each.sequence for each in Recording(tmp_path / "run.mcap")] == list(range(3, 51))


def test_recorder_of_a_latest_does_not_count_as_its_publisher(name: str, tmp_path: Path) -> None:
    latest: shmtree.Latest[int] = shmtree.Latest(name=name)
    recorder = Recorder(tmp_path / "run.mcap", name)
    latest.close()
    assert recorder.end() == (f"{name}: 0 recorded, 0 missed\n", "")


def test_versions_overwritten_before_they_were_read_are_missed(name: str, tmp_path: Path) -> None:
    latest: shmtree.Latest[int] = shmtree.Latest(name=name)
    latest.publish(0)
    recorder = Recorder(tmp_path / "run.mcap", name)
    while len(Recording(tmp_path / "run.mcap")) < 1:
        pass
    recorder.process.send_signal(signal.SIGSTOP)
    for step in range(1, 101):
        latest.publish(step)
    recorder.process.send_signal(signal.SIGCONT)
    while values_of(tmp_path / "run.mcap")[-1] != 100:
        pass
    out, _ = recorder.end(signal.SIGINT)
    count = len(Recording(tmp_path / "run.mcap"))
    assert out == f"{name}: {count} recorded, {101 - count} missed\n"


def test_several_kinds_are_recorded_in_one_file(tmp_path: Path) -> None:
    ends = shmtree.create_pair(name="pair")
    tasks: shmtree.Queue[int] = shmtree.Queue(name="tasks")
    frames: shmtree.Broadcast[int] = shmtree.Broadcast(name="frames")
    weights: shmtree.Latest[int] = shmtree.Latest(name="weights")
    recorder = Recorder(tmp_path / "run.mcap", "pair", "tasks", "frames", "weights")
    ends[0].put(1)
    tasks.put(2)
    frames.put(3)
    weights.publish(4)
    while len(Recording(tmp_path / "run.mcap")) < 4:
        pass
    out, _ = recorder.end(signal.SIGINT)
    assert out.splitlines() == [f"{each}: 1 recorded, 0 missed" for each in ("pair", "tasks", "frames", "weights")]
    assert {each.channel: each.load() for each in Recording(tmp_path / "run.mcap")} == {
        "pair": 1, "tasks": 2, "frames": 3, "weights": 4}  # fmt: skip
    assert tasks.get() == 2 and ends[1].get() == 1


@pytest.fixture
def frames(name: str, tmp_path: Path) -> Path:
    """Returns a recording of a Broadcast with that name. The Broadcast is closed."""
    broadcast: shmtree.Broadcast[Any] = shmtree.Broadcast(64, name=name)
    recorder = Recorder(tmp_path / "run.mcap", name)
    for step in range(30):
        broadcast.put(image(step))
    broadcast.close()
    recorder.end()
    return tmp_path / "run.mcap"


def test_play_makes_the_broadcast_that_was_recorded(frames: Path, name: str) -> None:
    with playing(frames, name, "--rate", "0") as player:
        broadcast: shmtree.Broadcast[Any] = shmtree.Broadcast.open(name, timeout=60)
        subscriber = broadcast.subscribe("oldest")
        broadcast.close()
        assert [each["step"] for each in subscriber] == list(range(30))
        assert player.communicate(timeout=60)[0].endswith("30 messages played\n")
        assert player.returncode == 0


def test_play_puts_into_an_existing_broadcast(frames: Path, name: str) -> None:
    broadcast: shmtree.Broadcast[Any] = shmtree.Broadcast(8, name=name, on_peer_death="wait")
    subscriber = broadcast.subscribe()
    with playing(frames, name, "--rate", "0") as player:
        for step in range(30):
            got = subscriber.get(timeout=60)
            assert got["step"] == step and (got["image"] == step).all()
        assert player.wait(60) == 0


def test_play_publishes_versions_of_a_latest(frames: Path, name: str) -> None:
    latest: shmtree.Latest[Any] = shmtree.Latest(name=name, history=40)
    ran = shmtree_run("play", str(frames), "--to", name, "--rate", "0")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert [latest.get(version=number)[1]["step"] for number in range(1, 31)] == list(range(30))


def test_play_makes_or_uses_a_queue(name: str, tmp_path: Path) -> None:
    tasks: shmtree.Queue[int] = shmtree.Queue(name=name)
    recorder = Recorder(tmp_path / "run.mcap", name)
    for step in range(30):
        tasks.put(step)
    recorder.end(signal.SIGINT)
    assert [tasks.get() for _ in range(30)] == list(range(30))
    assert shmtree_run("play", str(tmp_path / "run.mcap"), "--to", name, "--rate", "0").returncode == 0
    assert [tasks.get() for _ in range(30)] == list(range(30))
    tasks.close()
    with playing(tmp_path / "run.mcap", f"{name}-2", "--rate", "0") as player:
        again: shmtree.Queue[int] = shmtree.Queue.open(f"{name}-2", timeout=60)
        assert [again.get(timeout=60) for _ in range(30)] == list(range(30))
        assert player.wait(60) == 0
        with pytest.raises(queue.Empty):
            again.get(timeout=0)
