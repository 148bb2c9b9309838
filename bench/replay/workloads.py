"""The workloads: each one has a name, rows, a measure, and sizes."""

from __future__ import annotations

from dataclasses import dataclass

from bench.replay.rows import FRAME, PIXEL, SMALL, VECTOR, Columns

M = 1_000_000


@dataclass(frozen=True)
class Workload:
    """A named measurement. `kind` selects the class of `bench.replay.measures` that runs it."""

    name: str
    about: str
    kind: str
    columns: Columns
    capacity: int
    batch: int = 1  # rows of an add or a sample
    length: int = 0  # length of sequences
    stack: int = 0
    threads: int = 1
    is_cold: bool = False  # flush the caches before each call
    added: int = 0  # rows between two calls
    streams: int = 1

    @property
    def unit(self) -> str:
        return {"add": "rows/s", "writers": "rows/s", "files": "MB/s"}.get(self.kind, "batches/s")


def _draws(name: str, about: str, columns: Columns, capacity: int, counts: tuple[int, ...]) -> list[Workload]:
    return [
        Workload(f"sample-{name}-{count}{how}", f"{count:,} {about}{said}", "sample", columns, capacity, count,
                 is_cold=cold)
        for count in counts
        for how, said, cold in (("", "", False), ("-cold", ", from memory", True))
    ]  # fmt: skip


def _prioritized(size: int, named: str) -> list[Workload]:
    about = f"sample(512) and update(512) of {named} rows"
    return [
        Workload(f"prioritized-{named}", about, "prioritized", SMALL, size, 512),
        Workload(f"prioritized-{named}-adds", f"{about}, 32 added between", "prioritized", SMALL, size, 512, added=32),
    ]


_PIXELS = 20_000  # rows; 1.1 GB, far more than any cache

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in [
        Workload("add-small", "small rows one by one, around 2^20", "add", SMALL, 1 << 20),
        Workload("add-small-128", "small rows, 128 at once", "add", SMALL, 1 << 20, 128),
        Workload("add-pixel", "pixel rows one by one", "add", PIXEL, _PIXELS),
        Workload("add-pixel-50", "pixel rows, 50 at once", "add", PIXEL, _PIXELS, 50),
        *_draws("small", "small rows of 2^20", SMALL, 1 << 20, (32, 256, 1024, 65_536)),
        *(
            Workload(f"sample-pixel-{count}", f"{count} pixel rows", "sample", PIXEL, _PIXELS, count)
            for count in (32, 256, 512)
        ),
        Workload("sample-pixel-256-2", "256 pixel rows, two threads", "sample", PIXEL, _PIXELS, 256, threads=2),
        Workload("stack-256", "256 stacks of 4 single frames", "sample", FRAME, 5 * _PIXELS, 256, stack=4),
        *_prioritized(1 << 16, "2^16"),
        *_prioritized(1 << 20, "2^20"),
        *_prioritized(10 * M, "10M"),
        Workload("writers", "4 writers of pixel rows, 1 prioritised sampler of 256", "writers", PIXEL, _PIXELS, 256),
        *(
            Workload(f"sequences-{count}x{length}-{named}", f"{count} sequences of {length} of {named} rows, 8 writers",
                     "sequences", VECTOR, size, count, length=length, added=8, streams=8)
            for count, length in ((64, 80), (256, 4))
            for size, named in ((M // 2, "500k"), (5 * M, "5M"))
        ),
        Workload("files", "2 GB saved, saved again after 1 %, and loaded", "files", PIXEL, 35_000),
    ]
}  # fmt: skip
