"""``python -m shmtree inspect``: the contents of one arena."""

from __future__ import annotations

import argparse
import json
from typing import Any

from .._ipc.observer import add_messages, is_of, observe, seen
from . import drawing, tables
from .arguments import add_json, add_verb, count
from .results import failed

MAX_MESSAGES = 8


def _is_channel(channel: dict[str, Any], number: int, text: str) -> bool:
    return text in channel["names"] or text == str(number)


def _inspect(options: argparse.Namespace) -> int:
    arenas = seen(observe())["arenas"]
    found, chosen = [arena for arena in arenas if is_of(arena, options.what)], ""
    if not found and ":" in options.what:
        what, _, chosen = options.what.rpartition(":")
        found = [arena for arena in arenas if is_of(arena, what)]
    if chosen:
        for arena in found:
            arena["channels"] = [
                each for number, each in enumerate(arena.get("channels", ())) if _is_channel(each, number, chosen)
            ]
        found = [arena for arena in found if arena["channels"]]
    if not found:
        return failed(tables.unknown(options.what))
    for arena in found:
        add_messages(arena, options.messages)
    if options.json:
        print(json.dumps({"arenas": found}))
    else:
        drawing.show(("\n\n".join(map(tables.inspect, found)), ""))
    return 0


def add_to(verbs: Any) -> None:
    examples = """
        shmtree inspect 4711
        shmtree inspect samples --messages 2
        shmtree inspect 4711:samples --json
        """
    details = "The messages stay queued."
    verb = add_verb(verbs, "inspect", "describe an arena and its queued messages", examples, details)
    what = "a pid, a name, or at least the first 8 digits of a uuid"
    verb.add_argument("what", metavar="PID|NAME[:CHANNEL]", help=what)
    most = "messages of each channel to describe (default: %(default)s)"
    verb.add_argument("--messages", metavar="N", type=count, default=MAX_MESSAGES, help=most)
    add_json(verb, "print one line of JSON")
    verb.set_defaults(run=_inspect)
