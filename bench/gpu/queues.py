"""Sends a tensor on the device to another process: by torch.multiprocessing's queue, and by ours.

Latency is the time from the start of `put` until the blocked `get` returns in the other process. In "kept", the
receiver keeps each tensor until it has the next one, in the same allocation. In "dropped", it drops each tensor before
it waits for the next.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
import torch.multiprocessing

import shmtree
from bench import markdown
from bench.gpu.device import Device

LATENCY_BYTES = 32_000_000
RATE_BYTES = 1_000_000
RATE_TENSORS = 4
RATE_COUNT = 2000
WAYS = ("torch.multiprocessing.Queue", "shmtree.Queue", "shmtree pair")


def consume(end: Any, told: Any, device: str) -> None:
    """Gets tensors. Each message says whether to report the time, and whether to keep the tensor until the next."""
    if device != "cpu":
        cuda: Any = torch.cuda
        cuda.init()
    told.send("ready")
    kept: Any = None
    while (item := end.get()) is not None:
        at = time.perf_counter()
        wants_answer, keeps, _ = item
        kept = item if keeps else None
        del item, _
        if wants_answer:
            told.send(at)
    del kept
    told.send("done")
    told.recv()


class Way:
    """One queue, with a process at the other end."""

    def __init__(self, name: str, device: Device) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self.told, theirs = context.Pipe()
        receiver: Any
        self.sender: Any
        if name == "shmtree pair":
            self.sender, receiver = shmtree.create_pair()
        else:
            self.sender = receiver = context.Queue() if name.startswith("torch") else shmtree.Queue()
        self.process = context.Process(target=consume, args=(receiver, theirs, device.name))
        self.process.start()
        theirs.close()
        self.told.recv()

    def latencies(self, tensor: torch.Tensor, keeps: bool, device: Device) -> list[float]:
        found: list[float] = []
        end = time.perf_counter() + device.seconds
        while len(found) < 20 or time.perf_counter() < end:
            device.synchronize()
            began = time.perf_counter()
            self.sender.put((True, keeps, tensor))
            found.append(self.told.recv() - began)
            time.sleep(0.001)  # until the receiver blocks again
        return found[5:]

    def rate(self, tensors: list[torch.Tensor], count: int) -> float:
        self.sender.put((True, True, tensors[0]))
        self.told.recv()
        began = time.perf_counter()
        for number in range(count):
            self.sender.put((number == count - 1, True, tensors[number % len(tensors)]))
        at: float = self.told.recv()
        return count / (at - began)

    def end(self) -> None:
        self.sender.put(None)
        self.told.recv()
        self.told.send("end")
        self.process.join(30)
        if self.process.is_alive():
            self.process.kill()


def measure_way(name: str, device: Device) -> dict[str, float]:
    large = torch.zeros(LATENCY_BYTES // 4, device=device.name)
    small = [torch.zeros(RATE_BYTES // 4, device=device.name) for _ in range(RATE_TENSORS)]
    figures: dict[str, float] = {}
    way = Way(name, device)
    for keeps, label in ((True, "kept"), (False, "dropped")):
        latencies = way.latencies(large, keeps, device)
        figures[f"{label}_us"] = statistics.median(latencies) * 1e6
        figures[f"{label}_p95_us"] = statistics.quantiles(latencies, n=20)[-1] * 1e6
    figures["messages_per_s"] = way.rate(small, max(10, int(RATE_COUNT * device.seconds)))
    way.end()
    return figures


def measure(device: Device) -> dict[str, Any]:
    rows = {name: measure_way(name, device) for name in WAYS}
    head = ["a tensor on the device", "32 MB kept, us", "p95", "32 MB dropped, us", "p95", "1 MB, messages/s"]
    keys = ["kept_us", "kept_p95_us", "dropped_us", "dropped_p95_us", "messages_per_s"]
    table = markdown.table(head, [[name, *(f"{row[key]:.3g}" for key in keys)] for name, row in rows.items()])
    torchs, ours = rows[WAYS[0]]["kept_us"], rows["shmtree pair"]["kept_us"]
    targets = {
        "32 MB in under 100 us": ours < 100,
        f"3 times as fast as torch ({torchs / ours:.2g})": torchs >= 3 * ours,
    }
    return {"rows": rows, "targets": targets, "markdown": table + markdown.verdicts(targets)}
