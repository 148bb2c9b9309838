"""Plots the results of a run: rate and CPU time over the size of a message, and latency."""

from __future__ import annotations

from pathlib import Path

from matplotlib import pyplot

from bench import charts
from bench.competitors import SHOWN
from bench.limits import COPY_TOUCHED
from bench.measured import Row
from bench.workloads import GB, WORKLOADS


def draw(folder: Path, rows: list[Row]) -> list[Path]:
    """Draws each plot for which the rows have figures, and returns the files."""
    measured = [row for row in rows if not row["problem"]]
    sizes = [row for row in measured if WORKLOADS[row["workload"]].kind == "stream"]
    return [
        *_over_size(folder / "throughput.svg", "messages per second", "items_per_s", sizes),
        *_over_size(folder / "cpu.svg", "µs of CPU time per message", "cpu_us_per_item", sizes),
        *_latency(folder / "latency.svg", [row for row in measured if row["workload"] == "latency"]),
    ]


def _over_size(path: Path, unit: str, key: str, rows: list[Row]) -> list[Path]:
    shown = [
        row
        for row in rows
        if row.get(key)
        and row["competitor"] in (*SHOWN, COPY_TOUCHED)
        and WORKLOADS[row["workload"]].nbytes <= GB  # most competitors end there
    ]
    panels = {
        title: found
        for title, prefix in (("bytes objects", "bytes"), ("arrays", "array"))
        if (found := [row for row in shown if row["workload"].startswith(prefix)])
    }
    if not panels:
        return []
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4.2 * len(panels), 4.2), squeeze=False, sharey=True)
    figure.subplots_adjust(wspace=0.08)
    for axis, (title, found) in zip(axes[0], panels.items()):
        axis.set(xscale="log", yscale="log", xlabel="size of a message", title=title)
        ends = {}
        for name in (*SHOWN, COPY_TOUCHED):
            points = sorted((WORKLOADS[row["workload"]].nbytes, row[key]) for row in found if row["competitor"] == name)
            if points:
                look = charts.style(name) if name in SHOWN else {"color": charts.BOUND, "linestyle": "--"}
                axis.plot(*zip(*points), **look)
                ends[name] = points[-1][1]
        charts.name_ticks(axis.xaxis, "B", 2)
        charts.name_ticks(axis.yaxis)
        axis.grid()
    axes[0][0].set_ylabel(unit)
    charts.label_lines(axes[0][-1], ends)
    charts.save(figure, path)
    return [path]


def _latency(path: Path, rows: list[Row]) -> list[Path]:
    """Draws a bar per competitor from the median to the 99th percentile."""
    found = {row["competitor"]: row["one_way_us"] for row in rows if row.get("one_way_us")}
    names = [name for name in SHOWN if name in found]
    if not names:
        return []
    figure, axis = pyplot.subplots(figsize=(7, 0.45 * len(names) + 0.8))
    for place, name in enumerate(names):
        ends = found[name]["p50"], found[name]["p99"]
        axis.plot(ends, [place, place], color=charts.COLOURS[name], linewidth=3, marker="o", markersize=7)
        axis.annotate(f"{ends[0]:.3g}", (ends[0], place), (-8, 0), textcoords="offset points", ha="right", va="center")
        axis.annotate(f"{ends[1]:,.0f}", (ends[1], place), (8, 0), textcoords="offset points", va="center")
    axis.set_yticks(range(len(names)), names)
    axis.set(xscale="log", xlabel="µs from put to get, receiver asleep: median, 99th percentile")
    axis.margins(x=0.15, y=0.1)
    axis.invert_yaxis()
    charts.name_ticks(axis.xaxis)
    axis.grid(axis="x")
    charts.save(figure, path)
    return [path]
