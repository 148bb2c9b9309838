"""The observer's snapshot as readable text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from .._ipc.observer import users
from .drawing import Table, printable, show, size

_SHOWN = 4  # maximum number of objects of a list that are named


def pid_list(pids: Iterable[int]) -> str:
    """Returns the pids as a list. A pid of 0 stands for a process of another PID namespace."""
    return ", ".join(str(pid) if pid else "in another PID namespace" for pid in pids) or "-"


def show_names(known: Iterable[tuple[str, str, str]]) -> None:
    """Prints names, kinds and processes: a table on a terminal, otherwise fields that tabs separate."""
    rows = [[(printable(name), ""), (kind, ""), (pids, "")] for name, kind, pids in known]
    if sys.stdout.isatty():
        show(Table(("NAME", "KIND", "PROCESSES"), rows))
    else:
        for row in rows:
            print(*(text for text, _ in row), sep="\t")


def unknown(what: str) -> str:
    return f"no process, name or uuid {what!r} among the arenas of this user; shmtree ls --all lists them"


def refused(snapshot: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the arenas and channels that could not be read: `what`, `pids` and `reason`."""
    for arena in snapshot["arenas"]:
        pids = [opener["pid"] for opener in arena["openers"]]
        objects = [(f"arena {label(arena)}", arena["refused"])]
        for number, channel in enumerate(arena.get("channels", ())):
            objects.append((f"channel {channel_label(arena, number)}", channel["refused"]))
        yield from ({"what": what, "pids": pids, "reason": reason} for what, reason in objects if reason)


def refusals(snapshot: dict[str, Any]) -> list[str]:
    """Returns a sentence for each reason why arenas or channels could not be read."""
    found: dict[str, list[str]] = {}
    for each in refused(snapshot):
        found.setdefault(each["reason"], []).append(each["what"])
    return [f"Cannot read {first(objects)}: {reason}." for reason, objects in found.items()]


def first(labels: list[str]) -> str:
    others = len(labels) - _SHOWN
    return ", ".join(labels[:_SHOWN]) + (f" and {others} more" if others > 0 else "")


def label(arena: dict[str, Any]) -> str:
    return printable(arena["name"]) if arena["name"] else arena["uuid"][:8]


def channel_label(arena: dict[str, Any], number: int) -> str:
    name = arena["channels"][number]["name"]
    return printable(name) if name else f"{label(arena)}:{number}"


def _depth(channel: dict[str, Any]) -> str:
    return f"{channel['queued']} of {channel['capacity'] or 'unlimited'}"


def _waits_for(channel: dict[str, Any]) -> str:
    limiting = channel["limiting"]
    return str(limiting["end"]) if limiting else "-"


def arenas(snapshot: dict[str, Any]) -> Table:
    """Returns the arenas, and the named objects in them."""
    rows: list[list[str]] = []
    for arena in snapshot["arenas"]:
        pids = _openers(arena)
        if arena["refused"]:
            rows.append([label(arena), "arena", pids, "-", "-"])
            continue
        rows.append([label(arena), "arena", pids, size(arena["used_bytes"]), size(arena["max_bytes"])])
        for kind in ("channel", "latest", "broadcast", "replay"):
            rows.extend(_named(arena[f"{kind}s"], kind))
    return Table(("ARENA", "KIND", "PROCESSES", "USED", "OF"), [[(cell, "") for cell in row] for row in rows])


def _openers(arena: dict[str, Any]) -> str:
    pids = pid_list(opener["pid"] for opener in arena["openers"])
    return f"only observed by {pids}" if any(opener["read_only"] for opener in arena["openers"]) else pids


def _named(objects: list[dict[str, Any]], kind: str) -> list[list[str]]:
    return [[f"  {printable(name)}", kind, "", "", ""] for observed in objects for name in observed["names"]]


def which(pids: Sequence[int], some: Sequence[int], one_does: str, they_do: str) -> str:
    """Returns the words that follow process ids if only some of these processes have used the end."""
    if not some:
        return ""
    does = one_does if len(some) == 1 else they_do
    return f", which {does}" if len(some) == len(pids) else f", of which {pid_list(some)} {does}"


def limiting_lines(snapshot: dict[str, Any]) -> list[str]:
    """Returns a sentence for the limiting stage of each program."""
    arenas = {arena["uuid"]: arena for arena in snapshot["arenas"]}
    found = [_limit_words(arenas[each["arena"]], each["channel"]) for each in snapshot["bottlenecks"]]
    return [f"Bottleneck: {words}." for words in found] or ["No bottleneck found among the channels in use."]


def _limit_words(arena: dict[str, Any], number: int) -> str:
    channel, name = arena["channels"][number], channel_label(arena, number)
    end, pids = channel["limiting"]["end"], channel["limiting"]["pids"]
    does = "receives from" if end == "receiver" else "sends to"
    if not pids:
        return f"no process {does} {name}"
    stopped_pids = [one["pid"] for one in arena["participants"] if one["stopped"] and one["pid"] in pids]
    stopped = which(pids, stopped_pids, "is stopped", "are stopped")
    if not users(channel, end):
        attached = f"{', ' if stopped else ' '}{'is' if len(pids) == 1 else 'are'} attached"
        return f"no process has used the {end} of {name}; {pid_list(pids)}{stopped}{attached}"
    return f"the process that {does} {name}, {pid_list(pids)}{stopped}"


def participant(one: dict[str, Any]) -> str:
    dead = "has exited, awaits recovery" if one["leaving"] else "was killed, awaits recovery"
    state = dead if not one["alive"] else "stopped" if one["stopped"] else "alive"
    number = str(one["pid"]) if one["pid"] else f"in another PID namespace, where its pid is {one['namespace_pid']}"
    if not one["alive"] and not one["pid"]:
        number = str(one["namespace_pid"])
    leaving = ", about to exit" if one["alive"] and one["leaving"] else ""
    waits = "".join(f"; {wait_words(wait)}" for wait in one["waits"])
    return f"  process {number}: {state}{leaving}; attached {one['seconds']:.1f} s ago{waits}"


def wait_words(wait: dict[str, Any]) -> str:
    """Returns a description of the event for which a thread sleeps."""
    if wait["what"] == "lock":
        owner = "a process that has exited" if wait["lock_owner"] is None else pid_list([wait["lock_owner"]])
        return f"has waited {wait['seconds']:.1f} s for a lock held by {owner}"
    article = "a " if wait["what"] in ("message", "reservation", "newer version", "rate limit") else ""
    return f"has waited {wait['seconds']:.1f} s at {printable(wait['at'])} for {article}{wait['what']}"


def _end(channel: dict[str, Any], end: str) -> str:
    text = f"    {end}s: {pid_list(channel[f'{end}_pids'])}"
    if channel[f"{end}s_never_used"]:
        text += f"; not yet used by {pid_list(channel[f'{end}s_never_used'])}"
    if channel[f"{end}s_in_transit"]:
        text += f"; {channel[f'{end}s_in_transit']} in transit"
    if channel[f"{end}_locked_by"] is not None:
        text += f"; lock held by {pid_list([channel[f'{end}_locked_by']])}"
    return text


def inspect_channel(arena: dict[str, Any], number: int) -> list[str]:
    channel = arena["channels"][number]
    if channel["refused"]:
        return [f"  channel {channel_label(arena, number)}: {channel['refused']}"]
    lines = [
        f"  channel {channel_label(arena, number)}: {_depth(channel)} queued, {size(channel['queued_bytes'])};"
        f" {channel['put']} put, {channel['received']} received, {channel['taken']} taken,"
        f" {channel['dropped']} dropped",
        _end(channel, "sender"),
        _end(channel, "receiver"),
    ]
    if channel["limiting"]:
        lines.append(f"    waits for its {_waits_for(channel)}: {pid_list(channel['limiting']['pids'])}")
    for message in channel.get("messages", ()):
        sender = pid_list([message["sender"]]) if message["sender"] is not None else "a process that has exited"
        lines.append(f"    message {message['ticket']}, {size(message['bytes'])}, from {sender}:")
        described = message["description"] or "not described: larger than 64 MiB, or received meanwhile"
        lines += [f"      {line}" for line in described.splitlines()]
    return lines


def inspect(arena: dict[str, Any]) -> str:
    """Returns a description of one arena."""
    names = f" ({', '.join(map(printable, arena['names']))})" if arena["names"] else ""
    lines = [f"arena {arena['uuid']}{names}"]
    if arena["refused"]:
        return "\n".join([*lines, f"  {arena['refused']}"])
    lines.append(
        f"  {size(arena['used_bytes'])} of {size(arena['max_bytes'])} used, {size(arena['committed_bytes'])} committed,"
        f" {size(arena['held_bytes'])} pinned, in {arena['blocks']} blocks"
    )
    if arena["locked_by"] is not None:
        lines.append(f"  lock held by {pid_list([arena['locked_by']])}")
    lines += [participant(one) for one in arena["participants"]]
    for holder in arena["holders"]:
        lines.append(
            f"  {pid_list([holder['pid']])} pins {size(holder['bytes'])} in {holder['blocks']} blocks,"
            f" the oldest for {holder['seconds']:.1f} s"
        )
    for number in range(len(arena["channels"])):
        lines += inspect_channel(arena, number)
    lines += [_line("latest", _latest, one) for one in arena["latests"]]
    lines += [_line("broadcast", _broadcast, one) for one in arena["broadcasts"]]
    lines += [_line("replay", _replay, one) for one in arena["replays"]]
    return "\n".join(lines)


def names_of(observed: dict[str, Any]) -> str:
    return ", ".join(map(printable, observed["names"])) or "(unnamed)"


def _line(kind: str, describe: Callable[[dict[str, Any]], str], observed: dict[str, Any]) -> str:
    return f"  {kind} {names_of(observed)}: {observed['refused'] or describe(observed)}"


def _latest(latest: dict[str, Any]) -> str:
    return f"version {latest['version']}, published by {pid_list(latest['publishers'])}"


def _broadcast(broadcast: dict[str, Any]) -> str:
    behind = [
        f"{'an unused subscription' if each['pid'] is None else pid_list([each['pid']])} is {each['behind']} behind"
        for each in broadcast["subscribers"]
    ]
    return f"{broadcast['put']} put; {', '.join(behind) or 'no subscribers'}"


def _replay(replay: dict[str, Any]) -> str:
    return f"{replay['rows']} of {replay['capacity']} rows"
