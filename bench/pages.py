"""Writes figures into the pages: each part between its marks in the page of benchmarks, a few rows in the README."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.measured import Row
from bench.report import about_lines, number, table, two

ROOT = Path(__file__).resolve().parents[1]
PAGE = "docs/benchmarks.md"
END = "<!-- end -->\n"

MESSAGES = ["bytes-10B", "bytes-1KB", "bytes-100KB", "array-1MB", "array-32MB", "C", "D", "E", "F", "G"]
LARGE = ["array-1MB", "array-32MB", "array-1GB", "array-4GB", "array-10GB"]
LATENCIES = ["latency", "ping-pong", "busy"]
PLOTTED = ["bytes-1MB", "bytes-10MB", "bytes-100MB", "array-100KB"]
WORKLOADS = list(dict.fromkeys([*MESSAGES, *PLOTTED, *LATENCIES, *LARGE]))  # those that the pages show
README_MESSAGES = {"E": "dict of five numbers", "C": "RL transition", "array-1MB": "array of 1 MB"}
README_COMPETITORS = [
    "shmtree",
    "multiprocessing.Queue",
    "torch.multiprocessing",
    "faster-fifo",
    "pyzmq",
    "iceoryx2",
]
PLOTS = {
    "demo.svg": "Samples per second and CPU time per sample of the demo",
    "spdl_arena.svg": "Rate, CPU time and memory of SPDL's transports over the size of an item",
    "throughput.svg": "Messages per second over the size of a message",
    "cpu.svg": "CPU time per message over the size of a message",
    "memory.svg": "Peak memory over the size of a message",
    "latency.svg": "Distribution of the latency of one message",
}
PROGRAMS = {"demo": "README.md", "dataloader": PAGE, "spdl_arena": PAGE}  # with the page of their figures


def mark(part: str) -> str:
    """Returns the line before a part, which ends with the line END."""
    return f"<!-- {part}: written by ./dev bench --pages -->\n"


def replace_part(page: Path, part: str, text: str) -> None:
    before, found, rest = page.read_text().partition(mark(part))
    if not found:
        raise ValueError(f"{page} has no line {mark(part).strip()}, so its figures have no place")
    page.write_text(f"{before}{mark(part)}{text}{END}{rest.partition(END)[2]}")


def run_programs(results: Path) -> None:
    """Runs the programs of the demo and of loaders. Call it before pages change: figures name the commit."""
    for program in PROGRAMS:
        subprocess.run([sys.executable, "-m", f"bench.{program}", "--out", results], check=True)


def update(about: dict[str, Any], rows: list[Row], plots: list[Path]) -> None:
    """Replaces the figures of `./dev bench` in both pages, and the plots of the page of benchmarks."""
    page = ROOT / PAGE
    rates = _table(MESSAGES, "items_per_s", rows)
    replace_part(page, "queues", f"{measured(about)}\n{rates}{_plot('throughput.svg', plots)}")
    cpu = _table(MESSAGES, "cpu_us_per_item", rows)
    replace_part(page, "cpu", f"{cpu}{_plot('cpu.svg', plots)}")
    memory = _table([name for name in MESSAGES if name not in ("D", "E")][2:], "peak_mb", rows)
    replace_part(page, "memory", f"{memory}{_plot('memory.svg', plots)}")
    replace_part(page, "large", _table(LARGE, "gb_per_s", rows))
    times = table("", LATENCIES, "one_way_us", two("one_way_us"), rows).partition("\n\n")[2]
    replace_part(page, "latency", f"{times}{_plot('latency.svg', plots)}")
    few = [row for row in rows if row["competitor"] in README_COMPETITORS]
    rates = _table(list(README_MESSAGES), "items_per_s", few).partition("\n")[2]
    head = f"| messages per second | {' | '.join(README_MESSAGES.values())} |\n"
    where = f"Measured on {about['time'][:10]} with commit {about['commit']}, on {about['cpus']} x {about['cpu']}.\n"
    replace_part(ROOT / "README.md", "queues", f"{head}{rates}\n{where}")


def update_programs(results: Path) -> None:
    """Replaces the figures of the demo and of loaders."""
    for program, page in PROGRAMS.items():
        plot = _plot(f"{program}.svg", [results / f"{program}.svg"], ROOT / page)
        replace_part(ROOT / page, program, (results / f"{program}.md").read_text() + plot)


def measured(about: dict[str, Any]) -> str:
    return f"Measured on {about['time'][:10]} with commit {about['commit']}. {about_lines(about)}"


def _table(columns: list[str], key: str, rows: list[Row]) -> str:
    return table("", columns, key, number(key), rows).partition("\n\n")[2]


def _plot(name: str, plots: list[Path], page: Path = ROOT / PAGE) -> str:
    """Copies a plot to the docs, and returns the line that shows it on the page."""
    found = next((plot for plot in plots if plot.name == name), None)
    if found is None or not found.exists():
        return ""
    shutil.copy(found, ROOT / "docs" / name)
    return f"\n![{PLOTS[name]}]({'' if page.parent.name == 'docs' else 'docs/'}{name})\n"
