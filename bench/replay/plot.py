"""Plots a run with matplotlib: the speed of each peer relative to shmtree."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib import pyplot

from bench import charts
from bench.replay import peers

Row = dict[str, Any]
_MARKERS = "osD^vP"


def draw(rows: list[Row], path: Path) -> None:
    ours = {row["workload"]: row["rate"] for row in rows if row["peer"] == peers.OURS and row.get("rate")}
    places = {workload: -place for place, workload in enumerate(ours)}
    figure, axis = pyplot.subplots(figsize=(8, 0.3 * len(places) + 1.2))
    axis.axvline(1, color=charts.COLOURS[peers.OURS], linewidth=3, label=peers.OURS)
    for number, name in enumerate(name for name in peers.NAMES if name != peers.OURS):
        mine = [row for row in rows if row["peer"] == name and row.get("rate") and row["workload"] in ours]
        if not mine:
            continue
        is_bound = name in peers.BOUNDS
        style = {"color": charts.BOUND, "facecolor": "none"} if is_bound else {"color": charts.COLOURS[name]}
        rates = [row["rate"] / ours[row["workload"]] for row in mine]
        lines = [places[row["workload"]] for row in mine]
        axis.scatter(rates, lines, marker=_MARKERS[number], label=name, **style)
    axis.set(xscale="log", xlabel="rate, in times of shmtree's: left is slower")
    axis.set_yticks(list(places.values()), list(places))
    charts.name_ticks(axis.xaxis)
    axis.margins(y=0.02)
    axis.grid()
    axis.legend(loc="lower center", bbox_to_anchor=(0.3, 1), ncols=6, fontsize=9, frameon=False)
    charts.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="JSON that bench.replay wrote")
    parser.add_argument("plot", type=Path, help="PNG or SVG to write")
    options = parser.parse_args()
    draw(json.loads(options.results.read_text())["rows"], options.plot)


if __name__ == "__main__":
    main()
