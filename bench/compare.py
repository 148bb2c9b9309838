"""Compares two builds of shmtree: runs the same workloads in turns, and prints the ratios of their figures.

    ./dev compare COMMIT [workloads]

builds COMMIT separately and compares the current tree with it. This tree's `bench` measures both, in a new process for
each turn. A ratio above 1 means that this tree is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import markdown
from bench.report import short

ROOT = Path(__file__).resolve().parents[1]

# The compared figures of a workload, and the function that picks the better of two.
FIGURES = {"items_per_s": max, "cpu_us_per_item": min, "encode_us": min, "decode_us": min, "cold_ms": min}

Figures = dict[tuple[str, str], float]


def turn(site: Path, options: argparse.Namespace) -> Figures:
    """Runs all workloads once, with the package in `site`."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "bench", *options.workloads, "--competitors", "shmtree", "--runs", "1"]
        command += ["--seconds", str(options.seconds), "--out", out]
        path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
        subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, stderr=subprocess.DEVNULL, check=True)
        rows = json.loads(Path(out, "bench.json").read_text())["rows"]
    problems = [f"{row['workload']}: {row['problem']}" for row in rows if row.get("problem")]
    if problems:
        raise SystemExit("compare: " + "; ".join(problems))
    ours = [row for row in rows if row["competitor"] == "shmtree"]  # the other rows are copies, for scale
    return {(row["workload"], figure): row[figure] for row in ours for figure in FIGURES if row.get(figure)}


def ratios(before: list[Figures], after: list[Figures]) -> list[list[str]]:
    """Returns a row per figure: both medians, and the median, minimum and maximum of the ratios of each round."""
    table = []
    for workload, figure in before[0]:
        old = [turn[workload, figure] for turn in before]
        new = [turn[workload, figure] for turn in after]
        gains = [b / a if FIGURES[figure] is max else a / b for a, b in zip(old, new, strict=True)]
        ratio = f"{statistics.median(gains):.2f} ({min(gains):.2f} to {max(gains):.2f})"
        table.append([workload, figure, short(statistics.median(old)), short(statistics.median(new)), ratio])
    return table


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./dev compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="folder with the other package")
    parser.add_argument("after", type=Path, help="folder with the package of this tree")
    parser.add_argument("workloads", nargs="*", default=["E", "D", "bytes-1KB", "array-1MB"], help="names or patterns")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.2, help="approximate seconds of a run")
    options = parser.parse_args()
    before: list[Figures] = []
    after: list[Figures] = []
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        order = [(before, options.before), (after, options.after)]
        for figures, site in order if number % 2 == 0 else reversed(order):
            figures.append(turn(site, options))
    print(markdown.table(["", "figure", "before", "now", "times"], ratios(before, after), labels=2), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
