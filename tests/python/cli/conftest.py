"""Fixtures of the tests of `shmtree run`."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from run_programs import LIMIT_S, Ran, Run, command


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    """Returns program(text), which writes a script."""

    def write(text: str) -> Path:
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def run(tmp_path: Path, program: Callable[[str], Path]) -> Run:
    """Returns run(text, *arguments, options=(), env={}), which runs a script under `shmtree run`."""

    def run_program(
        text: str, *arguments: str, options: tuple[str, ...] = (), env: dict[str, str] | None = None
    ) -> Ran:
        path, report = program(text), tmp_path / "report.json"
        ran = subprocess.run(
            command("--report", str(report), *options, str(path), *arguments),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            cwd=tmp_path,
            env={**os.environ, **(env or {})},
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr, json.loads(report.read_text()))

    return run_program
