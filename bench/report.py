"""Turns rows of figures into lines on the screen, JSON, Markdown and plots."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import leaves, machine, targets
from bench import markdown as tables
from bench.measured import Row
from bench.workloads import WORKLOADS, Workload

# ---------------------------------------------------------------- figures as people read them


def short(value: float) -> str:
    """Formats a number with up to three digits: 1.2 M, 45 k, 8.1."""
    for limit, unit in ((1e6, " M"), (1e3, " k")):
        if value >= 0.9995 * limit:
            value, suffix = value / limit, unit
            break
    else:
        suffix = ""
    return f"{value:.3g}{suffix}" if value < 100 else f"{value:.0f}{suffix}"


def spread(measured: Row) -> str:
    runs = measured["all_items_per_s"]
    return f"{short(min(runs))} to {short(max(runs))}"


def main_figure(measured: Row) -> str:
    """Returns the text of one line on the screen."""
    if measured["problem"]:
        return str(measured["problem"])
    if "items_per_s" in measured:
        text = f"{short(measured['items_per_s']):>8}/s ({spread(measured)})"
        if measured["gb_per_s"] > 0:
            text += f", {measured['gb_per_s']:.3g} GB/s"
        if "cpu_us_per_item" in measured:
            text += f", CPU {short(measured['cpu_us_per_item'])} us"
        if measured.get("peak_mb"):
            text += f", {short(measured['peak_mb'])} MB"
        if "put_per_s" in measured:
            text += f", put {short(measured['put_per_s'])}/s, get {short(measured['get_per_s'])}/s"
        return text
    if "one_way_us" in measured:
        return ", ".join(f"{part} {short(measured['one_way_us'][part])}" for part in ("p50", "p99", "p99.9")) + " us"
    if "wake_us" in measured:
        return ", ".join(f"{part} {short(measured['wake_us'][part])}" for part in ("p50", "p95", "max")) + " us"
    if "cold_ms" in measured:
        return f"{short(measured['cold_ms'])} ms"
    return f"encode {short(measured['encode_us'])} us, decode {short(measured['decode_us'])} us"


def show(workload: Workload, rows: list[Row]) -> None:
    print(f"\n{workload.name}: {workload.about}")
    for measured in rows:
        print(f"  {measured['competitor']:30} {main_figure(measured)}", flush=True)


# ---------------------------------------------------------------- Markdown

Figure = Callable[[Row], str]


def number(key: str, part: str = "") -> Figure:
    def figure(measured: Row) -> str:
        value = measured[key][part] if part else measured[key]
        return short(value)

    return figure


def two(key: str) -> Figure:
    return lambda measured: f"{short(measured[key]['p50'])} / {short(measured[key]['p99'])}"


def _names(*kinds: str, at_least: int = 0) -> list[str]:
    return [w.name for w in WORKLOADS.values() if w.kind in kinds and w.nbytes >= at_least]


_STREAMS = [name for name in _names("stream") if not name.startswith("many")]

# Title, workloads in columns, figure, format of a cell.
TABLES: list[tuple[str, list[str], str, Figure]] = [
    ("Messages per second at the consumer", _STREAMS, "items_per_s", number("items_per_s")),
    ("GB per second at the consumer", _names("stream", at_least=100_000), "gb_per_s", number("gb_per_s")),
    ("CPU microseconds of both sides per message", _STREAMS, "cpu_us_per_item", number("cpu_us_per_item")),
    ("Memory at the peak, MB", _names("stream", at_least=100_000), "peak_mb", number("peak_mb")),
    ("Milliseconds to the first message of a channel", _STREAMS, "first_ms", number("first_ms")),
    ("Microseconds of a put, p50 / p99", _STREAMS, "put_us", two("put_us")),
    ("Microseconds of a get, p50 / p99", _STREAMS, "get_us", two("get_us")),
    ("Several producers and consumers, E per second", [f"many-{n}" for n in ("1x1", "1x4", "4x1", "4x4", "16x16")],
     "items_per_s", number("items_per_s")),
    ("First consumer done / last one", [f"many-{n}" for n in ("1x4", "4x4", "16x16")], "fairness",
     number("fairness")),
    ("In place, and through a third process, messages per second", _names("loan", "forward"), "items_per_s",
     number("items_per_s")),
    ("10,000 deep, per second: put", ["deep"], "put_per_s", number("put_per_s")),
    ("10,000 deep, per second: get", ["deep"], "get_per_s", number("get_per_s")),
    *(
        (f"A put that waits, from the get that makes room to its return: us, {part}", _names("wake"), "wake_us",
         number("wake_us", part))
        for part in ("p50", "p95", "max")
    ),
    ("Creation to first message, ms", ["cold"], "cold_ms", number("cold_ms")),
    ("Encode, us", _names("codec"), "encode_us", number("encode_us")),
    ("Decode, us", _names("codec"), "decode_us", number("decode_us")),
    *(
        (f"One way, us, {part}", ["latency", "ping-pong", "busy"], "one_way_us", number("one_way_us", part))
        for part in ("p50", "p99", "p99.9")
    ),
]  # fmt: skip


def table(title: str, columns: list[str], key: str, figure: Figure, rows: list[Row]) -> str:
    """Formats competitors as rows and workloads as columns. Returns no table if it would have no figure."""
    by = {(measured["workload"], measured["competitor"]): measured for measured in rows}
    present = [name for name in columns if any(m["workload"] == name and key in m for m in rows)]
    if not present:
        return ""
    lines = []
    for competitor in dict.fromkeys(m["competitor"] for m in rows if m["workload"] in present):
        found = [by.get((name, competitor), {}) for name in present]
        cells = [figure(one) if key in one else _why_not(one) for one in found]
        if any(cells):
            lines.append([competitor, *cells])
    return f"### {title}\n\n" + tables.table(["", *present], lines)


def _why_not(measured: Row) -> str:
    """Returns the text of a cell without a figure. The list below the tables has the whole reason."""
    problem = measured.get("problem", "")
    return next((word for word in ("not installed", "stuck") if problem.startswith(word)), "")


def problems(rows: list[Row]) -> str:
    """Lists the workloads without figures: one line per competitor and reason."""
    names: dict[tuple[str, str], list[str]] = {}
    for measured in rows:
        if measured["problem"]:
            names.setdefault((measured["competitor"], measured["problem"]), []).append(measured["workload"])
    if not names:
        return ""
    lines = [f"- {competitor}: {problem} ({', '.join(where)})" for (competitor, problem), where in names.items()]
    return "\n".join(["### Without figures\n", *lines]) + "\n"


def markdown(about: dict[str, Any], rows: list[Row]) -> str:
    parts = [f"# Measured {about['time']}\n", about_lines(about), targets.markdown(rows)]
    parts += [table(*layout, rows) for layout in TABLES]
    parts += [leaves.table(rows), problems(rows)]
    return "\n".join(part for part in parts if part)


def about_lines(about: dict[str, Any]) -> str:
    return (
        f"{machine.line(about)} before, {about['load_after']} after. Medians of {about['runs']} runs, in which the "
        f"competitors take turns. {about['minutes']} minutes in all.\n"
    )


# ---------------------------------------------------------------- files


def write(folder: Path, about: dict[str, Any], rows: list[Row]) -> list[Path]:
    """Writes JSON, Markdown and, with matplotlib, plots. Returns the plots."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps({"machine": about, "rows": rows}, indent=1) + "\n")
    (folder / "bench.md").write_text(markdown(about, rows))
    try:
        from bench import plots
    except ImportError as error:
        print(f"no plots: {error}", file=sys.stderr)
        return []
    return plots.draw(folder, rows)
