"""Recordings that cannot be put into a channel again, or only in part."""

from __future__ import annotations

import multiprocessing as mp
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_observe_namespaces import NAMESPACE
from test_record import shmtree_run

import shmtree
from shmtree.recording._mcap import Writer
from shmtree.recording._tap import record

pytestmark = pytest.mark.usefixtures("runtime_directory")

COUNT = 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    sender, receiver = shmtree.create_pair(None, name="recorded")

    def put() -> None:
        sender.put_many(list(range(COUNT)))
        sender.close()
        receiver.get_many(COUNT)

    with Writer(tmp_path / "run.mcap") as writer:
        record(writer, ["recorded"], put, lambda: False)
    return tmp_path / "run.mcap"


def test_play_to_an_invisible_name_is_an_error(path: Path, name: str) -> None:
    if subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode != 0:
        pytest.skip("this user may not make a PID namespace")
    _ends = shmtree.create_pair(name=name)
    command = [*NAMESPACE, sys.executable, "-m", "shmtree", "play", str(path), "--to", name]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("shmtree: ") and "PID namespace" in ran.stderr
    assert "Traceback" not in ran.stderr


def receive_and_die(receiver: Any, count: int, told: Any) -> None:
    told.send(os.getpid())
    for _ in range(count):
        receiver.get()
    os.kill(os.getpid(), signal.SIGKILL)


def test_play_reports_messages_put_before_its_receiver_died(path: Path, name: str, start) -> None:
    sender, receiver = shmtree.create_pair(4, name=name)
    ours, theirs = mp.Pipe()
    child = start(receive_and_die, receiver, 30, theirs, method="spawn")
    receiver.close()
    assert ours.recv() == child.pid
    ran = shmtree_run("play", str(path), "--to", name, "--rate", "0")
    assert ran.returncode == 1
    said = re.fullmatch(r"shmtree: after (\d+) messages: .*\n", ran.stderr)
    assert said is not None, ran.stderr
    assert 30 <= int(said[1]) == sender.stats()["put"] <= 34
