"""Compact lists of tickets, which are almost always consecutive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

Runs = Sequence[tuple[int, int]]  # for each run, its first ticket and the one after its last


def runs(tickets: Iterable[int]) -> Runs:
    """Returns the runs of tickets in ascending order."""
    found: list[tuple[int, int]] = []
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
