"""Compares torch's DataLoader with its own queues and collate function, and with ours.

    python -m bench.dataloader [--workers 1 2 4] [--batches 100] [--rounds 3]

Batches are nested dicts with 64 x 3 x 224 x 224 float32, made of ready samples. So the figures show the transfer from
the worker to the training process. Each loader runs in its own process, in turns. Writes a table to stdout and the
figures to bench/results/dataloader.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

import shmtree.torch
from bench import machine, markdown, processes
from shmtree import multiprocessing

BATCH = 64
LOADERS = ("torch", "shmtree")
FIGURES = {
    "batches_per_s": "batches/s",
    "receive_cpu_ms": "CPU to receive one, ms",
    "worker_cpu_ms": "CPU of the workers, ms",
    "first_batch_s": "first batch, s",
    "resident_mb": "resident, MB",
    "descriptors": "more descriptors at the end",
}


class Images(torch.utils.data.Dataset[Any]):
    def __init__(self, batches: int) -> None:
        self.count = batches * BATCH
        self.pixels = torch.rand(3, 224, 224)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": {"pixels": self.pixels, "index": index}, "label": index % 10}


def loader(which: str, workers: int, batches: int) -> Any:
    options: dict[str, Any] = {"multiprocessing_context": "spawn"}
    if which == "shmtree":
        options = {
            "multiprocessing_context": multiprocessing.get_context("spawn"),
            "collate_fn": shmtree.torch.collate,
        }
    data = Images(batches)
    return torch.utils.data.DataLoader(data, BATCH, num_workers=workers, persistent_workers=True, **options)


def measure(which: str, workers: int, batches: int) -> dict[str, float]:
    """Runs two epochs and times the second one."""
    began = time.perf_counter()
    loads = loader(which, workers, batches)
    epoch = iter(loads)
    next(epoch)
    first = time.perf_counter() - began
    for _ in epoch:
        pass
    files = len(os.listdir("/proc/self/fd"))
    children = processes.descendants(os.getpid())
    cpu, theirs, began = time.process_time(), processes.cpu_seconds(children), time.perf_counter()
    resident = 0
    for number, batch in enumerate(loads):
        if batch["image"]["index"][0] != number * BATCH:
            raise RuntimeError(f"batch {number} has wrong values")
        if number % 16 == 0:
            resident = max(resident, processes.resident_bytes([os.getpid(), *children]))
    passed = time.perf_counter() - began
    return {
        "batches_per_s": batches / passed,
        "receive_cpu_ms": (time.process_time() - cpu) / batches * 1e3,
        "worker_cpu_ms": (processes.cpu_seconds(children) - theirs) / batches * 1e3,
        "first_batch_s": first,
        "resident_mb": resident / 1e6,
        "descriptors": len(os.listdir("/proc/self/fd")) - files,
    }


def measure_apart(which: str, workers: int, batches: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.dataloader", "--one", which]
    command += ["--workers", str(workers), "--batches", str(batches)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    made: dict[str, float] = json.loads(done.stdout)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.dataloader", description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4], help="numbers of worker processes")
    parser.add_argument("--batches", type=int, default=100, help="batches per epoch")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the medians are shown")
    parser.add_argument("--one", choices=LOADERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.workers[0], arguments.batches)))
        return
    rows = []
    for workers in arguments.workers:
        rounds = [
            {which: measure_apart(which, workers, arguments.batches) for which in LOADERS}
            for _ in range(arguments.rounds)
        ]
        for which in LOADERS:
            medians = {key: statistics.median(each[which][key] for each in rounds) for key in FIGURES}
            rows.append({"loader": which, "workers": workers, **medians})
    about = machine.describe({})
    about["versions"]["torch"] = torch.__version__
    print(machine.line(about))
    print(table(rows), end="")
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "dataloader.json").write_text(json.dumps({"machine": about, "rows": rows}, indent=1))


def table(rows: list[dict[str, Any]]) -> str:
    head = ["loader", "workers", *FIGURES.values()]
    return markdown.table(
        head, [[row["loader"], str(row["workers"]), *(f"{row[key]:.3g}" for key in FIGURES)] for row in rows]
    )


if __name__ == "__main__":
    main()
