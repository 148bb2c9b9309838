"""Copies from host to device: from a pinned arena, from memory that torch pinned, and from pageable memory."""

from __future__ import annotations

import time
from typing import Any

import torch

import shmtree
from bench import markdown
from bench.gpu.device import Device

SIZES = (1_000_000, 16_000_000, 256_000_000)
WAYS = ("pageable", "pin_memory", "pinned arena")


class Sources:
    """The same bytes in each kind of memory."""

    def __init__(self, nbytes: int, device: Device) -> None:
        arena = shmtree.Arena(4 * nbytes + (64 << 20))
        device.pin(arena)
        sender, receiver = arena.create_pair()
        pageable = torch.ones(nbytes // 4)
        sender.put(pageable)
        self.of = {
            "pageable": pageable,
            "pin_memory": device.pinned(pageable),
            "pinned arena": receiver.get(copy=False),
        }
        self.arena = arena


def measure_size(nbytes: int, device: Device) -> dict[str, dict[str, float]]:
    sources = Sources(nbytes, device).of
    target = torch.empty(nbytes // 4, device=device.name)
    rounds: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    began = time.perf_counter()
    while len(rounds[WAYS[0]]) < 3 or time.perf_counter() - began < device.seconds:
        for way in WAYS:  # in turns, so that other load affects all of them
            one = Device(device.name, 0)
            rounds[way].append(one.time(lambda way=way: target.copy_(sources[way], non_blocking=True)))  # type: ignore[misc]
    found = {}
    for way, times in rounds.items():
        returned, done = (sorted(each)[len(each) // 2] for each in zip(*times, strict=True))
        found[way] = {"gb_per_s": nbytes / done / 1e9, "returns_after_us": returned * 1e6}
    return found


def measure(device: Device) -> dict[str, Any]:
    rows = {nbytes: measure_size(nbytes, device) for nbytes in SIZES}
    head = ["host to device", *(f"{nbytes // 1_000_000} MB, GB/s" for nbytes in SIZES), "256 MB: call returns, us"]
    largest = rows[SIZES[-1]]
    lines = []
    for way in WAYS:
        rates = [f"{rows[nbytes][way]['gb_per_s']:.3g}" for nbytes in SIZES]
        lines.append([way, *rates, f"{largest[way]['returns_after_us']:.3g}"])
    share = largest["pinned arena"]["gb_per_s"] / largest["pin_memory"]["gb_per_s"]
    targets = {f"a pinned arena within 0.95 of pin_memory ({share:.2f})": share >= 0.95}
    return {"rows": rows, "targets": targets, "markdown": markdown.table(head, lines) + markdown.verdicts(targets)}
