"""Traces of channels in Chrome's trace format: when each message was put and received, and by which process.

The format is https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU, as torch.profiler writes
it. The time base is the same, so that one file can contain the events of both.
"""

from __future__ import annotations

import collections
import functools
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TextIO

from .. import _core
from .._ipc.observer import observe
from ..errors import Error, OutOfSharedMemory
from ..recording._tap import Watched, watch
from . import drawing, processes, tables

_MAX_AT_ONCE = 4096
_MAX_MESSAGES = 1_000_000  # limit of a trace: viewers do not show more
_DURATION_NS = 1_000  # displayed duration of an event; only its time is recorded
_COUNTER_NS = 100_000  # interval between two counts of queued messages
# Number of messages put, pids of the senders, (number, pid, number of messages received) of each reader, and False at
# the end of the stream.
_Progress = tuple[int, list[int], list[tuple[int, int, int]], bool]
_BASE_S = 7_889_238  # times count from the last multiple of this, as in torch.profiler


class Times(NamedTuple):
    """Times at which a message was put and received, on the monotonic clock."""

    ticket: int
    put_ns: int
    put_pid: int
    put_thread: int
    got_ns: int  #: 0: it was not received
    got_pid: int
    got_thread: int


class Traced(Watched):
    """Base of the classes that read the times of one channel."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.times: list[Times] = []
        #: (ns, messages): number of earlier messages that were still queued; empty if only counts are available
        self.older: list[tuple[int, int]] = []
        self._is_stopped = False

    def stop(self) -> None:
        self._is_stopped = True


class _Tap(Traced):
    """Reads the times that senders and receivers of a pair or a queue write down."""

    def __init__(self, channel: _core.Channel, name: str) -> None:
        super().__init__(name)
        self._channel = channel
        self._tap = _core.Tap(channel, times_only=True)
        self._gone, older = self._counts()
        self.older.append((time.monotonic_ns(), older))

    def _counts(self) -> tuple[int, int]:
        """Returns the number of messages that were received or dropped, and of those that never were.

        A returned message counts as received.
        """
        stats = self._channel.stats()
        gone = stats["received"] + stats["dropped"]
        return gone, stats["put"] - gone

    def look(self) -> bool:
        if self.older[-1][1]:  # messages from before the tap have no times, and precede all others
            left = max(self.older[0][1] - (self._counts()[0] - self._gone), 0)
            if left < self.older[-1][1]:
                self.older.append((time.monotonic_ns(), left))
        seen = self._tap.take_times(_MAX_AT_ONCE, self._is_stopped)
        self.times += map(Times._make, seen)
        self.is_over = self._tap.is_over
        return bool(seen)

    def stop(self) -> None:
        super().stop()
        self._tap.stop()

    def close(self) -> None:
        self._tap.close()
        self.missed = self._tap.missed


class _Counter(Traced):
    """Detects puts and receipts by comparing counts, without memory for a tap. Their times are those of the checks."""

    def __init__(self, progress: Callable[[], _Progress], name: str) -> None:
        super().__init__(name)
        self._progress = progress
        self._put, _, readers, _ = progress()
        self._read = {(number, pid): passed for number, pid, passed in readers}

    def look(self) -> bool:
        put, publishers, readers, is_attended = self._progress()
        now, count = time.monotonic_ns(), len(self.times)
        pid = publishers[0] if len(publishers) == 1 else 0
        self.times += [Times(ticket, now, pid, pid, 0, 0, 0) for ticket in _newest(self._put, put)]
        self._put = put
        for number, pid, passed in readers:
            read = self._read.get((number, pid), passed)
            self.times += [Times(ticket, 0, 0, 0, now, pid, pid) for ticket in _newest(read, passed)]
            self._read[number, pid] = passed
        self.is_over = self._is_stopped or not is_attended
        return len(self.times) > count


def _newest(begin: int, end: int) -> range:
    """Returns the tickets in between, but at most as many as a trace may have, because a damaged count may have any
    size."""
    return range(max(begin, end - _MAX_MESSAGES), end)


def _source(arena: dict[str, Any], kind: str, entry: dict[str, Any], name: str) -> Traced:
    core = _core.open_arena(bytes.fromhex(arena["uuid"]))
    if kind != "channels":
        published = (_core.Ring if kind == "broadcasts" else _core.LatestStore).open(core, entry["block"])
        return _Counter(published.progress, name)
    channel = _core.Channel.open(core, entry["block"])
    try:
        return _Tap(channel, name)
    except OutOfSharedMemory:
        return _Counter(functools.partial(_progress_of, channel, entry), name)


def _progress_of(channel: _core.Channel, entry: dict[str, Any]) -> _Progress:
    """Returns the same as `Ring.progress`, for a pair or a queue. Names a receiver only if there is exactly one."""
    stats = channel.stats()
    pids = entry["receiver_pids"]
    reader = pids[0] if len(pids) == 1 else 0
    return stats["put"], entry["sender_pids"], [(0, reader, stats["received"])], True


def _chosen(names: Sequence[str]) -> Iterator[tuple[dict[str, Any], str, dict[str, Any], str]]:
    """Yields the named channels, or all. FileNotFoundError for an unknown name; Error for an unreadable one."""
    left = set(names)
    for arena in observe()["arenas"]:
        for name in left & set(arena["names"]) if arena["refused"] else ():
            raise Error(f"cannot trace the name {name!r}: {arena['refused']}")
        for kind in ("channels", "broadcasts", "latests"):
            for number, entry in enumerate(arena.get(kind, ())):
                if entry["refused"] is None and (not names or left & set(entry["names"])):
                    left -= set(entry["names"])
                    shown = number if kind == "channels" else f"{kind[:-1]} {number}"
                    name = drawing.printable(entry["names"][0]) if entry["names"] else f"{tables.label(arena)}:{shown}"
                    yield arena, kind, entry, name
    if left:
        raise FileNotFoundError(f"no channel named {' or '.join(map(repr, sorted(left)))}; shmtree ls lists the names")


def trace(
    names: Sequence[str], ready: Callable[[int, list[str]], None], should_stop: Callable[[], bool]
) -> list[Traced]:
    """Traces channels until `should_stop` returns True, or until all of them have ended.

    Calls `ready` with the number of traced channels and the reasons why others are not traced. If a channel was named
    explicitly and cannot be traced, that is an error.
    """
    sources: list[Traced] = []
    refused: list[str] = []
    try:
        for arena, kind, entry, name in _chosen(names):
            try:
                sources.append(_source(arena, kind, entry, name))
            except (OSError, ValueError, Error) as error:
                if names:
                    raise
                refused.append(f"{name}: {error}")
        ready(len(sources), refused)
        watch(sources, lambda: should_stop() or sum(len(each.times) for each in sources) >= _MAX_MESSAGES)
    finally:
        for each in sources:
            each.close()
    return sources


# --- As events


# A put or a receipt: its time, "put" or "get", channel and ticket, and the number of its arrow; 0: none.
_Slice = tuple[int, str, str, int, int]


def _microseconds(ns: float) -> float:
    return ns / 1000


def _rows(channels: Iterable[Traced], since_base_ns: int) -> dict[tuple[int, int], list[_Slice]]:
    """Returns the puts and receipts of each thread, by its pid and id."""
    rows: dict[tuple[int, int], list[_Slice]] = collections.defaultdict(list)
    flows = itertools.count(1)
    for channel in channels:
        for one in channel.times:
            flow = next(flows) if one.put_ns and one.got_ns else 0
            ends = [("put", one.put_ns, one.put_pid, one.put_thread), ("get", one.got_ns, one.got_pid, one.got_thread)]
            for what, ns, pid, thread in ends:
                if ns:
                    rows[pid, thread].append((since_base_ns + ns, what, channel.name, one.ticket, flow))
    return rows


def _row_events(pid: int, thread: int, slices: list[_Slice]) -> Iterator[dict[str, Any]]:
    slices.sort(key=lambda each: each[0])
    # All messages of one call have the same time.
    begins = list(itertools.accumulate((each[0] for each in slices), lambda last, ns: max(ns, last + 1)))
    for (_, what, channel, ticket, flow), begin, following in zip(slices, begins, [*begins[1:], math.inf], strict=True):
        where = {"cat": "shmtree", "pid": pid, "tid": thread, "ts": _microseconds(begin)}
        duration = min(_DURATION_NS, following - begin)
        args = {"channel": channel, "ticket": ticket}
        yield {"ph": "X", "name": f"{what} {channel}", **where, "dur": _microseconds(duration), "args": args}
        if flow:
            ends = {"ph": "s"} if what == "put" else {"ph": "f", "bp": "e"}
            yield {**ends, "name": "message", "id": flow, **where}


def _counters(channel: Traced, since_base_ns: int) -> Iterator[dict[str, Any]]:
    """Yields the number of queued messages over time, if their exact times are known."""
    if not channel.older:
        return
    changes = [(one.put_ns, 1) for one in channel.times] + [(one.got_ns, -1) for one in channel.times if one.got_ns]
    changes += [(ns, left - before) for (_, before), (ns, left) in itertools.pairwise(channel.older)]
    changes.sort()
    queued, shown = channel.older[0][1], -_COUNTER_NS
    for number, (ns, change) in enumerate(changes):
        queued += change
        if ns - shown >= _COUNTER_NS or number == len(changes) - 1:
            shown = ns
            yield {"ph": "C", "cat": "shmtree", "name": f"{channel.name} queued", "pid": 0,
                   "ts": _microseconds(since_base_ns + ns), "args": {"messages": max(queued, 0)}}  # fmt: skip


def _named(kind: str, pid: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": f"{kind}_name", "pid": pid, "tid": thread, "args": {"name": name}}


def _events(channels: list[Traced], since_base_ns: int) -> Iterator[dict[str, Any]]:
    rows = _rows(channels, since_base_ns)
    yield _named("process", 0, 0, "shmtree channels")
    for pid in sorted({pid for pid, _ in rows}):
        if name := drawing.printable(" ".join(processes.words_of(pid)[:3])):
            yield _named("process", pid, 0, name)
    for channel in channels:
        yield from _counters(channel, since_base_ns)
    for (pid, thread), slices in rows.items():
        yield from _row_events(pid, thread, slices)


def write(channels: list[Traced], out: TextIO) -> None:
    """Writes one JSON object with one event per line. Times are microseconds since `baseTimeNanoseconds`."""
    now_ns = time.time_ns()
    base_ns = now_ns // (_BASE_S * 10**9) * (_BASE_S * 10**9)
    head = {
        "schemaVersion": 1,
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": base_ns,
        "host_name": os.uname().nodename,
    }
    out.write(json.dumps(head)[:-1] + ', "traceEvents": [')
    separator = "\n"
    for event in _events(channels, now_ns - time.monotonic_ns() - base_ns):
        out.write(separator + json.dumps(event))
        separator = ",\n"
    out.write("\n]}\n")
