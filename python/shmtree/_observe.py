"""Looking into this user's arenas from outside, without taking part in them."""

from __future__ import annotations

import time
from typing import Any

from . import _core
from .errors import Error

WAITED_AT_ALL = 0.01  # of the time between two looks; below, the state at the second one says more
MOST_FRAME = 64 << 20  # bytes of a queued message that is looked into


class Observer:
    """Looks again and again, for what only two looks can tell: rates, and how long messages have been waiting."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, int], list[tuple[float, int, int]]] = {}  # seconds, put, received; the last first
        self._slept: dict[tuple[str, int], tuple[float, float, float]] = {}  # when looked, full, empty; in seconds

    def look(self) -> dict[str, Any]:
        """What `observe` gives, with the rates since the last look of this object."""
        now = time.monotonic()
        arenas = _core.look()
        before, self._before = self._before, {}
        slept, self._slept = self._slept, {}
        for arena in arenas:
            for channel in arena.get("channels", ()):
                channel["name"] = next(iter(channel["names"]), None)
                if channel["refused"] is None:
                    key = (arena["uuid"], channel["block"])
                    self._add_rates(key, channel, now, before)
                    self._add_shares(key, channel, now, slept)
                    channel["limiting"] = _limiting(channel)
            arena["name"] = next(iter(arena["names"]), None)
            _name_waits(arena)
        return {"arenas": arenas}

    def _add_rates(
        self,
        key: tuple[str, int],
        channel: dict[str, Any],
        now: float,
        before: dict[tuple[str, int], list[tuple[float, int, int]]],
    ) -> None:
        looks = before.get(key, [])
        received = channel["received"] + channel["dropped"]
        seconds = now - looks[0][0] if looks else 0.0
        channel["put_per_s"] = (channel["put"] - looks[0][1]) / seconds if seconds > 0 else 0.0
        channel["received_per_s"] = (received - looks[0][2]) / seconds if seconds > 0 else 0.0
        # The oldest message has been there since the first look that had it among those that were put.
        waited = [now - at for at, put, _ in looks if put > received] if channel["queued"] else []
        channel["oldest_seconds"] = max(waited, default=0.0)
        # One look for each message that is still there to tell its age is enough, and so are those of a minute.
        self._before[key] = [(now, channel["put"], received), *(look for look in looks if look[1] > received)][:60]

    def _add_shares(
        self,
        key: tuple[str, int],
        channel: dict[str, Any],
        now: float,
        slept: dict[tuple[str, int], tuple[float, float, float]],
    ) -> None:
        full, empty = channel["full_seconds"], channel["empty_seconds"]
        at, full_then, empty_then = slept.get(key, (now, full, empty))
        seconds = now - at
        channel["full_share"] = min(max((full - full_then) / seconds, 0.0), 1.0) if seconds > 0 else 0.0
        channel["empty_share"] = min(max((empty - empty_then) / seconds, 0.0), 1.0) if seconds > 0 else 0.0
        self._slept[key] = (now, full, empty)


def _name_waits(arena: dict[str, Any]) -> None:
    """Says of each wait at what it is: `channel`, its name or its number in `channels`, and `at`, in words."""
    places: dict[int, tuple[str | int | None, str]] = {0: (None, "the arena")}
    for kind, key in (("Latest", "latests"), ("Broadcast", "broadcasts"), ("replay buffer", "replays")):
        for number, thing in enumerate(arena.get(key, ())):
            places[thing["block"]] = (None, f"{kind} {next(iter(thing['names']), number)}")
    for number, channel in enumerate(arena.get("channels", ())):
        name = channel["name"] if channel["name"] is not None else number
        places[channel["block"]] = (name, f"channel {name}")
    for participant in arena.get("participants", ()):
        for wait in participant["waits"]:
            wait["channel"], wait["at"] = places.get(wait["block"], (None, "something that has gone"))


def _limiting(channel: dict[str, Any]) -> dict[str, Any] | None:
    """The end that the other one waited for since the last look or, if nobody did, has to wait for now."""
    full, empty = channel["full_share"], channel["empty_share"]
    if max(full, empty) >= WAITED_AT_ALL:
        return _limits(channel, "receiving" if full >= empty else "sending")
    is_full = (channel["limit"] and channel["queued"] >= channel["limit"]) or (
        channel["max_bytes"] and channel["queued_bytes"] >= channel["max_bytes"]
    )
    if is_full:
        return _limits(channel, "receiving")
    if channel["queued"] == 0 and channel["receivers_wait"]:
        return _limits(channel, "sending")
    return None


def _limits(channel: dict[str, Any], end: str) -> dict[str, Any]:
    side = "receiver" if end == "receiving" else "sender"
    return {"end": end, "pids": users(channel, side) or channel[f"{side}_pids"]}


def users(channel: dict[str, Any], side: str) -> list[int]:
    """Who takes part in that end ("sender", "receiver") and has used it."""
    pids: list[int] = channel[f"{side}_pids"]
    unused = channel[f"{side}s_unused"]
    return [pid for pid in pids if pid not in unused] if unused else pids


def observe() -> dict[str, Any]:
    """What there is in the arenas that this user's processes have, named or not: `{"arenas": [...]}`, as JSON has it.

    Nobody is asked for it or held up: it takes no part and no lock, and has the arenas open for reading alone. So it
    works while those who use them are stopped, or have been killed, and changes nothing.

    An arena has its uuid (hexadecimal), `name` and `names`, `openers` (pid and fd of those that have it open), bytes
    (`max_bytes`, `committed_bytes`, `used_bytes`, `held_bytes`), `participants` (pid, alive, stopped, seconds since it
    came, and `waits`: what its threads sleep for, at which channel and for how many seconds), `holders` (pid, bytes,
    blocks, seconds of the one held for longest), `locked_by`, and what lies in it: `channels`, `latests`, `broadcasts`,
    `replays`. A channel has the keys of `Sender.stats`, and the pids of those that take part (`sender_pids`,
    `receiver_pids`), who is putting or receiving at this moment (`sender_locked_by`, `receiver_locked_by`), for how
    many seconds somebody slept for room or for messages (`full_seconds`, `empty_seconds`), and `limiting`: None, or the
    `end` that the other one waits for and its `pids`.

    `refused` says why something could not be read, as an arena of another version or one beyond a PID namespace; else
    it is None. A pid of 0 is out of sight: its process has a number of its own that is not known here (`said_pid`).
    What is not `consistent` was being changed at each look: its numbers need not be of one moment.
    """
    return Observer().look()


def _things(arena: dict[str, Any]) -> list[dict[str, Any]]:
    return [thing for key in ("channels", "latests", "broadcasts", "replays") for thing in arena.get(key, ())]


def is_of(arena: dict[str, Any], text: str) -> bool:
    """Whether a pid, a name or the beginning of a uuid means that arena."""
    if text.isdecimal() and any(opener["pid"] == int(text) for opener in arena["openers"]):
        return True
    if text in arena["names"] or any(text in thing["names"] for thing in _things(arena)):
        return True
    return len(text) >= 8 and arena["uuid"].startswith(text)


def messages(arena: dict[str, Any], channel: dict[str, Any], most: int) -> list[dict[str, Any]]:
    """The first messages that are queued in a channel, described and not taken."""
    found = _core.look_at_queue(bytes.fromhex(arena["uuid"]), channel["block"], most, MOST_FRAME)
    return [
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
