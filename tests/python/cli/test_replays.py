"""The commands save and load."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_command_line import run_main

import shmtree
from shmtree.replay import ReplayBuffer

pytestmark = pytest.mark.usefixtures("runtime_directory")


def named(rows: int, name: str = "experience") -> ReplayBuffer:
    buffer = ReplayBuffer(1000, example={"n": 0}, name=name)
    for number in range(rows):
        buffer.add({"n": number})
    return buffer


def numbers(buffer: ReplayBuffer) -> list[int]:
    return sorted(buffer.sample(len(buffer), replace=False).data["n"].tolist())


class Loader:
    """The command load, from the line on that it prints."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "shmtree", "load", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=100)

    def end(self, number: int) -> tuple[int, str, str]:
        self.process.send_signal(number)
        out, errors = self.process.communicate(timeout=100)
        return self.process.returncode, out, errors


def test_save_writes_a_named_buffer(tmp_path: Path) -> None:
    buffer = named(50)
    done = run_main("save", "experience", "--out", str(tmp_path / "saved"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"saved 50 rows of experience to {tmp_path / 'saved'}: ")
    assert numbers(ReplayBuffer.load(tmp_path / "saved")) == list(range(50))
    assert len(buffer) == 50


def test_save_prints_json(tmp_path: Path) -> None:
    _buffer = named(50)
    out = str(tmp_path / "saved")
    first, second = (json.loads(run_main("save", "experience", "--out", out, "--json").stdout) for _ in range(2))
    assert first.items() >= {"saved": 50, "name": "experience", "out": out, "save": 1}.items()
    assert first["nbytes"] == first["written"] > 0
    assert (second["save"], second["written"], second["nbytes"]) == (2, 0, first["nbytes"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_load_keeps_the_buffer_until_a_signal(number: int, tmp_path: Path) -> None:
    named(50).save(tmp_path / "saved")
    with Loader(str(tmp_path / "saved"), "--name", "again") as loader:
        assert loader.line == f"loaded 50 rows from {tmp_path / 'saved'} as again\n"
        with ReplayBuffer.open("again") as buffer:
            assert numbers(buffer) == list(range(50))
        assert loader.end(number) == (0, "", "")
    with pytest.raises(FileNotFoundError):
        ReplayBuffer.open("again")


def test_processes_that_open_a_loaded_buffer_keep_it(tmp_path: Path) -> None:
    named(50).save(tmp_path / "saved")
    with Loader(str(tmp_path / "saved"), "--name", "again") as loader:
        buffer = ReplayBuffer.open("again")
        assert loader.end(signal.SIGTERM) == (0, "", "")
    buffer.add({"n": 50})
    assert numbers(ReplayBuffer.open("again")) == list(range(51))


def test_load_with_a_capacity_keeps_the_newest_rows(tmp_path: Path) -> None:
    named(50).save(tmp_path / "saved")
    with Loader(str(tmp_path / "saved"), "--name", "again", "--capacity", "10", "--json") as loader:
        said = json.loads(loader.line)
        assert said == {"loaded": said["loaded"], "path": str(tmp_path / "saved"), "name": "again"}
        buffer = ReplayBuffer.open("again")
        assert buffer.capacity == 10
        assert numbers(buffer) == list(range(50 - said["loaded"], 50))


def error_of(*arguments: str) -> str:
    done = run_main(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("shmtree: ") and done.stderr.count("\n") == 1
    return done.stderr


def test_save_of_an_unknown_name_is_an_error(tmp_path: Path) -> None:
    assert 'no object named "nothing"' in error_of("save", "nothing", "--out", str(tmp_path / "saved"))
    assert not (tmp_path / "saved").exists()


def test_save_of_a_channel_is_an_error(tmp_path: Path) -> None:
    _ends = shmtree.create_pair(name="samples")
    error = error_of("save", "samples", "--out", str(tmp_path / "saved"))
    assert 'the name "samples" belongs to a channel' in error
    assert not (tmp_path / "saved").exists()


def test_save_replaces_no_other_files(tmp_path: Path) -> None:
    _buffer = named(5)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.tex").write_text("years of work")
    assert "has other files" in error_of("save", "experience", "--out", str(tmp_path / "notes"))
    assert os.listdir(tmp_path / "notes") == ["thesis.tex"]
    (tmp_path / "file").write_text("a file")
    assert str(tmp_path / "file") in error_of("save", "experience", "--out", str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "a file"
    named(5, "other").save(tmp_path / "saved")
    assert "another replay buffer" in error_of("save", "experience", "--out", str(tmp_path / "saved"))


def test_load_of_missing_or_corrupt_files_is_an_error(tmp_path: Path) -> None:
    assert f"no folder {tmp_path / 'saved'}" in error_of("load", str(tmp_path / "saved"), "--name", "again")
    named(50).save(tmp_path / "saved")
    (data,) = (tmp_path / "saved").glob("data-*")
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)
    assert f"{data.name}: was altered" in error_of("load", str(tmp_path / "saved"), "--name", "again")


def test_load_with_a_name_in_use_is_an_error(tmp_path: Path) -> None:
    buffer = named(50)
    buffer.save(tmp_path / "saved")
    error = error_of("load", str(tmp_path / "saved"), "--name", "experience")
    assert 'the name "experience" belongs to a replay buffer; choose another name' in error
    assert numbers(ReplayBuffer.open("experience")) == list(range(50))


@pytest.mark.parametrize("capacity", ["0", "many"])
def test_load_rejects_a_capacity_of_no_rows(capacity: str) -> None:
    done = run_main("load", "saved", "--name", "again", "--capacity", capacity)
    assert done.returncode == 2
    assert f"argument --capacity: '{capacity}'" in done.stderr or f"argument --capacity: {capacity}" in done.stderr
