"""The counters of all processes of a run, added up for each place."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from . import counters as c
from .sites import Site

#: CPU time of a put and a get of a small message with shmtree, without that for its data.
_TRANSPORT_NS = 10_000


class Savings(NamedTuple):
    """Effect of shmtree on the whole command, estimated by `--profile`. Negative: it would take longer."""

    seconds: float
    cpu_seconds: float


class Row(NamedTuple):
    """Queues, pipes or pools that one place has created. Times are sums over all processes."""

    kind: str
    place: str  #: file and line of the program
    via: str  #: file and line of the library that created the object for it, or ""
    objects: int
    processes: int  #: number of processes that used them
    messages: int
    bytes: int  #: estimated from samples
    put_s: float  #: including waits
    get_s: float  #: including waits, and those of `poll`
    blocked_s: float  #: in which the threads in these calls did not run
    cpu_s: float  #: estimated from samples
    pickle_s: float  #: CPU time of pickling and unpickling, if the run was profiled
    saved_cpu_s: float | None  #: CPU time that shmtree would save with the messages; negative: cost. None: unknown
    shares_tensors: bool  #: a message had a tensor of `share_memory_()`


class _Sum:
    def __init__(self) -> None:
        self.cells = [0] * c.CELLS
        self.processes = 0
        self.calls_cpu_ns = 0.0
        self.bytes = 0.0

    def add(self, cells: list[int]) -> None:
        """Adds the row of one process."""
        self.cells = [a + b for a, b in zip(self.cells, cells)]
        self.processes += bool(cells[c.PUTS] or cells[c.GETS])
        # The first call is always sampled, and slow, so that the estimate for few calls may exceed the time of all.
        for first in (c.PUTS, c.GETS):
            self.calls_cpu_ns += min(_scaled(cells, first, c.CPU_NS), cells[first + c.NS])
        self.bytes += _scaled(cells, c.PUTS, c.PUT_BYTES)

    @property
    def cpu_ns(self) -> float:
        """CPU time of the calls, and of the threads of standard queues."""
        return self.calls_cpu_ns + self.cells[c.FEED_NS]

    def saved_ns(self) -> float | None:
        """Returns the CPU time that shmtree would save."""
        cells = self.cells
        if not cells[c.TRIALS]:
            return None
        ours = cells[c.TRIAL_NS] / cells[c.TRIALS] + _TRANSPORT_NS
        return self.cpu_ns - max(cells[c.PUTS], cells[c.GETS]) * ours


def _scaled(cells: list[int], first: int, sampled: int) -> float:
    """Returns the estimate for all calls of one kind of what was measured for some."""
    return cells[first + sampled] * cells[first] / (cells[first + c.SAMPLES] or 1)


def rows(processes: Iterable[dict[str, list[int]]]) -> list[Row]:
    """Returns the rows of all processes, those with the most time first."""
    sums: dict[str, _Sum] = {}
    for each in processes:
        for key, cells in each.items():
            sums.setdefault(key, _Sum()).add(cells)
    found = [_row(Site.parse(key), each) for key, each in sums.items()]
    return sorted(found, key=lambda row: (-(row.put_s + row.get_s), row.place, row.kind))


def _row(site: Site, total: _Sum) -> Row:
    cells = total.cells
    calls_ns = cells[c.PUTS + c.NS] + cells[c.GETS + c.NS] + cells[c.POLL_NS]
    saved_ns = total.saved_ns()
    return Row(
        *site,
        objects=cells[c.OBJECTS],
        processes=total.processes,
        messages=max(cells[c.PUTS], cells[c.GETS]),
        bytes=round(total.bytes),
        put_s=cells[c.PUTS + c.NS] / 1e9,
        get_s=(cells[c.GETS + c.NS] + cells[c.POLL_NS]) / 1e9,
        blocked_s=max(calls_ns - total.calls_cpu_ns, 0) / 1e9,
        cpu_s=total.cpu_ns / 1e9,
        pickle_s=cells[c.PICKLE_NS] / 1e9,
        saved_cpu_s=None if saved_ns is None else saved_ns / 1e9,
        shares_tensors=cells[c.SHARED_TENSORS] > 0,
    )


def savings(rows: Iterable[Row], seconds: float, cpu_seconds: float, import_s: float, command_s: float) -> Savings:
    """Returns what the messages of the rows would save, less the CPU time of the imports and of the command.

    Processes that run at the same time save the time together: it is shared by the mean number of those that ran.
    """
    saved = sum(row.saved_cpu_s or 0.0 for row in rows) - import_s
    return Savings(saved / max(cpu_seconds / max(seconds, 1e-3), 1.0) - command_s, saved - command_s)


def read(directory: str) -> tuple[int, list[Row], float]:
    """Returns the number of processes that used queues or pipes, the rows, and the CPU time of imports of shmtree."""
    processes = list(c.read_all(Path(directory)))
    import_ns = sum(each.pop(c.HIDDEN)[c.IMPORT_NS] for each in processes if c.HIDDEN in each)
    return sum(map(bool, processes)), rows(processes), import_ns / 1e9
