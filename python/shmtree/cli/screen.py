"""The contents of ``shmtree top``: the bottleneck, channels, processes and arenas."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .._ipc.observer import users
from . import columns, processes, tables
from .columns import Column, Line, Table

_CHANNELS = (
    Column("CHANNEL", least=12),
    Column("DEPTH", is_number=True),
    Column("BYTES", rank=5, is_number=True),
    Column("PUT/S", rank=2, is_number=True),
    Column("GET/S", rank=1, is_number=True),
    Column("OLDEST", rank=6, is_number=True),
    Column("FULL", rank=3, is_number=True),
    Column("EMPTY", rank=4, is_number=True),
    Column("WAITS FOR"),
)
_PROCESSES = (
    Column("PID", is_number=True),
    Column("COMMAND", least=12),
    Column("SENDS TO", least=8),
    Column("RECEIVES FROM", least=8),
    Column("PINS", rank=1, is_number=True),
    Column("FOR", rank=2, is_number=True),
    Column("STATE"),
)
_NOTED_S = 0.05  # shortest wait that is shown
_MAX_LIMITS = 4  # maximum number of bottlenecks that are shown
_HALF = 0.5  # share of the time from which a channel is shown as often full or empty

Channel = tuple[dict[str, Any], int]  # an arena, and the channel's number in it


def _value(key: str) -> Callable[[dict[str, Any]], float]:
    return lambda channel: -channel.get(key, 0)


#: Sort keys of channels, for largest first. Channels with equal keys are sorted by name.
SORTS: dict[str, Callable[[dict[str, Any]], float]] = {
    "name": lambda _: 0,
    "depth": _value("queued"),
    "bytes": _value("queued_bytes"),
    "put": _value("put_per_s"),
    "get": _value("received_per_s"),
    "oldest": _value("oldest_seconds"),
    "full": _value("full_share"),
    "empty": _value("empty_share"),
}


class Order(NamedTuple):
    """The order of channels."""

    by: str = "name"
    is_reversed: bool = False

    def next(self) -> Order:
        names = list(SORTS)
        return Order(names[(names.index(self.by) + 1) % len(names)], self.is_reversed)


def _channels_of(snapshot: dict[str, Any]) -> Iterator[Channel]:
    for arena in snapshot["arenas"]:
        for number in range(len(arena.get("channels", ()))):
            yield arena, number


def _share(share: float, style: str) -> tuple[str, str]:
    return f"{share:.0%}", style if share >= _HALF else ""


def _channel_row(arena: dict[str, Any], number: int) -> Line:
    channel = arena["channels"][number]
    label = tables.channel_label(arena, number)
    if channel["refused"]:
        return [(label, "red"), *[("-", "")] * (len(_CHANNELS) - 1)]
    limiting = channel["limiting"]
    return [
        (label, ""),
        (f"{channel['queued']} of {channel['capacity']}" if channel["capacity"] else str(channel["queued"]), ""),
        (tables.size(channel["queued_bytes"]), ""),
        (f"{channel['put_per_s']:.0f}", ""),
        (f"{channel['received_per_s']:.0f}", ""),
        (f"> {channel['oldest_seconds']:.1f} s" if channel["oldest_seconds"] else "-", ""),
        _share(channel["full_share"], "red"),
        _share(channel["empty_share"], "yellow"),
        ("senders" if limiting["end"] == "sender" else "receivers", "bold") if limiting else ("-", ""),
    ]


def channels(snapshot: dict[str, Any], order: Order) -> Table:
    def key(channel: Channel) -> tuple[float, str]:
        arena, number = channel
        return SORTS[order.by](arena["channels"][number]), tables.channel_label(arena, number)

    found = sorted(_channels_of(snapshot), key=key, reverse=order.is_reversed)
    return Table(_CHANNELS, [_channel_row(*each) for each in found])


class _Process:
    """A process, with what it does in all arenas."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.namespace_pid = 0
        self.sends: list[str] = []
        self.receives: list[str] = []
        self.bytes = 0
        self.seconds = 0.0
        self.waits = 0.0
        self.state = ""

    def add_state(self, one: dict[str, Any]) -> None:
        self.namespace_pid = one["namespace_pid"]
        if one["stopped"]:
            self.state = "stopped"
        elif one["leaving"]:
            self.state = "exiting"
        self.waits = max((self.waits, *(wait["seconds"] for wait in one["waits"])))

    def row(self) -> Line:
        if self.pid:
            name = (str(self.pid), ""), (processes.command(self.pid) or "-", "")
        else:
            name = (str(self.namespace_pid or "-"), ""), ("in another PID namespace", "")
        state = self.state or (f"waits {self.waits:.1f} s" if self.waits >= _NOTED_S else "runs")
        return [
            *name,
            (", ".join(self.sends) or "-", ""),
            (", ".join(self.receives) or "-", ""),
            (tables.size(self.bytes) if self.bytes else "-", ""),
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
    found: dict[tuple[int, int], _Process] = {}  # by pid, and by the pid in its own namespace if it is not visible
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


def _sentences(snapshot: dict[str, Any], width: int | None) -> list[Line]:
    """Returns the limiting stage of each program, and what could not be read."""
    limits = tables.limiting_lines(snapshot)[:_MAX_LIMITS]
    style = "bold yellow" if snapshot["bottlenecks"] else ""
    said = [
        *((each, style) for each in limits),
        *((each, "red") for each in (*_killed(snapshot), *tables.refusals(snapshot))),
    ]
    return [[(line, style)] for text, style in said for line in (textwrap.wrap(text, width) if width else [text])]


def lines(
    snapshot: dict[str, Any], width: int | None = None, height: int | None = None, order: Order | None = None
) -> list[Line]:
    """Returns the lines of a snapshot, within `width` and `height` if they are given."""
    order = order or Order()
    head = _sentences(snapshot, width)
    processes_shown = Table(_PROCESSES, [process.row() for process in _processes_of(snapshot)])
    shown = channels(snapshot, order), processes_shown, tables.arenas(snapshot)
    blocks = [table.lines(width) for table in shown]
    if height is not None:
        blocks = columns.within(blocks, height - len(head) - len(blocks))
    made = list(head)
    for block in blocks:
        made += [[], *block]
    return made


def text(snapshot: dict[str, Any], width: int | None = None, order: Order | None = None) -> str:
    return "\n".join(columns.plain(line) for line in lines(snapshot, width, None, order))
