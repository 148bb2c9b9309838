"""Recordings that cannot be put into a channel again, or only in part."""

from __future__ import annotations

import json
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


def test_commands_on_recordings_print_json_lines(path: Path, name: str, tmp_path: Path) -> None:
    sender, receiver = shmtree.create_pair(COUNT, name=name)
    ran = shmtree_run("play", str(path), "--to", name, "--rate", "0", "--json")
    assert [json.loads(line) for line in ran.stdout.splitlines()] == [{"playing": COUNT, "to": name}, {"played": COUNT}]
    out = str(tmp_path / "run.jsonl")
    ran = shmtree_run("export", str(path), "--format", "jsonl", "--out", out, "--json")
    assert json.loads(ran.stdout) == {"exported": COUNT, "out": out}
    ran = shmtree_run("export", str(path), "--format", "jsonl", "--json")
    assert (ran.returncode, ran.stdout) == (2, "") and "--json requires --out FILE" in ran.stderr
    out = str(tmp_path / "other")
    ran = shmtree_run("record", name, "--seconds", "0", "--out", out, "--json")
    assert [json.loads(line) for line in ran.stdout.splitlines()] == [
        {"recording": [name], "out": out},
        {"channel": name, "recorded": 0, "missed": 0},
    ]
    ran = shmtree_run("trace", name, "--seconds", "0", "--out", out, "--json")
    assert [json.loads(line) for line in ran.stdout.splitlines()] == [
        {"tracing": 1, "not_traced": []},
        {"channel": name, "traced": 0, "missed": 0},
    ]
    assert len(receiver.get_many(COUNT)) == COUNT
    sender.close()


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
