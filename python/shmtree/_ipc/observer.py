"""Inspection of this user's arenas from outside, without attaching to them."""

from __future__ import annotations

import contextlib
from typing import Any

from .. import _core
from ..errors import Error

MAX_FRAME_BYTES = 64 << 20  # largest queued message, in bytes, that is described
NO_UUID = "0" * 32  # uuid of an arena that could not be read


def users(channel: dict[str, Any], side: str) -> list[int]:
    """Returns the pids that are attached to an end ("sender" or "receiver") and have used it."""
    pids: list[int] = channel[f"{side}_pids"]
    unused = channel[f"{side}s_never_used"]
    return [pid for pid in pids if pid not in unused] if unused else pids


class Observer(_core.Observer):
    """Takes snapshots repeatedly, for values that need two of them.

    Examples are rates, shares of time, and how long messages have waited. Use it in one thread at a time.
    """

    def look(self) -> dict[str, Any]:
        """Returns the result of `observe`, with what has changed since the last call on this object."""
        snapshot = super().look()
        return {**snapshot, "bottlenecks": bottlenecks(snapshot)}


def observe() -> dict[str, Any]:
    """Returns a snapshot of the arenas that this user's processes have, named or not, as for JSON.

    The observer takes no lock, attaches to nothing, and maps the arenas read-only. It works while the attached
    processes are stopped or dead, does not delay them, and changes nothing. A snapshot needs two free descriptors.

    Returns:
        A dict with the lists `arenas` and `bottlenecks`. The second one has, for each program, the end of a channel
        that limits it: `arena` (uuid), `channel` (its number in the arena), `end` and `pids`. Only an `Observer` that
        has looked twice finds all of them. Each arena is a dict with these keys.

        - `uuid` (hexadecimal), `name`, `names`.
        - `openers`: pid and fd of the processes that have the arena open. Openers with `read_only`, which only observe,
          are listed if there are no others.
        - `max_bytes`, `committed_bytes`, `used_bytes`, `held_bytes`.
        - `participants`: pid, alive, stopped, seconds since it attached, and `waits`: what its threads sleep for, at
          which channel, and for how many seconds.
        - `holders`: pid, bytes, blocks, and the age in seconds of the block that is pinned for longest.
        - `locked_by`: pid of the process that holds the arena's lock.
        - `channels`, `latests`, `broadcasts`, `replays`: the objects in the arena.

        A channel has the keys of `Sender.stats`, and these.

        - `sender_pids`, `receiver_pids`: attached processes.
        - `sender_locked_by`, `receiver_locked_by`: the process that is putting or receiving now.
        - `full_seconds`, `empty_seconds`: time that processes slept for space or for messages.
        - `limiting`: None, or the `end` that the other one waits for, and its `pids`.

        Arenas and all objects in them also have these.

        - `refused`: None, or the reason why it could not be read, such as another layout version or a PID namespace.
          With fewer than two free descriptors, the snapshot has a single refused arena, and its uuid is zeros.
        - `consistent`: False if the arena changed during every attempt to read it, so that its numbers may be from
          different moments.

        A pid of 0 belongs to a process that is not visible from here; `namespace_pid` is the pid that it has in its own
        namespace.
    """
    return Observer().look()


def seen(snapshot: dict[str, Any]) -> dict[str, Any]:
    """Returns `snapshot`. Raises OSError if it is empty because this process has no free descriptors."""
    arenas = snapshot["arenas"]
    if len(arenas) == 1 and arenas[0]["uuid"] == NO_UUID and not arenas[0]["openers"]:
        raise OSError(f"cannot observe any arena: {arenas[0]['refused']}")
    return snapshot


def bottlenecks(snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the limiting stage of each program, the one that others wait for most first.

    Processes that channels connect form a program. A channel counts if it has passed a message since the last snapshot,
    or has messages while a process waits for space in it. So idle services and readers do not count.

    The limiting stage is an end that others wait for and that no process has. If there is none, it is the end with the
    largest difference between the time that others wait for it and the time that its own processes wait.

    Returns:
        A list of dicts with the keys `arena` (uuid), `channel` (its number in the arena), `end` ("sender" or
        "receiver") and `pids`.
    """
    used = [
        (arena, number, channel)
        for arena in snapshot["arenas"]
        for number, channel in enumerate(arena.get("channels", ()))
        if not channel["refused"] and _is_used(channel)
    ]
    waits: dict[int, float] = {}  # by process: the longest of its waits
    program: dict[int, list[int]] = {}  # by process: all processes of its program
    for _, _, channel in used:
        for side, share in (("sender", channel["full_share"]), ("receiver", channel["empty_share"])):
            for pid in users(channel, side):
                waits[pid] = max(waits.get(pid, 0.0), share)
        merged = sorted({each for pid in _pids(channel) for each in program.get(pid, [pid])})
        program.update((pid, merged) for pid in merged)

    def rank(limit: tuple[dict[str, Any], int, dict[str, Any]]) -> tuple[int, float, int, int]:
        _, number, channel = limit
        pids, share = channel["limiting"]["pids"], max(channel["full_share"], channel["empty_share"])
        least = min((waits.get(pid, 0.0) for pid in pids), default=0.0)
        return 1 if pids else 2 if share else 0, share - least, channel["queued"], number

    found: dict[tuple[int, ...], dict[str, Any]] = {}  # by program
    for arena, number, channel in sorted((each for each in used if each[2]["limiting"]), key=rank, reverse=True):
        pids = _pids(channel)
        key = tuple(program[pids[0]]) if pids else (-number,)
        found.setdefault(key, {"arena": arena["uuid"], "channel": number, **channel["limiting"]})
    return list(found.values())


def _is_used(channel: dict[str, Any]) -> bool:
    waits_for_space = channel["queued"] and channel["limiting"] and channel["limiting"]["end"] == "receiver"
    return bool(channel["put_per_s"] or channel["received_per_s"] or waits_for_space)


def _pids(channel: dict[str, Any]) -> list[int]:
    return users(channel, "sender") + users(channel, "receiver")


def objects(arena: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the channels and all other objects in an arena."""
    return [observed for key in ("channels", "latests", "broadcasts", "replays") for observed in arena.get(key, ())]


def is_of(arena: dict[str, Any], text: str) -> bool:
    """Returns True if a pid, a name or the first digits of a uuid identify this arena."""
    if text.isdecimal() and any(opener["pid"] == int(text) for opener in arena["openers"]):
        return True
    if text in arena["names"] or any(text in observed["names"] for observed in objects(arena)):
        return True
    return len(text) >= 8 and arena["uuid"].startswith(text)


def add_messages(arena: dict[str, Any], most: int) -> None:
    """Adds descriptions of the first queued messages to each channel as `messages`, without taking them."""
    for channel in arena.get("channels", ()):
        if channel["refused"] is None:
            with contextlib.suppress(FileNotFoundError):  # the arena may be gone by now
                found = _core.look_at_queue(bytes.fromhex(arena["uuid"]), channel["block"], most, MAX_FRAME_BYTES)
                channel["messages"] = [
                    {"ticket": ticket, "bytes": size, "sender": sender, "description": _describe(frame)}
                    for ticket, size, sender, frame in found
                ]


def _describe(frame: bytes) -> str | None:
    if not frame:
        return None
    try:
        return _core._describe(frame)
    except Error as error:
        return str(error)
