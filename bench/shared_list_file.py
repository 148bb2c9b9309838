"""Measures a SharedList in a file: build time, and the rate and memory of workers that read all of it.

    python -m bench.shared_list_file FOLDER [--gigabytes 10] [--workers 8]

A sample is a dict with a path, a label and an image of 100,000 bytes. In an epoch, each worker reads its part of the
shuffled samples and finds the largest byte of each image. In the first epoch, nothing of the file is in memory. Memory
is the proportional set size of all workers: their own, and the pages of the file, which they share, and which the
kernel drops when it needs memory. Removes the file at the end.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import shmtree
from bench import machine, markdown, processes

IMAGE_BYTES = 100_000
COLUMNS = ["epoch", "items/s", "GB/s", "own memory of the workers, MB", "pages of the file in memory, MB"]


def samples(count: int) -> Iterator[dict[str, Any]]:
    image = np.zeros((100, 100, 10), np.uint8)
    for number in range(count):
        image[0, 0, 0] = number % 256
        yield {"path": f"/data/image-{number:08}.jpg", "label": number % 1000, "image": image}


def work(connection: Any, path: str, indices: Sequence[int]) -> None:
    processes.end_with_parent()
    data = shmtree.SharedList.load(path)
    connection.send("ready")
    while connection.recv() == "epoch":
        began = time.perf_counter()
        wrong = sum(int(item["image"].max()) != index % 256 for index, item in read(data, indices))
        connection.send((time.perf_counter() - began, wrong))


def read(data: shmtree.SharedList[Any], indices: Sequence[int]) -> Iterator[tuple[int, Any]]:
    for index in indices:
        yield index, data[index]


def memory_bytes(pids: list[int]) -> tuple[int, int]:
    """Returns the proportional set sizes of processes: their own memory, and pages of files."""
    own = files = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, *rest = line.split()
            own += int(rest[0]) * 1024 if name == "Pss_Anon:" else 0
            files += int(rest[0]) * 1024 if name == "Pss_File:" else 0
    return own, files


def drop_from_memory(path: str) -> None:
    with open(path, "rb") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(path: str, count: int, workers: int, epochs: int) -> tuple[float, int, list[dict[str, float]]]:
    """Returns the seconds to build the file, its size, and a row for each epoch."""
    began = time.perf_counter()
    nbytes = shmtree.SharedList(samples(count), path=path).nbytes
    built = time.perf_counter() - began
    drop_from_memory(path)
    shuffled = array("q", range(count))
    random.Random(0).shuffle(shuffled)
    context = multiprocessing.get_context("spawn")
    pipes, children = [], []
    for number in range(workers):
        mine, theirs = context.Pipe()
        children.append(context.Process(target=work, args=(theirs, path, shuffled[number::workers])))
        children[-1].start()
        pipes.append(mine)
    for pipe in pipes:
        pipe.recv()
    pids = [child.pid for child in children if child.pid is not None]
    rows = [{"epoch": 0.0, "items_per_s": 0.0, "gb_per_s": 0.0, **memory(pids)}]
    for epoch in range(1, epochs + 1):
        for pipe in pipes:
            pipe.send("epoch")
        seconds, wrong = zip(*(pipe.recv() for pipe in pipes), strict=True)
        if any(wrong):
            raise RuntimeError("the workers have read wrong images")
        rate = count / max(seconds)
        rows.append({"epoch": epoch, "items_per_s": rate, "gb_per_s": rate * IMAGE_BYTES / 1e9, **memory(pids)})
    for pipe, child in zip(pipes, children, strict=True):
        pipe.send("end")
        child.join()
    return built, nbytes, rows


def memory(pids: list[int]) -> dict[str, float]:
    own, files = memory_bytes(pids)
    return {"own_mb": own / 1e6, "files_mb": files / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.shared_list_file", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", help="where to write the file; needs the space on disk")
    parser.add_argument("--gigabytes", type=float, default=10, help="size of the images")
    parser.add_argument("--workers", type=int, default=8, help="worker processes")
    parser.add_argument("--epochs", type=int, default=3, help="times that the workers read everything")
    arguments = parser.parse_args()
    about = machine.describe({})
    count = int(arguments.gigabytes * 1e9) // IMAGE_BYTES
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        built, nbytes, rows = measure(f"{folder}/list.smt", count, arguments.workers, arguments.epochs)
    print(machine.line(about))
    print(f"{count:,} items, {nbytes / 1e9:.2f} GB, built in {built:.1f} s ({nbytes / 1e9 / built:.2f} GB/s)")
    print(
        markdown.table(
            COLUMNS, [[f"{cell:,.3g}" if cell < 10 else f"{cell:,.0f}" for cell in row.values()] for row in rows]
        ),
        end="",
    )
    machine.save("shared_list_file", about, build_s=built, nbytes=nbytes, workers=arguments.workers, rows=rows)


if __name__ == "__main__":
    main()
