"""Completions of shells, and the man page."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_command_line import VERBS, run_main

import shmtree
from shmtree.cli.generated import SHELLS, completion
from shmtree.cli.main import make_parser

pytestmark = pytest.mark.usefixtures("runtime_directory")

# Completes the last word of a command line as bash does, and prints the candidates.
COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
_shtab_shmtree "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def bash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Returns a function that completes the words after `shmtree` in bash."""
    pytest.importorskip("shtab")
    script = tmp_path / "completion"
    script.write_text(completion(make_parser(), "bash"))
    program = tmp_path / "bin" / "shmtree"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m shmtree "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")

    def complete(*words: str) -> list[str]:
        command = ["bash", "--norc", "-c", COMPLETE, "bash", str(script), "shmtree", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
        assert done.stderr == ""
        return [each.strip() for each in done.stdout.splitlines() if each.strip()]

    return complete


def test_bash_completes_commands_options_and_choices(bash) -> None:
    assert sorted(bash("")) >= sorted(VERBS)
    assert bash("crash") == ["crashdump"]
    assert bash("record", "--rel") == ["--relay"]
    assert bash("export", "--format", "") == ["jsonl", "parquet"]
    assert "depth" in bash("top", "--sort", "")


def test_bash_completes_files_and_names(bash, tmp_path: Path) -> None:
    (tmp_path / "run.mcap").touch()
    _ends = shmtree.create_pair(name="samples"), shmtree.create_pair(name="two words")
    _parts = shmtree.create_pair(name="robot/lidar"), shmtree.create_pair(name="robot/camera")
    assert bash("play", "run.m") == ["run.mcap"]
    assert bash("inspect", "sam") == ["samples"]
    assert sorted(bash("play", "run.mcap", "--to", "")) == ["robot/camera", "robot/lidar", "samples"]
    assert bash("record", "robot/l") == ["robot/lidar"]
    assert bash("save", "sam") == ["samples"]
    (tmp_path / "checkpoint").mkdir()
    assert bash("load", "check") == ["checkpoint"]
    assert bash("metrics", "--allow-host", "sam") == []


@pytest.mark.parametrize("shell", SHELLS)
def test_completions_name_every_command(shell: str) -> None:
    pytest.importorskip("shtab")
    done = run_main("--print-completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert [verb for verb in VERBS if verb not in done.stdout] == []


def test_zsh_accepts_the_completion(tmp_path: Path) -> None:
    pytest.importorskip("shtab")
    zsh = shutil.which("zsh")
    if zsh is None:
        pytest.skip("there is no zsh here")
    (tmp_path / "_shmtree").write_text(completion(make_parser(), "zsh"))
    done = subprocess.run([zsh, "-f", "-n", "_shmtree"], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_argparse_manpage_makes_a_man_page_of_the_parser() -> None:
    pytest.importorskip("argparse_manpage")
    code = "from argparse_manpage.cli import main; main()"
    options = ["--module", "shmtree.cli.main", "--function", "make_parser", "--format", "single-commands-section"]
    done = subprocess.run(
        [sys.executable, "-c", code, *options], capture_output=True, text=True, timeout=120, check=True
    )
    heads = re.findall(r"^\.SH(?: |\n)(\w+)", done.stdout, re.M)
    assert heads == ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "COMMANDS", "COMMENTS"]
    assert [verb for verb in VERBS if f"shmtree {verb}" not in done.stdout] == []


def test_missing_package_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shtab.py").write_text("raise ModuleNotFoundError('none', name='shtab')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    done = run_main("--print-completion", "bash")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "shmtree: --print-completion needs shtab; run pip install 'shmtree[cli]'\n"
