"""Plots the results of a run: throughput over size, CPU, memory, latency."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from bench.competitors import NAMES, OURS
from bench.limits import COPY_FRESH, COPY_TOUCHED
from bench.measured import Row
from bench.workloads import WORKLOADS

_LIMITS = (COPY_TOUCHED, COPY_FRESH)


def draw(folder: Path, rows: list[Row]) -> list[Path]:
    measured = [row for row in rows if not row["problem"]]
    sizes = [row for row in measured if WORKLOADS[row["workload"]].kind == "stream"]
    blobs = [row for row in sizes if row["workload"].startswith("bytes")]
    arrays = [row for row in sizes if row["workload"].startswith("array")]
    return [
        *_over_size(
            folder / "throughput.svg", "messages per second", "items_per_s", {"bytes": blobs, "arrays": arrays}
        ),
        *_over_size(folder / "cpu.svg", "CPU us per message", "cpu_us_per_item", {"bytes": blobs, "arrays": arrays}),
        *_over_size(folder / "memory.svg", "peak MB", "peak_mb", {"bytes": blobs, "arrays": arrays}),
        *_latency(folder / "latency.svg", [row for row in measured if row["workload"] == "latency"]),
    ]


def _style(name: str) -> dict[str, Any]:
    if name in _LIMITS:
        return {"color": "0.5", "linestyle": ":" if name == COPY_FRESH else "--"}
    index = list(NAMES).index(name) if name in NAMES else len(NAMES)
    return {
        "color": matplotlib.colormaps["tab20"](index % 20),
        "linewidth": 2.6 if name.startswith(OURS) else 1.2,
        "marker": "o",
        "markersize": 3,
    }


def _over_size(path: Path, unit: str, key: str, panels: dict[str, list[Row]]) -> list[Path]:
    shown = {title: [row for row in rows if row.get(key)] for title, rows in panels.items()}
    shown = {title: rows for title, rows in shown.items() if rows}
    if not shown:
        return []
    figure, axes = pyplot.subplots(1, len(shown), figsize=(6 * len(shown), 5), squeeze=False, layout="constrained")
    for axis, (title, rows) in zip(axes[0], shown.items()):
        for name in _competitors(rows):
            points = [(WORKLOADS[row["workload"]].nbytes, row[key]) for row in rows if row["competitor"] == name]
            axis.plot(*zip(*sorted(points)), label=name, **_style(name))
        axis.set(xscale="log", yscale="log", xlabel="bytes per message", ylabel=unit, title=title)
        axis.grid(alpha=0.3)
    return _save(figure, axes[0], path)


def _latency(path: Path, rows: list[Row]) -> list[Path]:
    if not rows:
        return []
    figure, axes = pyplot.subplots(1, 1, figsize=(7, 5), squeeze=False, layout="constrained")
    for row in rows:
        samples = sorted(row["samples"])
        share = [(i + 1) / len(samples) for i in range(len(samples))]
        axes[0][0].plot(samples, share, label=row["competitor"], **(_style(row["competitor"]) | {"marker": ""}))
    axes[0][0].set(xscale="log", xlabel="us, one way, receiver asleep", ylabel="share of messages", title="E")
    axes[0][0].grid(alpha=0.3)
    return _save(figure, axes[0], path)


def _competitors(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row["competitor"] for row in rows))


def _save(figure: Any, axes: Any, path: Path) -> list[Path]:
    handles: dict[str, Any] = {}
    for axis in axes:
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels())))
    figure.legend(handles.values(), handles.keys(), loc="outside right center", fontsize=8, frameon=False)
    figure.savefig(path)
    pyplot.close(figure)
    return [path]
