"""Writes figures into the pages: each part between its marks in README.md and in the two pages of benchmarks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.competitors import SHOWN
from bench.measured import Row
from bench.report import about_lines, number, table, two

ROOT = Path(__file__).resolve().parents[1]
PAGE, TABLES = "docs/benchmarks.md", "docs/benchmark-tables.md"  # charts and a few rows; all rows
END = "<!-- end -->\n"

MESSAGES = ["bytes-10B", "bytes-1KB", "bytes-100KB", "array-1MB", "array-32MB", "C", "D", "E", "F", "G"]
LARGE = ["array-1MB", "array-32MB", "array-1GB", "array-4GB", "array-10GB"]
LATENCIES = ["latency", "ping-pong", "busy"]
PLOTTED = ["bytes-1MB", "bytes-10MB", "bytes-100MB", "array-100KB"]
WORKLOADS = list(dict.fromkeys([*MESSAGES, *PLOTTED, *LATENCIES, *LARGE]))  # those that the pages show
FEW_MESSAGES = {"E": "dict of five numbers", "C": "RL transition", "array-1MB": "array of 1 MB"}
PLOTS = {
    "demo": "Samples per second and CPU time per sample of the demo",
    "spdl_arena": "Rate of SPDL's transports over the size of an item",
}
PROGRAMS = {"demo": "README.md", "dataloader": TABLES, "spdl_arena": TABLES}  # with the page of their figures


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
    """Replaces the figures of `./dev bench` in both pages, and the charts of the page of benchmarks."""
    tables = ROOT / TABLES
    replace_part(tables, "queues", f"{measured(about)}\n{_table(MESSAGES, 'items_per_s', rows)}")
    replace_part(tables, "cpu", _table(MESSAGES, "cpu_us_per_item", rows))
    replace_part(tables, "memory", _table([name for name in MESSAGES if name not in ("D", "E")][2:], "peak_mb", rows))
    replace_part(tables, "large", _table(LARGE, "gb_per_s", rows))
    times = table("", LATENCIES, "one_way_us", two("one_way_us"), rows).partition("\n\n")[2]
    replace_part(tables, "latency", times)
    few = [row for row in rows if row["competitor"] in SHOWN]
    rates = _table(list(FEW_MESSAGES), "items_per_s", few).partition("\n")[2]
    head = f"| messages per second | {' | '.join(FEW_MESSAGES.values())} |\n"
    where = f"Measured on {about['time'][:10]} with commit {about['commit']}, on {about['cpus']} x {about['cpu']}.\n"
    replace_part(ROOT / PAGE, "queues", f"{head}{rates}\n{where}")
    for plot in plots:
        shutil.copy(plot, ROOT / "docs" / plot.name)


def update_programs(results: Path) -> None:
    """Replaces the figures of the demo and of loaders."""
    for program, page in PROGRAMS.items():
        text = (results / f"{program}.md").read_text() + _plot(program, results, ROOT / page)
        replace_part(ROOT / page, program, text)


def measured(about: dict[str, Any]) -> str:
    return f"Measured on {about['time'][:10]} with commit {about['commit']}. {about_lines(about)}"


def _table(columns: list[str], key: str, rows: list[Row]) -> str:
    return table("", columns, key, number(key), rows).partition("\n\n")[2]


def _plot(program: str, results: Path, page: Path) -> str:
    """Copies the plot of a program to the docs, and returns the line that shows it on the page."""
    name = f"{program}.svg"
    if not (results / name).exists():
        return ""
    shutil.copy(results / name, ROOT / "docs" / name)
    return f"\n![{PLOTS[program]}]({'' if page.parent.name == 'docs' else 'docs/'}{name})\n"
