"""Repeats SPDL's own benchmark of its arenas with ours: items of 1 to 64 MiB from a pipeline in a subprocess.

    python -m bench.spdl_arena

Items are bytes, NumPy arrays, torch tensors and, if spdl.io has found FFmpeg, its packets. They go through SPDL's plain
queue (which sends tensors as torch.multiprocessing does), its ring, its pool, and shmtree.spdl.SegmentPool. The
consumer reads one byte of each page of an item, except of packets. All four transports start together and take turns,
so that a slow moment of the machine affects all of them. CPU time includes both sides. Memory is the peak resident size
above that before the first item, with shared pages counted once.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from bench import machine, markdown, processes
from bench.report import short
from bench.roles import read_pages

KINDS = ("bytes", "numpy", "torch", "packets")
TRANSPORTS = ("queue", "SPDL ring", "SPDL pool", "shmtree")
BUFFER = 3  # items that the pipeline keeps ready
PLACES = 18  # in arenas that need a fixed size
METRICS = {"gb_per_s": "GB/s", "cpu_ms": "CPU ms per item", "peak_mb": "peak MB"}
PASS_BYTES = 1 << 30  # the start of a pass costs SPDL as much as twenty items of 32 MiB

Row = dict[str, Any]


@dataclass(frozen=True)
class Items:
    """The pipeline's source. The subprocess makes `count` items."""

    kind: str
    nbytes: int
    count: int

    def __iter__(self) -> Iterator[dict[str, Any]]:
        once = make(self.kind, self.nbytes)
        for _ in range(self.count):
            # A queue moves a tensor to shared memory when it first sends it. A real pipeline sends new tensors, so make
            # one each time.
            yield {"data": make(self.kind, self.nbytes) if self.kind == "torch" else once}


def make(kind: str, nbytes: int) -> Any:
    if kind == "bytes":
        return b"\1" * nbytes
    if kind == "numpy":
        return np.ones(nbytes // 4, np.float32)
    if kind == "torch":
        import torch

        torch.set_num_threads(1)  # its threads spin while they wait, which would count as CPU time
        return torch.ones(nbytes // 4, dtype=torch.float32)
    import spdl.io

    return spdl.io.demux_video(raw_video(nbytes))


def raw_video(nbytes: int) -> bytes:
    """Returns a video file of about `nbytes` bytes with uncompressed frames."""
    frame = b"FRAME\n" + b"\1" * (640 * 360 * 3 // 2)
    return b"YUV4MPEG2 W640 H360 F30:1 C420jpeg\n" + frame * (nbytes // len(frame))


def size_of(kind: str, item: Any) -> int:
    """Returns the number of bytes sent for the item, even for a wrong item, so that the check notices it."""
    if kind == "packets":
        return len(item.__getstate__())
    flat = np.frombuffer(item, np.uint8) if kind == "bytes" else np.asarray(item)
    if flat[0] != 1 or flat[-1] != 1:
        raise RuntimeError(f"{kind} arrived with {flat[0]} and {flat[-1]} at its ends, not 1")
    return int(flat.nbytes)


def make_arena(transport: str, nbytes: int) -> Any:
    """Creates the arena. Sizes SPDL's arenas as its own benchmark does: PLACES places, each twice the item size."""
    from spdl.pipeline import SharedMemoryRingBuffer, SharedMemorySegmentPool

    from shmtree.spdl import SegmentPool

    if transport == "SPDL ring":
        return SharedMemoryRingBuffer(PLACES * 2 * nbytes)
    if transport == "SPDL pool":
        return SharedMemorySegmentPool(2 * nbytes, PLACES)
    return SegmentPool() if transport == "shmtree" else None


def consume(transport: str, items: Items, told: Connection) -> None:
    """Runs the receiving process: one pass for each message in `told`."""
    from spdl.pipeline import PipelineBuilder, run_pipeline_in_subprocess

    try:
        nbytes = size_of(items.kind, make(items.kind, items.nbytes))
        arena = make_arena(transport, nbytes)
        builder: Any = PipelineBuilder()
        config = builder.add_source(items).add_sink(BUFFER).get_config()
        source = run_pipeline_in_subprocess(config, num_threads=1, arena=arena, buffer_size=BUFFER)
        gc.collect()
        told.send(nbytes)
        read = read_packets if items.kind == "packets" else read_item
        while told.recv() == "check":
            if [size_of(items.kind, item["data"]) for item in source] != [nbytes] * items.count:
                raise RuntimeError("the received item differs from the sent one")
            told.send("right")
        tree = [os.getpid(), *processes.descendants(os.getpid())]
        while True:
            told.send(one_pass(source, items.count, read, tree))
            if told.recv() != "pass":
                break
        del source
        gc.collect()
    except Exception as error:
        told.send(f"{type(error).__name__}: {error}".split("\n")[0][:200])


def read_item(item: Any) -> None:
    """Reads one byte of each page."""
    read_pages((item.numpy() if hasattr(item, "numpy") else item,))


def read_packets(item: Any) -> None:
    """Does nothing: only a decoder can read packets without a copy."""


def one_pass(source: Any, count: int, read: Callable[[Any], None], tree: list[int]) -> tuple[float, float]:
    """Returns seconds and CPU seconds per item."""
    cpu, began, seen = processes.cpu_seconds(tree), time.perf_counter(), 0
    for item in source:
        seen += 1
        read(item["data"])
        del item
    took = time.perf_counter() - began
    if seen != count:
        raise RuntimeError(f"only {seen} of {count} items arrived")
    return took / count, (processes.cpu_seconds(tree) - cpu) / count


class Side:
    """Controls one transport: requests passes and samples its memory."""

    def __init__(self, transport: str, items: Items) -> None:
        context = multiprocessing.get_context("spawn")
        self.row: Row = {"kind": items.kind, "mib": items.nbytes >> 20, "transport": transport, "problem": ""}
        self.passes: list[tuple[float, float]] = []
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=consume, args=(transport, items, theirs))
        self.process.start()
        theirs.close()
        self.nbytes = self.expect(int) or 0
        assert self.process.pid is not None
        self.tree = [self.process.pid, *processes.descendants(self.process.pid)]
        self.before = self.peak = processes.resident_bytes(self.tree)
        self.ask("check", str)

    def ask(self, what: str, kind: type) -> Any:
        if self.row["problem"]:
            return None
        self.pipe.send(what)
        while not self.pipe.poll(0.01):
            self.peak = max(self.peak, processes.resident_bytes(self.tree))
        return self.expect(kind)

    def expect(self, kind: type) -> Any:
        try:
            answer = self.pipe.recv()
        except EOFError:
            answer = f"the process ended with {self.process.exitcode}"
        if isinstance(answer, kind) and (kind is not str or answer == "right"):
            return answer
        self.row["problem"] = answer
        return None

    def run(self) -> None:
        answer = self.ask("pass", tuple)
        if answer is not None:
            self.passes.append(answer)

    def finish(self) -> Row:
        if not self.row["problem"]:
            self.pipe.send("end")
            seconds = statistics.median(each[0] for each in self.passes[1:])  # the first pass warms up
            self.row |= {
                "gb_per_s": self.nbytes / seconds / 1e9,
                "cpu_ms": 1e3 * statistics.median(each[1] for each in self.passes[1:]),
                "peak_mb": (self.peak - self.before) / 1e6,
                "all_gb_per_s": [self.nbytes / each[0] / 1e9 for each in self.passes[1:]],
            }
        self.process.join(60)
        return self.row


def measure(kind: str, mib: int, options: argparse.Namespace) -> list[Row]:
    items = Items(kind, mib << 20, options.items or max(16, PASS_BYTES // (mib << 20)))
    sides = [Side(transport, items) for transport in options.transports]
    for _ in range(options.passes + 1):
        for side in sides:
            side.run()
    return [side.finish() for side in sides]


def table(rows: list[Row]) -> str:
    """Returns a row per kind and size, with rate, CPU time and memory of each transport in one cell."""

    def cell(row: Row) -> str:
        return " / ".join(short(row[key]) for key in METRICS) if not row["problem"] else row["problem"]

    transports = list(dict.fromkeys(row["transport"] for row in rows))
    groups: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        groups.setdefault((row["kind"], row["mib"]), {})[row["transport"]] = row
    lines = [[kind, str(mib), *(cell(found[one]) for one in transports)] for (kind, mib), found in groups.items()]
    return markdown.table(["items", "MiB", *transports], lines)


def pays(rows: list[Row]) -> str:
    """Says from which size on each arena carries more than the plain queue."""
    lines = []
    for transport in TRANSPORTS[1:]:
        sizes = [f"{kind} {_first_size(rows, kind, transport)}" for kind in dict.fromkeys(row["kind"] for row in rows)]
        lines.append(f"- {transport}: {', '.join(sizes)}\n")
    return "".join(lines)


def _first_size(rows: list[Row], kind: str, transport: str) -> str:
    rates = {
        (row["mib"], row["transport"]): row["gb_per_s"] for row in rows if row["kind"] == kind and "gb_per_s" in row
    }
    better = [(mib, rates.get((mib, transport), 0) > rates[mib, "queue"]) for mib, one in rates if one == "queue"]
    if not better or not better[-1][1]:
        return "at no measured size"
    lost = [mib for mib, is_better in better if not is_better]
    return f"from {next(mib for mib, _ in better if not lost or mib > lost[-1])} MiB"


def draw(path: Path, rows: list[Row]) -> None:
    """Plots the rate of each transport over the size of an item, with a panel per kind of item."""
    from matplotlib import pyplot, ticker

    from bench import charts

    kinds = list(dict.fromkeys(row["kind"] for row in rows if not row["problem"]))
    figure, axes = pyplot.subplots(2, (len(kinds) + 1) // 2, figsize=(7.5, 6), sharex=True, sharey=True, squeeze=False)
    for axis, kind in zip(axes.flat, kinds):
        ends = {}
        for transport in TRANSPORTS:
            found = [row for row in rows if (row["kind"], row["transport"]) == (kind, transport) and "gb_per_s" in row]
            points = [(row["mib"], row["gb_per_s"]) for row in found]
            if points:
                axis.plot(*zip(*points), **charts.style(transport))
                ends[transport] = points[-1][1]
        axis.set(xscale="log", yscale="log", title=kind)
        sizes = sorted({row["mib"] for row in rows})
        axis.set_xticks(sizes, [f"{size} MiB" for size in sizes])
        axis.set_yticks([0.5, 1, 2, 5], ["0.5", "1", "2", "5"])
        for side in (axis.xaxis, axis.yaxis):
            side.set_minor_locator(ticker.NullLocator())
        axis.grid()
        if axis in axes[:, -1]:
            charts.label_lines(axis, ends)
    for line in axes:
        line[0].set_ylabel("GB/s")
    charts.save(figure, path)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.spdl_arena", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--transports", nargs="+", choices=TRANSPORTS, default=list(TRANSPORTS))
    parser.add_argument("--mib", nargs="+", type=int, default=[1, 4, 16, 64], help="sizes of an item")
    parser.add_argument("--items", type=int, help="items per pass (default: 1 GiB of them, but at least 16)")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--out", type=Path, default=machine.RESULTS)
    return parser.parse_args()


def start_tracker() -> None:
    """Starts multiprocessing's resource tracker without stderr: it prints a traceback for each of SPDL's segments."""
    errors = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    resource_tracker.ensure_running()
    os.dup2(errors, 2)
    os.close(nothing)
    os.close(errors)


def main() -> None:
    options = arguments()
    about = machine.describe({})
    start_tracker()
    rows: list[Row] = []
    for kind in options.kinds:
        for mib in options.mib:
            rows += measure(kind, mib, options)
            print(table(rows[-len(options.transports) :]), flush=True)
    about["load_after"] = machine.load()
    machine.save("spdl_arena", about, options.out, rows=rows)
    text = machine.dated(about) + f"Medians of {options.passes} passes.\n\n{table(rows)}"
    if "queue" in options.transports:
        text += f"\nAn arena carries more than the plain queue:\n\n{pays(rows)}"
    (options.out / "spdl_arena.md").write_text(text)
    machine.draw_if_possible(draw, options.out / "spdl_arena.svg", rows)


if __name__ == "__main__":
    main()
