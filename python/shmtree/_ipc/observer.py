"""Looking into this user's arenas from outside, without taking part in them."""

from __future__ import annotations

from typing import Any

from .. import _core
from .._core import Observer as Observer
from ..errors import Error

MOST_FRAME = 64 << 20  # bytes of a queued message that is looked into
NO_UUID = "0" * 32  # of an arena that could not be read


def users(channel: dict[str, Any], side: str) -> list[int]:
    """Who takes part in that end ("sender", "receiver") and has used it."""
    pids: list[int] = channel[f"{side}_pids"]
    unused = channel[f"{side}s_unused"]
    return [pid for pid in pids if pid not in unused] if unused else pids


def observe() -> dict[str, Any]:
    """What there is in the arenas that this user's processes have, named or not: `{"arenas": [...]}`, as JSON has it.

    Nobody is asked for it or held up: it takes no part and no lock, and has the arenas open for reading alone. So it
    works while those who use them are stopped, or have been killed, and changes nothing.

    An arena has its uuid (hexadecimal), `name` and `names`, `openers` (pid and fd of those that have it open;
    `read_only` ones, which only look, where there are no others), bytes (`max_bytes`, `committed_bytes`, `used_bytes`,
    `held_bytes`), `participants` (pid, alive, stopped, seconds since it came, and `waits`: what its threads sleep for,
    at which channel and for how many seconds), `holders` (pid, bytes, blocks, seconds of the one held for longest),
    `locked_by`, and what lies in it: `channels`, `latests`, `broadcasts`, `replays`. A channel has the keys of
    `Sender.stats`, and the pids of those that take part (`sender_pids`, `receiver_pids`), who is putting or receiving
    at this moment (`sender_locked_by`, `receiver_locked_by`), for how many seconds somebody slept for room or for
    messages (`full_seconds`, `empty_seconds`), and `limiting`: None, or the `end` that the other one waits for and its
    `pids`.

    `refused` says why something could not be read, as an arena of another version or one beyond a PID namespace; else
    it is None. A look needs two free descriptors: with fewer, all that it has is an arena that was refused for it,
    whose uuid is zeros. A pid of 0 is out of sight: its process has a number of its own that is not known here
    (`said_pid`). What is not `consistent` was being changed at each look: its numbers need not be of one moment.
    """
    return Observer().look()


def seen(look: dict[str, Any]) -> dict[str, Any]:
    """The look. OSError where nothing could be seen, since this process has no descriptors left to look with."""
    arenas = look["arenas"]
    if len(arenas) == 1 and arenas[0]["uuid"] == NO_UUID and not arenas[0]["openers"]:
        raise OSError(f"nothing can be seen: {arenas[0]['refused']}")
    return look


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
