"""Lossless recording: a relay writes down all messages of a channel and passes them on."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_record import Recorder, shmtree_run

import shmtree
from shmtree.recording import Recording

pytestmark = pytest.mark.usefixtures("runtime_directory")


def relay(path: Path, name: str, *arguments: str) -> Recorder:
    return Recorder(path, name, "--relay", f"{name}-on", *arguments, count=1)


def test_relay_forwards_and_records_every_message(name: str, tmp_path: Path) -> None:
    sender, receiver = shmtree.create_pair(4, name=name)
    receiver.close()
    recorder = relay(tmp_path / "run.mcap", name)
    passed_on = shmtree.open_receiver(f"{name}-on")
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.extend(each["step"] for each in passed_on))
    thread.start()
    for step in range(2000):
        sender.put({"step": step, "obs": np.full(50 if step % 2 else 20_000, step)})
    sender.close()
    out, err = recorder.end()
    thread.join(60)
    assert (recorder.process.returncode, err, out) == (0, "", f"{name}: 2000 recorded, 0 missed\n")
    assert got == list(range(2000))
    assert [each.load()["step"] for each in Recording(tmp_path / "run.mcap")] == got


def test_relay_blocks_the_sender_and_retains_unreceived_messages(name: str, tmp_path: Path) -> None:
    sender, _receiver = shmtree.create_pair(4, name=name)
    recorder = relay(tmp_path / "run.mcap", name)
    put = 0
    with contextlib.suppress(queue.Full):
        while put < 1000:
            sender.put(put, timeout=2)
            put += 1
    assert put < 100
    # takes no more messages, and waits until all messages that it has passed on were received
    recorder.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert recorder.process.poll() is None
    passed_on = shmtree.open_receiver(f"{name}-on")
    got = list(passed_on)
    out, err = recorder.end()
    assert (recorder.process.returncode, err) == (0, "")
    assert out == f"{name}: {len(got)} recorded, 0 missed\n"
    left = shmtree.open_receiver(name)
    got += [left.get(timeout=60) for _ in range(put - len(got))]
    assert got == list(range(put))


def test_a_relay_that_is_killed_loses_nothing(name: str, tmp_path: Path) -> None:
    sender, _receiver = shmtree.create_pair(8, name=name, keep_open=True)
    _sender, passed_on = shmtree.create_pair(8, name=f"{name}-on", keep_open=True)
    got: list[int] = []

    def receive() -> None:
        # messages of a killed relay are redelivered when its death is detected, possibly as the last ones
        while len(set(got)) < 500:
            got.append(passed_on.get(timeout=60))

    thread = threading.Thread(target=receive)
    thread.start()
    recorders = []
    for number in range(5):
        recorders.append(relay(tmp_path / f"{number}.mcap", name))
        for step in range(100):
            sender.put(number * 100 + step, timeout=60)
        recorders[-1].process.kill()
        recorders[-1].process.communicate()
    recorders.append(relay(tmp_path / "last.mcap", name))
    thread.join(60)
    recorders[-1].end(signal.SIGTERM)
    assert sorted(set(got)) == list(range(500)) and len(got) <= 510
    written = {each.load() for path in tmp_path.glob("*.mcap") for each in Recording(path)}
    assert written == set(range(500))


def test_relay_rejects_several_channels_and_its_own_input(name: str, tmp_path: Path) -> None:
    for arguments in ((name, "other", "--relay", "third"), (name, "--relay", name)):
        done = shmtree_run("record", *arguments, "--out", str(tmp_path / "run.mcap"))
        assert done.returncode == 1 and "--relay takes one channel, for another one to receive" in done.stderr
