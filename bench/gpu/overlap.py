"""Measures how much of a copy to the device overlaps with a kernel that takes about as long.

The kernel starts first, in its own stream, then the copy in another. The overlap is the time that both together save
over both alone, as a share of the shorter one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench import markdown
from bench.gpu.copies import WAYS, Sources
from bench.gpu.device import Device

NBYTES = 128_000_000


def kernel_of(device: Device, seconds: float) -> Callable[[], Any]:
    """Returns a function that starts multiplications of about `seconds`."""
    side = 4096 if device.is_cuda else 64
    matrix = torch.rand(side, side, device=device.name)
    out = torch.empty_like(matrix)
    _, once = device.time(lambda: torch.mm(matrix, matrix, out=out))
    count = max(1, min(1000, round(seconds / once)))

    def work() -> None:
        for _ in range(count):
            torch.mm(matrix, matrix, out=out)

    return work


def measure(device: Device) -> dict[str, Any]:
    kept = Sources(NBYTES, device)
    sources = kept.of
    target = torch.empty(NBYTES // 4, device=device.name)
    _, fastest = device.time(lambda: target.copy_(sources["pin_memory"], non_blocking=True))
    work = kernel_of(device, fastest)
    _, alone = device.time(work)
    stream = device.stream()
    rows = {}
    for way in WAYS:

        def copy(way: str = way) -> None:
            with device.on(stream):
                target.copy_(sources[way], non_blocking=True)

        def both(copy: Callable[[], None] = copy) -> None:
            work()
            copy()

        _, copied = device.time(copy)
        returned, together = device.time(both)
        hidden = (alone + copied - together) / min(alone, copied)
        rows[way] = {
            "kernel_ms": alone * 1e3,
            "copy_ms": copied * 1e3,
            "both_ms": together * 1e3,
            "returned_ms": returned * 1e3,
            "hidden": hidden,
        }
    head = ["128 MB beside a kernel", "kernel, ms", "copy, ms", "both, ms", "both told after, ms", "hidden"]
    table = markdown.table(head, [[way, *(f"{value:.3g}" for value in row.values())] for way, row in rows.items()])
    return {"rows": rows, "targets": {}, "markdown": table}
