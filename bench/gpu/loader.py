"""Moves batches to the device: by a DataLoader with pin_memory, one with a pinned arena, and a pair with get_to.

Samples are ready in memory. So the figures show the transfer of a batch of 64 x 3 x 224 x 224 float32 from the worker
to the device, where a kernel reads it. CPU time includes all threads of the training process.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

import shmtree
import shmtree.torch
from bench import markdown
from bench.dataloader import BATCH, Images
from bench.gpu.device import Device
from shmtree import multiprocessing

WORKERS = 2
BATCHES = 40
WARM_UP = 8
KEPT = 3  # batches to keep alive while the device may read them
WAYS = ("pin_memory", "pinned arena", "get_to")


def batches_of(way: str, device: Device, count: int, arena: shmtree.Arena) -> Iterator[torch.Tensor]:
    """Yields images on the device."""
    if way == "get_to":
        yield from _received(device, count, arena)
        return
    kept: deque[Any] = deque()  # batches that the device may be reading, with the event of its end
    for batch in _loader(way, device, count, arena):
        yield batch["image"]["pixels"].to(device.name, non_blocking=True)
        kept.append((device.mark(), batch))
        if len(kept) > KEPT:
            device.wait_for(kept.popleft()[0])
    device.synchronize()


def _loader(way: str, device: Device, count: int, arena: shmtree.Arena) -> Any:
    options: dict[str, Any] = {"multiprocessing_context": "spawn", "pin_memory": device.is_cuda}
    if way == "pinned arena":
        context: Any = copy.copy(multiprocessing.get_context("spawn"))
        context.Queue = arena.Queue
        options = {"multiprocessing_context": context, "collate_fn": shmtree.torch.collate}
        device.pin(arena)
    return torch.utils.data.DataLoader(Images(count), BATCH, num_workers=WORKERS, **options)


def _received(device: Device, count: int, arena: shmtree.Arena) -> Iterator[torch.Tensor]:
    sender, receiver = arena.create_pair(capacity=2 * WORKERS)
    context = multiprocessing.get_context("spawn")
    makers = [context.Process(target=_make, args=(sender, count // WORKERS)) for _ in range(WORKERS)]
    for maker in makers:
        maker.start()
    device.pin(arena)
    for _ in range(count // WORKERS * WORKERS):
        yield receiver.get_to(device.name, timeout=120)["image"]["pixels"]
    for maker in makers:
        maker.join()


def _make(sender: Any, count: int) -> None:
    torch.set_num_threads(1)
    samples = Images(1)
    for _ in range(count):
        pixels = sender.new_empty((BATCH, 3, 224, 224), "float32")
        torch.stack([samples[index]["image"]["pixels"] for index in range(BATCH)], out=torch.from_numpy(pixels))
        sender.put({"image": {"pixels": pixels}})


def measure_way(way: str, device: Device) -> dict[str, Any]:
    count = WARM_UP + max(WORKERS, int(BATCHES * device.seconds))
    arena = shmtree.Arena(4 << 30)
    sums = torch.zeros((), device=device.name)
    began = cpu = 0.0
    threads: list[str] = []
    measured = 0
    for number, images in enumerate(batches_of(way, device, count, arena)):
        if number == WARM_UP:
            device.synchronize()
            began, cpu = time.perf_counter(), time.process_time()
        sums += images.sum()
        measured += number >= WARM_UP
        threads = [thread.name for thread in threading.enumerate()]
    device.synchronize()
    passed = time.perf_counter() - began
    return {
        "batches_per_s": measured / passed,
        "cpu_ms": (time.process_time() - cpu) / measured * 1e3,
        "threads": sum("pin" in name.lower() for name in threads),
    }


def measure(device: Device) -> dict[str, Any]:
    rows = {way: measure_way(way, device) for way in WAYS}
    head = ["38.5 MB batches to the device", "batches/s", "CPU of one, ms", "threads that stage"]
    lines = [
        [way, f"{row['batches_per_s']:.3g}", f"{row['cpu_ms']:.3g}", str(row["threads"])] for way, row in rows.items()
    ]
    targets = {"no staging thread": not rows["pinned arena"]["threads"] and not rows["get_to"]["threads"]}
    return {"rows": rows, "targets": targets, "markdown": markdown.table(head, lines) + markdown.verdicts(targets)}
