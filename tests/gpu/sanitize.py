"""Runs sanitized.py under compute-sanitizer. Exits with 77 (skipped) without it, or without a GPU that it supports."""

from __future__ import annotations

import glob
import re
import shutil
import subprocess
import sys
from pathlib import Path

SKIPPED = 77
WATCHED = Path(__file__).with_name("sanitized.py")


def skip(why: str) -> None:
    print(why)
    sys.exit(SKIPPED)


def find_tool() -> str | None:
    found = shutil.which("compute-sanitizer")
    return found or next(iter(sorted(glob.glob("/usr/local/cuda*/bin/compute-sanitizer"), reverse=True)), None)


def main() -> None:
    sys.path.insert(0, str(WATCHED.parents[1] / "python" / "support"))
    from cuda_processes import gpus

    if gpus() == 0:
        skip("no GPU")
    tool = find_tool()
    if tool is None:
        skip("compute-sanitizer is not installed")
    # Do not report errors of driver calls: torch and CuPy query many features that do not exist, and handle the errors.
    options = ["--tool", "memcheck", "--report-api-errors", "no", "--target-processes", "all"]
    done = subprocess.run(
        [str(tool), *options, sys.executable, str(WATCHED)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    print(done.stdout)
    if "Device not supported" in done.stdout:
        skip("compute-sanitizer does not support this device")
    errors = [int(count) for count in re.findall(r"ERROR SUMMARY: (\d+) error", done.stdout)]
    print(f"{sum(errors)} errors in {len(errors)} processes, exit code {done.returncode}")
    sys.exit(0 if done.returncode == 0 and errors and not any(errors) else 1)


if __name__ == "__main__":
    main()
