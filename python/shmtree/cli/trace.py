"""Traces of channels in Chrome's trace format: when each message was put and received, and by which process.

The format is https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU, as torch.profiler writes
it. The time base is the same, so that one file can contain the events of both.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TextIO

from .. import _core
from .._ipc.observer import observe
from ..errors import Error
from . import drawing, processes, tables

_PAUSE_S = 0.001  # interval of checks that find nothing
_MAX_AT_ONCE = 4096
_MAX_MESSAGES = 1_000_000  # limit of a trace: viewers do not show more
_DURATION_NS = 1_000  # displayed duration of an event; only its time is recorded
_COUNTER_NS = 100_000  # interval between two counts of queued messages
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


class Traced(NamedTuple):
    """A channel and its recorded times."""

    name: str
    older: list[tuple[int, int]]  #: (ns, messages): number of earlier messages that were still queued at that time
    times: list[Times]
    missed: int


class _Tap:
    def __init__(self, arena: dict[str, Any], channel: dict[str, Any], name: str) -> None:
        self.name = name
        self._channel = _core.Channel.open(_core.open_arena(bytes.fromhex(arena["uuid"])), channel["block"])
        self._gone, older = self._counts()
        self._older = [(time.monotonic_ns(), older)]
        self._tap = _core.Tap(self._channel, times_only=True)
        self.times: list[Times] = []

    def _counts(self) -> tuple[int, int]:
        """Returns the number of messages that were received or dropped, and of those that never were.

        A returned message counts as received.
        """
        stats = self._channel.stats()
        gone = stats["received"] + stats["dropped"]
        return gone, stats["put"] - gone

    def _count_older(self) -> None:
        """Counts the messages that were put before the tap was opened.

        It has no times for them. They precede the others.
        """
        left = max(self._older[0][1] - (self._counts()[0] - self._gone), 0)
        if left < self._older[-1][1]:
            self._older.append((time.monotonic_ns(), left))

    def look(self, also_queued: bool = False) -> bool:
        """Reads new times. Returns True if there were any."""
        if self._older[-1][1]:
            self._count_older()
        seen = self._tap.take_times(_MAX_AT_ONCE, also_queued)
        self.times += map(Times._make, seen)
        return bool(seen)

    @property
    def is_over(self) -> bool:
        return self._tap.is_over

    def stop(self) -> None:
        self._tap.stop()

    def close(self) -> Traced:
        self._tap.close()
        return Traced(self.name, self._older, self.times, self._tap.missed)


def _chosen(names: Sequence[str]) -> Iterator[tuple[dict[str, Any], dict[str, Any], str]]:
    """Yields the named channels, or all. FileNotFoundError for an unknown name; Error for an unreadable one."""
    left = set(names)
    for arena in observe()["arenas"]:
        for name in left & set(arena["names"]) if arena["refused"] else ():
            raise Error(f"cannot trace the name {name!r}: {arena['refused']}")
        for number, channel in enumerate(arena.get("channels", ())):
            if channel["refused"] is None and (not names or left & set(channel["names"])):
                left -= set(channel["names"])
                yield arena, channel, tables.channel_label(arena, number)
    if left:
        raise FileNotFoundError(f"no channel named {' or '.join(map(repr, sorted(left)))}; shmtree ls lists the names")


def trace(
    names: Sequence[str],
    ready: Callable[[int, list[str]], None],
    should_stop: Callable[[], bool],
) -> list[Traced]:
    """Traces channels until `should_stop` returns True, or until all of them have ended.

    Calls `ready` with the number of traced channels and the reasons why others are not traced. If a channel was named
    explicitly and cannot be traced, that is an error.
    """
    taps: list[_Tap] = []
    refused: list[str] = []
    try:
        for arena, channel, name in _chosen(names):
            try:
                taps.append(_Tap(arena, channel, name))
            except (OSError, ValueError, Error) as error:
                if names:
                    raise
                refused.append(f"{name}: {error}")
        ready(len(taps), refused)
        while not should_stop() and not all(tap.is_over for tap in taps):
            any_seen = [tap.look() for tap in taps]
            if not any(any_seen):
                time.sleep(_PAUSE_S)
            if sum(len(tap.times) for tap in taps) >= _MAX_MESSAGES:
                break
        for tap in taps:
            tap.stop()
            while tap.look(also_queued=True):
                pass
    finally:
        traced = [tap.close() for tap in taps]
    return traced


# --- As events


def _microseconds(ns: int) -> float:
    return ns / 1000


class _Thread:
    """The row of one thread: its puts and receipts in sequence, each with a short duration."""

    def __init__(self, pid: int, thread: int) -> None:
        self._where = {"pid": pid, "tid": thread}
        self._slices: list[tuple[int, str, Traced, int, int]] = []

    def add(self, ns: int, what: str, channel: Traced, ticket: int, flow: int) -> None:
        self._slices.append((ns, what, channel, ticket, flow))

    def events(self) -> Iterator[dict[str, Any]]:
        self._slices.sort(key=lambda each: each[0])
        begins: list[int] = []
        for each in self._slices:  # several messages of one call have the same time
            begins.append(max(each[0], begins[-1] + 1) if begins else each[0])
        for number, (_, what, channel, ticket, flow) in enumerate(self._slices):
            begin = begins[number]
            end = min([begin + _DURATION_NS, *begins[number + 1 : number + 2]])
            ts = _microseconds(begin)
            args = {"channel": channel.name, "ticket": ticket}
            yield {"ph": "X", "cat": "shmtree", "name": f"{what} {channel.name}", **self._where, "ts": ts,
                   "dur": _microseconds(end - begin), "args": args}  # fmt: skip
            if flow:
                ends = {"ph": "s"} if what == "put" else {"ph": "f", "bp": "e"}
                yield {**ends, "cat": "shmtree", "name": "message", "id": flow, **self._where, "ts": ts}


def _threads(channels: Iterable[Traced], since_base_ns: int) -> dict[tuple[int, int], _Thread]:
    threads: dict[tuple[int, int], _Thread] = {}
    flow = 0
    for channel in channels:
        for one in channel.times:
            flow += 1
            ends = [("put", one.put_ns, one.put_pid, one.put_thread), ("get", one.got_ns, one.got_pid, one.got_thread)]
            for what, ns, pid, thread in ends:
                if ns:
                    where = threads.setdefault((pid, thread), _Thread(pid, thread))
                    where.add(since_base_ns + ns, what, channel, one.ticket, flow if one.got_ns else 0)
    return threads


def _counters(channel: Traced, since_base_ns: int) -> Iterator[dict[str, Any]]:
    """Yields the number of queued messages over time."""
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
    threads = _threads(channels, since_base_ns)
    yield _named("process", 0, 0, "shmtree channels")
    for pid in sorted({pid for pid, _ in threads}):
        if name := drawing.printable(" ".join(processes.words_of(pid)[:3])):
            yield _named("process", pid, 0, name)
    for channel in channels:
        yield from _counters(channel, since_base_ns)
    for each in threads.values():
        yield from each.events()


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
