"""Short runs of tests/fuzz/bindings.py, which searches for messages that crash the bindings."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "fuzz" / "bindings.py"


def test_grammar_of_new_frames_covers_every_kind() -> None:
    header = (PROGRAM.parents[2] / "include" / "shmtree" / "base" / "kind.h").read_text()
    kinds = header.partition("enum class Kind ")[2].partition("};")[0]
    program = (PROGRAM.parent / "bindings_frames.py").read_text()
    grammar = ast.literal_eval(program.partition("GRAMMAR = ")[2].partition("  # fmt: skip")[0])
    assert list(grammar) == [int(number) for number in re.findall(r"^  k\w+ = ([1-9]\d*),", kinds, re.MULTILINE)]


def search(target: str, found: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), target, "--seed", "20261126", "--found", str(found), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("target", ["unpack", "describe", "channel", "service"])
def test_short_search_finds_nothing(target: str, tmp_path: Path) -> None:
    done = search(target, tmp_path, "--runs", "3000")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{target}: 3000 runs, ")


def test_costly_execution_is_reported_and_its_input_kept(tmp_path: Path) -> None:
    done = search("unpack", tmp_path, "--runs", "3000", "--max-mib", "-1")
    assert done.returncode == 1 and "too costly" in done.stderr
    kept = tmp_path / "bindings-unpack-last"
    assert str(kept) in done.stderr
    again = tmp_path / "input"
    kept.rename(again)
    assert search("unpack", tmp_path, "--replay", str(again)).stdout.startswith(
        "unpack: 1 runs, 1 of them read a value"
    )
