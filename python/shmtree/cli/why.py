"""The graph of processes that wait for each other, from two snapshots of an observer."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from typing import Any

from .._ipc.observer import Observer, is_of, objects, seen, users
from . import drawing, tables
from .arguments import add_json, add_verb

BETWEEN_SNAPSHOTS = 0.3  # seconds between the snapshots; a wait that is in both is not about to end
_CLOCK_S = 0.02  # tolerance between the clocks of waits and snapshots
MAX_STACKS = 16
STACK_SECONDS = 10.0


#: A waiting thread: the keys of `waits` in the result of `why`, except for `stopped`.
Wait = dict[str, Any]


def _key(wait: Wait) -> tuple[Any, ...]:
    return tuple(wait[each] for each in ("pid", "thread", "what", "arena", "block"))


def _can_go_on(what: str, channel: dict[str, Any]) -> bool:
    """Returns True if the awaited resource is available: the sleeper has not been woken yet."""
    if what == "message":
        return bool(channel["queued"])
    has_bytes = not channel["max_bytes"] or channel["queued_bytes"] == 0
    return what == "space" and has_bytes and (not channel["limit"] or channel["queued"] < channel["limit"])


def _awaited_side(wait: dict[str, Any]) -> str:
    return "sender" if wait["what"] == "message" else "receiver"


def _awaited(arena: dict[str, Any], wait: dict[str, Any]) -> list[int]:
    """Returns the processes of which any one could end the wait.

    For an end, these are the processes that have used it; if there are none, the processes that have it.
    """
    if wait["what"] == "lock":
        return [] if wait["lock_owner"] is None else [wait["lock_owner"]]
    holders = [holder["pid"] for holder in arena["holders"]] if wait["what"] == "memory" else []
    for channel in arena["channels"]:
        if channel["block"] == wait["block"] and not channel["refused"]:
            side = _awaited_side(wait)
            arriving = [0] if channel[f"{side}s_in_transit"] else []  # the end is in transit to an unknown process
            return [*holders, *(users(channel, side) or channel[f"{side}_pids"]), *arriving]
    for observed in (*arena["latests"], *arena["broadcasts"]):
        if observed["block"] == wait["block"] and not observed["refused"]:
            if wait["what"] in ("message", "newer version"):
                return list(observed["publishers"])
            return _slowest(observed["subscribers"])
    return holders


def _unused(channel: dict[str, Any], wait: dict[str, Any]) -> list[int]:
    """Returns the processes that have the end which could end the wait, if none of them has used it."""
    side = _awaited_side(wait)
    unused: list[int] = channel[f"{side}s_never_used"]
    return [] if wait["what"] == "lock" or users(channel, side) else unused


def _slowest(subscribers: list[dict[str, Any]]) -> list[int]:
    """Returns the subscribers for which a Broadcast's put waits."""
    blocking = [each for each in subscribers if each["blocks"] and each["pid"] is not None]
    most = max((each["behind"] for each in blocking), default=0)
    return [each["pid"] for each in blocking if each["behind"] == most]


def _waits(snapshot: dict[str, Any]) -> Iterator[Wait]:
    for arena in snapshot["arenas"]:
        channels = {each["block"]: each for each in arena.get("channels", ()) if not each["refused"]}
        for one in arena.get("participants", ()):
            for wait in one["waits"] if one["alive"] else ():
                channel = channels.get(wait["block"])
                if channel is not None and _can_go_on(wait["what"], channel):
                    continue
                pids = [pid for pid in dict.fromkeys(_awaited(arena, wait)) if pid != one["pid"]]
                unused = () if channel is None else _unused(channel, wait)
                yield {
                    "pid": one["pid"],
                    "arena": arena["uuid"],
                    **{key: wait[key] for key in ("thread", "what", "channel", "block", "seconds")},
                    "at": wait["at"] if wait["what"] != "lock" else "a lock",
                    "for_pids": pids,
                    "never_used": [pid for pid in pids if pid in unused],
                }


def _edges(waits: list[Wait]) -> dict[int, set[int]]:
    """Returns, for each waiting process, all processes that it waits for."""
    edges: dict[int, set[int]] = {}
    for wait in waits:
        edges.setdefault(wait["pid"], set()).update(wait["for_pids"])
    return edges


def _stuck(waits: list[Wait]) -> dict[int, set[int]]:
    """Returns the processes that wait only for each other, with the processes that they wait for.

    No process outside of this set can end any of their waits.
    """
    edges = _edges(waits)
    free = {wait["pid"] for wait in waits if not wait["for_pids"] or 0 in (wait["pid"], *wait["for_pids"])}
    while True:
        free |= {pid for pid, others in edges.items() if not others <= edges.keys() - free}
        if not free & edges.keys():
            return edges
        for pid in free:
            edges.pop(pid, None)


def _reached(edges: dict[int, set[int]], start: int) -> set[int]:
    seen: set[int] = set()
    left = [start]
    while left:
        for other in edges.get(left.pop(), ()):
            if other not in seen:
                seen.add(other)
                left.append(other)
    return seen


def _cycles(edges: dict[int, set[int]]) -> list[set[int]]:
    reached = {pid: _reached(edges, pid) for pid in edges}
    cycles: list[set[int]] = []
    for pid in sorted(edges):
        cycle = {other for other in reached[pid] if pid in reached[other]}
        if cycle and cycle not in cycles:
            cycles.append(cycle)
    return cycles


def _deadlock(cycle: set[int], waits: list[Wait]) -> dict[str, Any]:
    within = [wait for wait in waits if wait["pid"] in cycle and cycle & set(wait["for_pids"])]
    return {
        "pids": sorted(cycle),
        "channels": list(dict.fromkeys(wait["channel"] for wait in within if wait["channel"] is not None)),
        "places": list(dict.fromkeys(wait["at"] for wait in within)),
        "seconds": min(wait["seconds"] for wait in within),
    }


def _locks(snapshot: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the locks that stopped processes hold."""
    for arena in snapshot["arenas"]:
        stopped = {one["pid"] for one in arena.get("participants", ()) if one["stopped"]}
        if arena.get("locked_by") in stopped:
            yield {"pid": arena["locked_by"], "of": f"arena {tables.label(arena)}"}
        for number, channel in enumerate(arena.get("channels", ())):
            for end in ("sender", "receiver"):
                if channel.get(f"{end}_locked_by") in stopped:
                    of = f"the {end}s of channel {tables.channel_label(arena, number)}"
                    yield {"pid": channel[f"{end}_locked_by"], "of": of}


def _chosen(waits: list[Wait], snapshot: dict[str, Any], what: str) -> list[Wait]:
    """Returns the waits of a process or at a named object, and all waits on which these depend."""
    start = {wait["pid"] for wait in waits if str(wait["pid"]) == what}
    for arena in snapshot["arenas"]:
        is_arena = what in arena["names"] or (not what.isdecimal() and arena["uuid"].startswith(what))
        named = [each for each in objects(arena) if is_arena or what in each["names"]]
        blocks = {each["block"] for each in named}
        start.update(*(each.get(f"{end}_pids", ()) for each in named for end in ("sender", "receiver")))
        start |= {w["pid"] for w in waits if w["arena"] == arena["uuid"] and (is_arena or w["block"] in blocks)}
    edges = _edges(waits)
    wanted = start.union(*(_reached(edges, pid) for pid in start))
    return [wait for wait in waits if wait["pid"] in wanted]


def _stack(pid: int, program: str) -> str:
    command = [program, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=STACK_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"py-spy did not exit within {STACK_SECONDS:.0f} s"
    return (done.stdout if done.returncode == 0 else done.stderr).strip()


def stacks(pids: Iterable[int]) -> dict[str, str]:
    """Returns the stacks that py-spy prints for these processes, without stopping them; empty without py-spy."""
    program = shutil.which("py-spy")
    if program is None:
        return {}
    return {str(pid): _stack(pid, program) for pid in list(pids)[:MAX_STACKS] if pid}


def why(what: str | None = None, *, seconds: float = BETWEEN_SNAPSHOTS) -> dict[str, Any]:
    """Returns which processes wait for which others, according to two successive snapshots.

    Args:
        what: A pid, or the name of an arena or of an object in it; None means all processes.
        seconds: Time between the snapshots.

    Returns:
        A dict with these keys.

        - `waits`: pid, thread, what, at, channel, arena, block, seconds, `for_pids` (any of these could end it). Of
          these pids, `stopped` lists the stopped ones, and `never_used` those with an end that no process has used.
        - `deadlocks`: pids, channels, places, seconds.
        - `locks` of stopped processes: pid, of.
        - `refused`: arenas and channels that cannot be read, such as those of another version (what, pids, reason);
          listed independently of `what`.
        - `stacks`: text by pid, if py-spy is installed.

    Raises:
        FileNotFoundError: `what` matches nothing.
        OSError: This process has no file descriptors left.
    """
    observer = Observer()
    before = set(map(_key, _waits(seen(observer.look()))))
    began = time.monotonic()
    time.sleep(seconds)
    between = time.monotonic() - began - _CLOCK_S
    snapshot = seen(observer.look())
    if what is not None and not any(is_of(arena, what) for arena in snapshot["arenas"]):
        raise FileNotFoundError(f"no process with an arena has the pid {what!r}, and no object has that name")
    lasting = [wait for wait in _waits(snapshot) if _key(wait) in before and wait["seconds"] >= between]
    chosen = lasting if what is None else _chosen(lasting, snapshot, what)
    stopped = {one["pid"] for arena in snapshot["arenas"] for one in arena.get("participants", ()) if one["stopped"]}
    pids = dict.fromkeys(pid for wait in chosen for pid in (wait["pid"], *wait["for_pids"]))
    deadlocks = [_deadlock(cycle, lasting) for cycle in _cycles(_stuck(lasting))]
    return {
        "waits": [{**wait, "stopped": sorted(stopped & set(wait["for_pids"]))} for wait in chosen],
        "deadlocks": [each for each in deadlocks if what is None or pids.keys() & set(each["pids"])],
        "locks": [lock for lock in _locks(snapshot) if what is None or lock["pid"] in pids],
        "refused": list(tables.refused(snapshot)),
        "stacks": stacks(pids),
    }


def words(found: dict[str, Any]) -> str:
    """Returns the result of `why` as text."""
    lines = []
    for deadlock in found["deadlocks"]:
        places = ", ".join(map(drawing.printable, deadlock["places"]))
        lines.append(
            f"Deadlock: {tables.pid_list(deadlock['pids'])} have waited for each other for"
            f" {deadlock['seconds']:.1f} s, at {places}."
        )
    lines += [f"Process {lock['pid']} is stopped and holds the lock of {lock['of']}." for lock in found["locks"]]
    lines += [_wait_words(wait) for wait in found["waits"]]
    for pid, stack in found["stacks"].items():
        lines += ["", f"Python stack of {pid}:", *(f"  {line}" for line in stack.splitlines())]
    no_wait = f"No thread has waited for longer than {BETWEEN_SNAPSHOTS} s. For short, frequent waits, run shmtree top."
    lines = lines or [no_wait]
    lines += [
        f"The waits at {each['what']} of {tables.pid_list(each['pids'])} cannot be read: {each['reason']}."
        for each in found["refused"]
    ]
    return "\n".join(lines)


def _wait_words(wait: dict[str, Any]) -> str:
    article = "a " if wait["what"] in ("message", "lock", "reservation", "newer version", "rate limit") else ""
    at = f" at {drawing.printable(wait['at'])}" if wait["what"] != "lock" else ""
    peers = tables.pid_list(wait["for_pids"]) if wait["for_pids"] else "an unknown process"
    peers += tables.which(wait["for_pids"], wait["never_used"], "has never used it", "have never used it")
    peers += tables.which(wait["for_pids"], wait["stopped"], "is stopped", "are stopped")
    waiter, seconds = tables.pid_list([wait["pid"]]), wait["seconds"]
    return f"{waiter} has waited {seconds:.1f} s{at} for {article}{wait['what']}, from {peers}."


def _run_why(options: argparse.Namespace) -> int:
    found = why(options.what)
    print(json.dumps(found)) if options.json else drawing.show((words(found), ""))
    return 0


def add_to(verbs: Any) -> None:
    verb = add_verb(
        verbs,
        "why",
        "show which process waits for which others",
        """
        shmtree why
        shmtree why 4711
        shmtree why samples --json
        """,
        "It reports deadlocks. If py-spy is installed, it also shows the Python stacks of these processes.",
    )
    verb.add_argument(
        "what",
        metavar="PID|NAME",
        nargs="?",
        help="only waits of this process or at this object, and what they depend on",
    )
    add_json(verb, "print one line of JSON")
    verb.set_defaults(run=_run_why)
