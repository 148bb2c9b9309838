"""Parts of tests/gpu/run. Each part is a program with a time limit, and leaves no processes behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

SKIPPED = 77  # exit code of a program that cannot run here; its last line says why
_TO_END_S = 10.0


@dataclass
class Result:
    part: str
    verdict: str  # passed, failed, ended (exceeded its time limit) or skipped
    seconds: float = 0.0
    why: str = ""
    counts: dict[str, int] = field(default_factory=dict)  # number of tests that passed, failed, and were skipped
    skips: dict[str, list[str]] = field(default_factory=dict)  # skipped tests by reason
    figures: Any = None

    @property
    def is_bad(self) -> bool:
        return self.verdict in ("failed", "ended")


def run(part: str, command: Sequence[str], seconds: float, log: Path, environment: dict[str, str]) -> Result:
    """Runs a program, with its output in `log`, and returns the result."""
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end_session(process)
    passed = time.monotonic() - began
    if code is None:
        return Result(part, "ended", passed, f"not over after {seconds:.0f} s: {_last_line(log)}")
    if code == SKIPPED:
        return Result(part, "skipped", passed, _last_line(log))
    return Result(part, "failed" if code else "passed", passed, f"exit code {code}" if code else "")


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """Kills the program and the processes that it left. Does not wait for processes that the kernel cannot end."""
    deadline = time.monotonic() + _TO_END_S
    while (left := _of_session(process.pid)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        process.poll()
        time.sleep(0.02)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0, deadline - time.monotonic()))


def _of_session(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(state[3]) == session and state[0] not in "ZX":
                    found.append(int(entry.name))
    return found


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].strip()[:200] if lines else "it said nothing"


def read_tests(result: Result, report: Path) -> None:
    """Reads pytest's report. If every test was skipped, the part counts as skipped."""
    if not report.exists():
        return
    result.counts = {"passed": 0, "failed": 0, "skipped": 0}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        skipped = case.find("skipped")
        if skipped is not None:
            reason = " ".join((skipped.get("message") or "no reason given").removeprefix("Skipped: ").split())
            name = case.get("name") or case.get("classname") or "?"
            result.skips.setdefault(reason, []).append(name)
            result.counts["skipped"] += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            result.counts["failed"] += 1
        else:
            result.counts["passed"] += 1
    if result.verdict == "passed" and not result.counts["passed"]:
        result.verdict = "skipped"
        result.why = ", ".join(result.skips) or "there are no such tests"
