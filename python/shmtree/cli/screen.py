"""The contents of ``shmtree top``: the bottleneck, channels, processes and arenas."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from .._ipc.observer import users
from . import drawing, processes, tables
from .drawing import Span, Table

_CHANNELS = ("CHANNEL", "DEPTH", "BYTES", "PUT/S", "GET/S", "OLDEST", "FULL", "EMPTY", "WAITS FOR")
_PROCESSES = ("PID", "NAME", "COMMAND", "SENDS TO", "RECEIVES FROM", "PINS", "FOR", "STATE")
_NOTED_S = 0.05  # shortest wait that is shown
_MAX_LIMITS = 4  # maximum number of bottlenecks that are shown
_HALF = 0.5  # share of the time from which a channel is shown as often full or empty
_LEAST_ROWS = 2  # minimum number of rows of a table, on a terminal of any height

Channel = tuple[dict[str, Any], int]  # an arena, and the channel's number in it


#: Keys of channels by which they can be sorted, largest first. Channels with equal values are sorted by name.
SORTS = {
    "name": "",
    "depth": "queued",
    "bytes": "queued_bytes",
    "put": "put_per_s",
    "get": "received_per_s",
    "oldest": "oldest_seconds",
    "full": "full_share",
    "empty": "empty_share",
}


def _channels_of(snapshot: dict[str, Any]) -> Iterator[Channel]:
    for arena in snapshot["arenas"]:
        for number in range(len(arena.get("channels", ()))):
            yield arena, number


def _share(share: float, style: str) -> tuple[str, str]:
    return f"{share:.0%}", style if share >= _HALF else ""


def _channel_row(arena: dict[str, Any], number: int) -> list[Span]:
    channel = arena["channels"][number]
    label = tables.channel_label(arena, number)
    if channel["refused"]:
        return [(label, "red"), *[("-", "")] * (len(_CHANNELS) - 1)]
    limiting = channel["limiting"]
    return [
        (label, ""),
        (f"{channel['queued']} of {channel['capacity']}" if channel["capacity"] else str(channel["queued"]), ""),
        (drawing.size(channel["queued_bytes"]), ""),
        (f"{channel['put_per_s']:.0f}", ""),
        (f"{channel['received_per_s']:.0f}", ""),
        (f"> {channel['oldest_seconds']:.1f} s" if channel["oldest_seconds"] else "-", ""),
        _share(channel["full_share"], "red"),
        _share(channel["empty_share"], "yellow"),
        ("senders" if limiting["end"] == "sender" else "receivers", "bold") if limiting else ("-", ""),
    ]


def _channels(snapshot: dict[str, Any], sort: str) -> Table:
    def key(channel: Channel) -> tuple[float, str]:
        arena, number = channel
        return -arena["channels"][number].get(SORTS[sort], 0), tables.channel_label(arena, number)

    return Table(_CHANNELS, [_channel_row(*each) for each in sorted(_channels_of(snapshot), key=key)])


@dataclasses.dataclass
class _Process:
    """A process, with what it does in all arenas."""

    pid: int
    namespace_pid: int = 0
    name: str = ""
    sends: list[str] = dataclasses.field(default_factory=list)
    receives: list[str] = dataclasses.field(default_factory=list)
    bytes: int = 0
    seconds: float = 0.0
    waits: float = 0.0
    state: str = ""

    def add_state(self, one: dict[str, Any]) -> None:
        self.namespace_pid = one["namespace_pid"]
        self.name = drawing.printable(one["name"])
        if one["stopped"]:
            self.state = "stopped"
        elif one["leaving"]:
            self.state = "exiting"
        self.waits = max((self.waits, *(wait["seconds"] for wait in one["waits"])))

    def row(self) -> list[Span]:
        if self.pid:
            pid, command = str(self.pid), processes.command(self.pid) or "-"
        else:
            pid, command = str(self.namespace_pid or "-"), "in another PID namespace"
        state = self.state or (f"waits {self.waits:.1f} s" if self.waits >= _NOTED_S else "runs")
        return [
            (pid, ""),
            (self.name or "-", ""),
            (command, ""),
            (", ".join(self.sends) or "-", ""),
            (", ".join(self.receives) or "-", ""),
            (drawing.size(self.bytes) if self.bytes else "-", ""),
            (f"{self.seconds:.1f} s" if self.bytes else "-", ""),
            (state, "red" if self.state == "stopped" else "dim" if state == "runs" else ""),
        ]


def _add_channel(found: dict[tuple[int, int], _Process], arena: dict[str, Any], number: int) -> None:
    channel = arena["channels"][number]
    if channel["refused"]:
        return
    for side in ("sender", "receiver"):
        used = users(channel, side)
        for pid in channel[f"{side}_pids"]:
            process = found.setdefault((pid, 0), _Process(pid))
            label = tables.channel_label(arena, number)
            ends = process.sends if side == "sender" else process.receives
            ends.append(label if pid in used else f"{label} (unused)")


def _processes_of(snapshot: dict[str, Any]) -> list[_Process]:
    found: dict[tuple[int, int], _Process] = {}  # by pid, or pid in its own namespace if not visible
    for arena in snapshot["arenas"]:
        for opener in arena["openers"]:
            if not opener["read_only"]:
                found.setdefault((opener["pid"], 0), _Process(opener["pid"]))
        for one in (each for each in arena.get("participants", ()) if each["alive"]):
            key = one["pid"], 0 if one["pid"] else one["namespace_pid"]
            found.setdefault(key, _Process(one["pid"])).add_state(one)
        for holder in arena.get("holders", ()):
            process = found.setdefault((holder["pid"], 0), _Process(holder["pid"]))
            process.bytes += holder["bytes"]
            process.seconds = max(process.seconds, holder["seconds"])
        for number in range(len(arena.get("channels", ()))):
            _add_channel(found, arena, number)
    return [found[key] for key in sorted(found)]


def _killed(snapshot: dict[str, Any]) -> Iterator[str]:
    arenas = snapshot["arenas"]
    killed = {
        one["namespace_pid"]
        for arena in arenas
        for one in arena.get("participants", ())
        if not one["alive"] and not one["leaving"]
    }
    if killed:
        yield f"Killed, memory not freed yet: {tables.first([str(pid) for pid in sorted(killed)])}."


def _sentences(snapshot: dict[str, Any]) -> list[Span]:
    """Returns sentences about the limiting stage of each program, and about objects that could not be read."""
    style = "bold yellow" if snapshot["bottlenecks"] else ""
    return [
        *((each, style) for each in tables.limiting_lines(snapshot)[:_MAX_LIMITS]),
        *((each, "red") for each in (*_killed(snapshot), *tables.refusals(snapshot))),
    ]


def blocks(snapshot: dict[str, Any], sort: str = "name", height: int | None = None) -> list[Table | Span]:
    """Returns the sentences and tables of a snapshot. `height`: number of lines that are shown; None: all."""
    parts: list[Table | Span] = [*_sentences(snapshot)]
    shown = [
        _channels(snapshot, sort),
        Table(_PROCESSES, [process.row() for process in _processes_of(snapshot)]),
        tables.arenas(snapshot),
    ]
    counts = [len(table.rows) for table in shown]
    while height is not None and sum(counts) + len(parts) + 9 > height and max(counts) > _LEAST_ROWS:
        counts[counts.index(max(counts))] -= 1
    for table, count in zip(shown, counts):
        parts += [("", ""), Table(table.heads, table.rows[:count])]
        if count < len(table.rows):
            parts.append((f"+ {len(table.rows) - count} more", "dim"))
    return parts
