"""Many tickets in few numbers: almost always they follow one another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Runs = list[tuple[int, int]]  # the first ticket of each run, and the one after its last


def runs(tickets: Iterable[int]) -> Runs:
    """Of tickets in ascending order."""
    found: Runs = []
    first = end = -1
    for ticket in tickets:
        if ticket != end:
            if end >= 0:
                found.append((first, end))
            first = ticket
        end = ticket + 1
    if end >= 0:
        found.append((first, end))
    return found


def each_of(runs: Runs) -> Iterator[int]:
    for first, end in runs:
        yield from range(first, end)
