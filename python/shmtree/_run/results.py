"""The counters of all processes of a run, added up for each place."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from . import counters as c
from .sites import Site


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
    pickle_s: float  #: CPU time of pickling and unpickling, estimated from samples, if the run was profiled
    saved_cpu_s: float | None  #: CPU time that shmtree would save; None: unknown
    shares_tensors: bool  #: a message had a tensor of `share_memory_()`


class _Sum:
    def __init__(self) -> None:
        self.cells = [0] * c.CELLS
        self.processes = 0
        self.calls_cpu_ns = 0.0
        self.cpu_ns = 0.0  # with that of the threads of standard queues
        self.bytes = 0.0
        self.pickle_ns = 0.0
        self.standard_ns = 0.0  # CPU time of pickling, pipes, and unpickling

    def add(self, cells: list[int]) -> None:
        """Adds the row of one process."""
        self.cells = [a + b for a, b in zip(self.cells, cells)]
        self.processes += bool(cells[c.PUTS] or cells[c.GETS])
        sent_ns = _scaled(cells, c.SEND_CPU_NS, c.SEND_SAMPLES, c.PUTS)
        received_ns = _scaled(cells, c.RECEIPT_CPU_NS, c.RECEIPT_SAMPLES, c.GETS)
        # The first call is always sampled, and slow, so that the estimate for few calls may exceed the time of all.
        calls_cpu_ns = min(_scaled(cells, c.PUT_CPU_NS, c.PUT_SAMPLES, c.PUTS), cells[c.PUT_NS])
        calls_cpu_ns += min(_scaled(cells, c.GET_CPU_NS, c.GET_SAMPLES, c.GETS), cells[c.GET_NS])
        self.calls_cpu_ns += calls_cpu_ns
        self.cpu_ns += calls_cpu_ns
        pickled_ns = _scaled(cells, c.PICKLE_NS, c.PICKLE_SAMPLES, c.PUTS)
        unpickled_ns = _scaled(cells, c.UNPICKLE_NS, c.UNPICKLE_SAMPLES, c.GETS)
        if cells[c.HAS_FEEDER]:
            self.cpu_ns += pickled_ns + sent_ns
        self.pickle_ns += pickled_ns + unpickled_ns
        self.standard_ns += pickled_ns + unpickled_ns + sent_ns + received_ns
        self.bytes += _scaled(cells, c.PUT_BYTES, c.PUT_SAMPLES, c.PUTS)

    def saved_ns(self) -> float | None:
        """Returns the time that shmtree would save. A message that needs pickle saves nothing."""
        cells = self.cells
        native = cells[c.TRIALS]
        tried = native + cells[c.REFUSALS]
        if not tried:
            return None
        if not native:
            return 0.0
        share = native / tried
        ours = cells[c.PUTS] * cells[c.TRIAL_NS] / native
        return max(share * (self.standard_ns - ours), 0.0)


def _scaled(cells: list[int], sampled: int, samples: int, count: int) -> float:
    return cells[sampled] * cells[count] / cells[samples] if cells[samples] else 0.0


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
    calls_ns = cells[c.PUT_NS] + cells[c.GET_NS] + cells[c.POLL_NS]
    saved_ns = total.saved_ns()
    return Row(
        *site,
        objects=cells[c.OBJECTS],
        processes=total.processes,
        messages=max(cells[c.PUTS], cells[c.GETS]),
        bytes=round(total.bytes),
        put_s=cells[c.PUT_NS] / 1e9,
        get_s=(cells[c.GET_NS] + cells[c.POLL_NS]) / 1e9,
        blocked_s=max(calls_ns - total.calls_cpu_ns, 0) / 1e9,
        cpu_s=total.cpu_ns / 1e9,
        pickle_s=total.pickle_ns / 1e9,
        saved_cpu_s=None if saved_ns is None else saved_ns / 1e9,
        shares_tensors=cells[c.SHARED_TENSORS] > 0,
    )


def read(directory: str) -> tuple[int, list[Row]]:
    """Returns the number of processes that used queues or pipes, and the rows."""
    processes = [rows for _, rows in c.read_all(Path(directory)) if rows]
    return len(processes), rows(processes)
