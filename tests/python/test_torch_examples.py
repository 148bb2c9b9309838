"""The examples for PyTorch run, without a warning, and what they train learns."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def output_of(name: str) -> list[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout.splitlines()


def test_a_network_learns_from_a_data_loader() -> None:
    right = [int(re.fullmatch(r"epoch \d: (\d+) % right", line)[1]) for line in output_of("dataloader_training.py")]
    assert len(right) == 3 and right[-1] > 95


def test_three_processes_train_one_model() -> None:
    before, after = output_of("hogwild.py")
    assert int(before.partition("%")[0]) > 30
    assert int(after.partition("%")[0]) < 10
    assert after.endswith("after [19200, 19200, 19200] samples")
