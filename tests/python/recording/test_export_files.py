"""Files that the command line exports: only their user can read them, and no value causes a traceback."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmtree
from shmtree._codec import whole_files
from shmtree.cli import output_files
from shmtree.recording import _mcap
from shmtree.replay import ReplayBuffer


@pytest.fixture(autouse=True)
def wide_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def recording(path: Path, *values: Any) -> Path:
    writer = _mcap.Writer(path)
    channel = writer.add_channel("a")
    with writer:
        writer.begin()
        writer.write(channel, [(10**18 + n, n, bytes(shmtree.pack(value))) for n, value in enumerate(values)])
    return path


def export(path: Path, form: str, out: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shmtree", "export", str(path), "--format", form, "--out", str(out)]
    added = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=added)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def in_itself() -> list[Any]:
    value: list[Any] = [1]
    value.append(value)
    return value


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"in": [value]}
    return value


@pytest.mark.parametrize("value", [in_itself(), deep(450), 10**5000], ids=["cycle", "deep", "huge int"])
def test_export_error_names_the_message(value: Any, tmp_path: Path) -> None:
    path = recording(tmp_path / "a.mcap", 1, value)
    ran = export(path, "jsonl", tmp_path / "out")
    assert ran.returncode == 1 and "Traceback" not in ran.stderr
    assert "message 1 of channel 'a'" in ran.stderr


def test_export_of_a_value_with_100_levels(tmp_path: Path) -> None:
    path = recording(tmp_path / "a.mcap", deep(90))
    assert export(path, "jsonl", tmp_path / "out").returncode == 0


def test_only_its_user_can_read_an_exported_file(tmp_path: Path) -> None:
    path, out = recording(tmp_path / "a.mcap", 1), tmp_path / "out"
    for _ in range(2):  # the second time the file exists
        ran = export(path, "jsonl", out)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert mode_of(out) == 0o600 and len(out.read_text().splitlines()) == 1
    assert mode_of(path) == 0o600


def test_only_its_user_can_read_a_parquet_file(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path, out = recording(tmp_path / "a.mcap", 1), tmp_path / "out"
    assert export(path, "parquet", out).returncode == 0
    assert mode_of(out) == 0o600
    assert export(recording(tmp_path / "b.mcap", in_itself()), "parquet", out).returncode == 1


def earlier_export(path: Path) -> Path:
    path.write_text("before")
    path.chmod(0o600)
    return path


def without_pyarrow(folder: Path) -> dict[str, str]:
    """Returns environment variables with which Python does not find pyarrow."""
    folder.mkdir()
    (folder / "pyarrow.py").write_text("raise ModuleNotFoundError('none', name='pyarrow')\n")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_failed_export_keeps_the_existing_file(form: str, tmp_path: Path) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    path, out = recording(tmp_path / "a.mcap", 1, in_itself()), earlier_export(tmp_path / "out")
    ran = export(path, form, out)
    assert ran.returncode == 1 and "Traceback" not in ran.stderr
    assert out.read_text() == "before" and sorted(os.listdir(tmp_path)) == ["a.mcap", "out"]


def test_export_without_pyarrow_keeps_the_existing_file(tmp_path: Path) -> None:
    path, out = recording(tmp_path / "a.mcap", 1), earlier_export(tmp_path / "out")
    ran = export(path, "parquet", out, **without_pyarrow(tmp_path / "modules"))
    assert ran.returncode == 1 and "pip install pyarrow" in ran.stderr
    assert out.read_text() == "before" and sorted(os.listdir(tmp_path)) == ["a.mcap", "modules", "out"]


def test_export_to_a_symlink_replaces_its_target(tmp_path: Path) -> None:
    path, out = recording(tmp_path / "a.mcap", 1), earlier_export(tmp_path / "out")
    (tmp_path / "link").symlink_to(out)
    assert export(path, "jsonl", tmp_path / "link").returncode == 0
    assert (tmp_path / "link").is_symlink() and "value" in out.read_text() and mode_of(out) == 0o600


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o604])
def test_export_refuses_a_file_that_others_have_rights_to(mode: int, tmp_path: Path) -> None:
    path, out = recording(tmp_path / "a.mcap", 1), tmp_path / "out"
    out.write_text("before")
    out.chmod(mode)
    ran = export(path, "jsonl", out)
    assert ran.returncode == 1 and f"{mode:04o}" in ran.stderr
    assert out.read_text() == "before"


def refuse_new_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:  # a folder's mode would not stop root
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(whole_files.NewFile, "_create", refuse)


@pytest.mark.parametrize("mode", ["w", "wb"])
def test_folder_without_new_files_keeps_the_file_until_success(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = earlier_export(tmp_path / "out")
    refuse_new_files(monkeypatch)

    def write(contents: str, error: Exception | None) -> None:
        with output_files.replacing(str(out), mode) as file:
            file.write(contents if mode == "w" else contents.encode())
            if error is not None:
                raise error

    with pytest.raises(ValueError, match="in the middle"):
        write("part", ValueError("in the middle"))
    assert out.read_text() == "before"
    write("after", None)
    assert out.read_text() == "after" and os.listdir(tmp_path) == ["out"]


def test_new_export_names_its_file_if_the_folder_refuses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_new_files(monkeypatch)
    path = str(tmp_path / "out")
    with pytest.raises(PermissionError) as refused, output_files.replacing(path, "w"):
        pass
    assert refused.value.filename == path


def test_export_writes_to_a_pipe(tmp_path: Path) -> None:
    path = recording(tmp_path / "a.mcap", 1)
    ran = export(path, "jsonl", Path("/dev/stdout"))
    assert ran.returncode == 0 and ran.stdout.count("\n") == 1


def test_only_their_user_can_read_replay_files(tmp_path: Path) -> None:
    buffer = ReplayBuffer(100, example=np.zeros(3))
    with buffer.writer() as writer:
        writer.add(np.ones(3))
        buffer.save(tmp_path / "saved")
    files = list((tmp_path / "saved").iterdir())
    assert files and all(mode_of(each) == 0o600 for each in files if each.is_file())
