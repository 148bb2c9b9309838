"""Progress bars: drawn on a terminal only, and never into the output of a command."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from terminals import pseudo_terminal

import shmtree
from shmtree.cli import progress
from shmtree.cli.progress import Bar
from shmtree.recording._mcap import Writer

pytestmark = pytest.mark.usefixtures("runtime_directory")

COUNT = 3000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Writer(tmp_path / "run.mcap") as writer:
        channel = writer.add_channel("a")
        writer.begin()
        writer.write(channel, [(10**18 + n * 10**7, n, bytes(shmtree.pack(n))) for n in range(COUNT)])
    return tmp_path / "run.mcap"


def run_with_errors_on(terminal: int, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-W", "error", "-m", "shmtree", *arguments]
    environment = {**os.environ, "TERM": "xterm"}
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=terminal, timeout=120, check=False, env=environment)


def drawn(terminal: int) -> str:
    """Returns what was drawn on a terminal so far."""
    os.set_blocking(terminal, False)
    read = b""
    try:
        while True:
            read += os.read(terminal, 1 << 16)
    except BlockingIOError:
        return read.decode()


@pytest.mark.parametrize(
    ("arguments", "what", "said"),
    [
        (["export", "FILE", "--format", "jsonl", "--out", "OUT", "--json"], "exporting", {"exported": COUNT}),
        (["play", "FILE", "--to", "a", "--rate", "100", "--json"], "playing", {"playing": COUNT}),
        (["record", "a", "--seconds", "0.3", "--out", "OUT", "--json"], "recording", {"recording": ["a"]}),
    ],
)
def test_bar_is_drawn_on_stderr_and_the_output_is_json(arguments, what, said, path: Path, tmp_path: Path) -> None:
    pytest.importorskip("rich")
    _ends = shmtree.create_pair(None, name="a")
    arguments = [{"FILE": str(path), "OUT": str(tmp_path / "out")}.get(each, each) for each in arguments]
    with pseudo_terminal() as (ours, theirs):
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        done = run_with_errors_on(theirs, *arguments)
        text = drawn(ours)
    assert done.returncode == 0, text
    assert what in text
    first = json.loads(done.stdout.splitlines()[0])
    assert said.items() <= first.items()


def test_bar_of_bytes_is_drawn_while_a_buffer_is_saved(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    buffer = shmtree.replay.ReplayBuffer(100, example=0, name="experience")
    buffer.add(1)
    with pseudo_terminal() as (ours, theirs):
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        done = run_with_errors_on(theirs, "save", "experience", "--out", str(tmp_path / "saved"), "--json")
        text = drawn(ours)
    assert (done.returncode, json.loads(done.stdout)["saved"]) == (0, 1), text
    assert "saving" in text


def test_no_bar_without_a_terminal(path: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "shmtree",
        "export",
        str(path),
        "--format",
        "jsonl",
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert len((tmp_path / "out").read_text().splitlines()) == COUNT


def test_bar_counts_without_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "is_shown", lambda: False)
    with Bar("counting") as bar:
        bar.start(3)
        assert list(bar.over("abc")) == ["a", "b", "c"]
        assert bar.done == 3


def test_parquet_export_counts_each_message_twice(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from shmtree.recording import Recording, _export, _playback

    counts: list[int] = []
    with open(tmp_path / "out", "wb") as out:
        _export.to_parquet(_playback.messages_of(Recording(path), None), out, False, counts.append)
    assert sum(counts) == 2 * COUNT
