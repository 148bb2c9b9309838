"""The counters of all processes of a run, added up for each place."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from . import counters as c
from .launch import Ended
from .sites import Site


class Savings(NamedTuple):
    """Time that shmtree would save for the whole command, estimated by `--profile`. Negative: it would take longer."""

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
    blocked_s: float  #: time in which the threads in these calls did not run
    cpu_s: float  #: estimated from samples
    pickle_s: float  #: CPU time of pickling and unpickling, estimated by `--profile`
    saved_cpu_s: float | None  #: CPU time that shmtree would save with the messages; negative: cost. None: unknown
    shares_tensors: bool  #: a message had a tensor of `share_memory_()`


def _scaled(cells: list[int], first: int, sampled: int) -> float:
    """Returns the estimate for all calls of one kind from the measurements of the sampled calls."""
    return cells[first + sampled] * cells[first] / (cells[first + c.SAMPLES] or 1)


def rows(processes: Iterable[dict[str, list[int]]]) -> list[Row]:
    """Returns the rows of all processes, those with the most time first."""
    found: dict[str, list[list[int]]] = {}
    for each in processes:
        for key, cells in each.items():
            found.setdefault(key, []).append(cells)
    return sorted(
        (_row(*each) for each in found.items()), key=lambda row: (-row.put_s - row.get_s, row.place, row.kind)
    )


def _row(key: str, processes: list[list[int]]) -> Row:
    cells = [sum(column) for column in zip(*processes)]
    # The first call is slow and always sampled, so for few calls the estimate may exceed their total time.
    calls_cpu_ns = sum(
        min(_scaled(each, first, c.CPU_NS), each[first + c.NS]) for each in processes for first in (c.PUTS, c.GETS)
    )
    cpu_ns = calls_cpu_ns + cells[c.FEED_NS]
    messages, get_ns = max(cells[c.PUTS], cells[c.GETS]), cells[c.GETS + c.NS] + cells[c.POLL_NS]
    nbytes = round(sum(_scaled(each, c.PUTS, c.PUT_BYTES) for each in processes))
    return Row(
        *Site(*(*key.split("\t"), "", "")[:3]),
        objects=cells[c.OBJECTS],
        processes=sum(1 for each in processes if each[c.PUTS] or each[c.GETS]),
        messages=messages,
        bytes=nbytes,
        put_s=cells[c.PUTS + c.NS] / 1e9,
        get_s=get_ns / 1e9,
        blocked_s=max(cells[c.PUTS + c.NS] + get_ns - calls_cpu_ns, 0) / 1e9,
        cpu_s=cpu_ns / 1e9,
        pickle_s=messages * cells[c.PICKLE_NS] / (cells[c.TRIALS] or 1) / 1e9,
        saved_cpu_s=_saved_ns(cells, messages, cpu_ns, nbytes) / 1e9 if cells[c.TRIALS] else None,
        shares_tensors=cells[c.SHARED_TENSORS] > 0,
    )


def _saved_ns(cells: list[int], messages: int, cpu_ns: float, nbytes: int) -> float:
    """Returns the CPU time that shmtree would save, from the trials and from the time of the standard calls.

    The calls take longer than the trials, because they wake up a process for each chunk of a message, and because their
    memory is not in the cache. shmtree saves part of this extra time. It still needs one wake-up for each message.
    """
    chunks = nbytes / (messages or 1) / c.CHUNK
    standard_ns, ours_ns = (cells[each] / cells[c.TRIALS] for each in (c.STANDARD_NS, c.OURS_NS))
    longer = max(cpu_ns / ((messages or 1) * standard_ns) - 1, 0)
    return messages * (standard_ns - ours_ns) * (1 + longer * chunks / (1 + chunks))


def savings(rows: Iterable[Row], ended: Ended, start_s: float) -> Savings:
    """Returns what the messages of the rows would save, less the CPU time of `start_s` for starts of the library.

    Processes that run at the same time also save time at the same time. So the wall time that the messages save is the
    CPU time divided by the mean number of running processes. The time of the starts is not divided.
    """
    saved = sum(row.saved_cpu_s or 0.0 for row in rows)
    return Savings(saved / max(ended.cpu_seconds / max(ended.seconds, 1e-3), 1.0) - start_s, saved - start_s)


def read(directory: str) -> tuple[int, list[Row], float]:
    """Returns the number of processes that used queues or pipes, the rows, and the CPU time of imports of shmtree."""
    processes = list(c.read_all(Path(directory)))
    import_ns = sum(each.pop(c.HIDDEN)[c.IMPORT_NS] for each in processes if c.HIDDEN in each)
    return sum(map(bool, processes)), rows(processes), import_ns / 1e9
