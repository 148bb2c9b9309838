"""Compares torch's DataLoader with its own queues and collate function, and with ours.

    python -m bench.dataloader [--workers 1 2 4] [--batches 100] [--rounds 3]

Batches are nested dicts with 64 x 3 x 224 x 224 float32, made of ready samples. So the figures of the second epoch show
the transfer from the worker to the training process. In a third epoch, a small convolutional network trains on a part
of the batches. Each loader runs in its own process, in turns. Writes a table and the figures to bench/results.
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
from bench.report import short
from shmtree import multiprocessing

BATCH = 64
LOADERS = ("torch", "shmtree")
FIGURES = {
    "batches_per_s": "batches/s",
    "trained_per_s": "trained, batches/s",
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
    """Times the second epoch, and then one that trains."""
    torch.set_num_threads(1)  # its threads would compete with the workers for the cores
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
        "trained_per_s": trained_per_s(loads, max(1, batches // 5)),
        "receive_cpu_ms": (time.process_time() - cpu) / batches * 1e3,
        "worker_cpu_ms": (processes.cpu_seconds(children) - theirs) / batches * 1e3,
        "first_batch_s": first,
        "resident_mb": resident / 1e6,
        "descriptors": len(os.listdir("/proc/self/fd")) - files,
    }


def trained_per_s(loads: Any, count: int) -> float:
    """Trains on `count` batches. Returns batches per second."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 7, stride=4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        torch.nn.Linear(16, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    began = time.perf_counter()
    for number, batch in enumerate(loads):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch["image"]["pixels"]), batch["label"]).backward()
        optimizer.step()
        if number + 1 == count:
            break
    return count / (time.perf_counter() - began)


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
    parser.add_argument("--out", type=Path, default=machine.RESULTS)
    parser.add_argument("--one", choices=LOADERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.workers[0], arguments.batches)))
        return
    about = machine.describe({})
    rows = []
    for workers in arguments.workers:
        rounds = [
            {which: measure_apart(which, workers, arguments.batches) for which in LOADERS}
            for _ in range(arguments.rounds)
        ]
        for which in LOADERS:
            medians = {key: statistics.median(each[which][key] for each in rounds) for key in FIGURES}
            rows.append({"loader": which, "workers": workers, **medians})
    about["versions"]["torch"] = torch.__version__
    print(machine.line(about))
    print(table(rows), end="")
    about["load_after"] = machine.load()
    machine.save("dataloader", about, arguments.out, rows=rows)
    text = f"{machine.dated(about)}Medians of {arguments.rounds} runs, torch {torch.__version__}.\n\n{table(rows)}"
    (arguments.out / "dataloader.md").write_text(text)


def table(rows: list[dict[str, Any]]) -> str:
    head = ["loader", "workers", *FIGURES.values()]
    return markdown.table(
        head, [[row["loader"], str(row["workers"]), *(short(row[key]) for key in FIGURES)] for row in rows]
    )


if __name__ == "__main__":
    main()
