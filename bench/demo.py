"""Runs the comparison of `./dev demo` several times, and writes a table and a picture of the medians.

python -m bench.demo [--runs 3] [arguments of examples/actors_to_learner.py]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import machine, markdown

DEMO = Path(__file__).parents[1] / "examples" / "actors_to_learner.py"
METRICS = {"samples_per_s": "samples/s", "cpu_ms": "CPU ms per sample"}


def run_demo(more: list[str]) -> list[dict[str, Any]]:
    """Runs the demo once. Returns a row per transport."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "demo.json"
        subprocess.run([sys.executable, DEMO, "--replay-seconds", "0", "--json", out, *more], check=True)
        return [
            {
                "transport": each["transport"],
                "samples_per_s": each["samples"] / each["seconds"],
                "cpu_ms": 1e3 * each["cpu_seconds"] / each["samples"],
            }
            for each in json.loads(out.read_text())
        ]


def medians(runs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [
        {"transport": rows[0]["transport"]} | {key: statistics.median(row[key] for row in rows) for key in METRICS}
        for rows in zip(*runs)
    ]


def shown(key: str, row: dict[str, Any]) -> str:
    return f"{row[key]:,.0f}" if key == "samples_per_s" else f"{row[key]:.2f}"


def table(rows: list[dict[str, Any]]) -> str:
    lines = [[row["transport"], *(shown(key, row) for key in METRICS)] for row in rows]
    return markdown.table(["two actors, one learner", *METRICS.values()], lines)


def draw(path: Path, rows: list[dict[str, Any]]) -> None:
    from matplotlib import pyplot

    from bench import charts

    figure, axes = pyplot.subplots(1, len(METRICS), figsize=(8, 1.2), sharey=True)
    figure.subplots_adjust(wspace=0.25)
    for axis, (key, unit), better in zip(axes, METRICS.items(), ("more", "less")):
        colours = [charts.COLOURS[row["transport"]] for row in rows]
        bars = axis.barh([row["transport"] for row in rows], [row[key] for row in rows], color=colours)
        axis.bar_label(bars, [shown(key, row) for row in rows], padding=3)
        axis.set(xticks=[])
        axis.set_title(f"{unit} ({better} is better)", fontsize=11)
        axis.margins(x=0.2)
        axis.spines["bottom"].set_visible(False)
    axes[0].invert_yaxis()
    charts.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=machine.RESULTS)
    options, more = parser.parse_known_args()
    about = machine.describe({})
    runs = [run_demo(more) for _ in range(options.runs)]
    about["load_after"] = machine.load()
    rows = medians(runs)
    machine.save("demo", about, options.out, rows=rows, runs=runs)
    where = f"{about['cpus']} x {about['cpu']}"
    text = f"{table(rows)}\n{machine.dated(about)}Medians of {options.runs} runs on {where}.\n"
    (options.out / "demo.md").write_text(text)
    machine.draw_if_possible(draw, options.out / "demo.svg", rows)


if __name__ == "__main__":
    main()
