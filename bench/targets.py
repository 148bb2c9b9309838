"""The performance targets of the library, as ratios within one run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bench.competitors import NAMES, OURS
from bench.limits import COPY_TOUCHED, FUTEX
from bench.measured import Row
from bench.workloads import WORKLOADS

QUEUE = "multiprocessing.Queue"


class Figures:
    """Figures by workload and competitor; None if missing."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = {(row["workload"], row["competitor"]): row for row in rows if not row["problem"]}

    def of(self, workload: str, competitor: str, key: str = "items_per_s") -> float | None:
        value = self.rows.get((workload, competitor), {}).get(key)
        return value["p50"] if isinstance(value, dict) else value

    def part(self, workload: str, competitor: str, key: str, part: str) -> float | None:
        value: float | None = self.rows.get((workload, competitor), {}).get(key, {}).get(part)
        return value

    def best_other(self, workload: str) -> tuple[str, float | None]:
        """Returns the fastest competitor other than shmtree."""
        found = {
            name: rate for name in NAMES if not name.startswith(OURS) and (rate := self.of(workload, name)) is not None
        }
        best = max(found, key=lambda name: found[name], default="")
        return best, found.get(best)


@dataclass(frozen=True)
class Target:
    workload: str
    against: str
    goal: float
    ratio: float | None  # larger is better

    @property
    def verdict(self) -> str:
        if self.ratio is None:
            return "not measured"
        return "met" if self.ratio >= self.goal else "missed"


def _ratio(ours: float | None, other: float | None) -> float | None:
    return ours / other if ours is not None and other else None


def targets(rows: Iterable[Row]) -> list[Target]:
    figures = Figures(rows)
    found: list[Target] = []

    def rate(workload: str, goal: float, against: str = "") -> None:
        name, other = (against, figures.of(workload, against)) if against else figures.best_other(workload)
        ratio = _ratio(figures.of(workload, OURS), other)
        found.append(Target(workload, name if against else f"best of the others: {name}", goal, ratio))

    for workload, best, queue in (("E", 7, 10), ("C", 4, 8), ("D", 5, 8)):
        rate(workload, best)
        rate(workload, queue, QUEUE)
    rate("shared", 5, QUEUE)
    rate("bytes-10B", 4)
    rate("bytes-1KB", 3)
    rate("bytes-100KB", 1.5)
    rate("array-1MB", 15, QUEUE)
    for workload in ("array-1MB", "array-32MB", "F", "G", "array-1GB"):
        rate(workload, 0.9, COPY_TOUCHED)
    for workload in ("array-32MB", "F", "G"):
        key = "cpu_us_per_item"
        ratio = _ratio(figures.of(workload, COPY_TOUCHED, key), figures.of(workload, OURS, key))
        found.append(Target(workload, "CPU of memcpy, at most 1.15 of it", 1 / 1.15, ratio))
    cold = _ratio(figures.of("array-1GB", "py-sharedmemory", "first_ms"), figures.of("array-1GB", OURS, "first_ms"))
    found.append(Target("array-1GB, cold", "py-sharedmemory", 1.5, cold))
    for workload in ("loan-1MB", "loan-32MB"):
        found.append(
            Target(workload, "E, messages per second", 0.2, _ratio(figures.of(workload, OURS), figures.of("E", OURS)))
        )
    idle = _ratio(figures.of("latency", FUTEX, "one_way_us"), figures.of("latency", OURS, "one_way_us"))
    found.append(Target("latency", "futex, at most 1.2 of it", 1 / 1.2, idle))
    for workload in (name for name, one in WORKLOADS.items() if one.kind == "wake"):
        for part in ("p50", "p95"):
            theirs, ours = (figures.part(workload, name, "wake_us", part) for name in (QUEUE, OURS))
            found.append(Target(workload, f"{QUEUE}, {part}", 1, _ratio(theirs, ours)))
    spinning = _ratio(3, figures.of("ping-pong", OURS, "one_way_us"))
    found.append(Target("ping-pong", "3 us", 1, spinning))
    found.append(
        Target("many-16x16", "1 x 1", 0.7, _ratio(figures.of("many-16x16", OURS), figures.of("many-1x1", OURS)))
    )
    for workload, goal in (("codec-D", 6), ("codec-nest", 8)):
        both = [
            sum(figures.of(workload, name, key) or 0 for key in ("encode_us", "decode_us")) or None
            for name in ("pickle 5", OURS)
        ]
        found.append(Target(workload, "pickle 5", goal, _ratio(both[0], both[1])))
    return found


def markdown(rows: list[Row]) -> str:
    lines = ["### Targets\n", "| workload | ours against | at least | measured | |", "|---|---|---:|---:|---|"]
    measured = [target for target in targets(rows) if target.ratio is not None]
    for target in measured:
        lines.append(
            f"| {target.workload} | {target.against} | {target.goal:.3g} | {target.ratio:.3g} | {target.verdict} |"
        )
    return "\n".join(lines) + "\n" if measured else ""
