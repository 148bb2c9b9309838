"""``python -m shmtree ls`` and ``clean``: the names of arenas, channels and arrays."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from .. import _core
from .._ipc.observer import observe, seen
from .._ipc.pairs import clean_names
from .._process.names import KINDS
from . import drawing, tables
from .arguments import add_json, add_verb


def _ls(options: argparse.Namespace) -> int:
    if options.all:
        snapshot = seen(observe())
        if options.json:
            print(json.dumps(snapshot))
        else:
            drawing.show(tables.arenas(snapshot), *((each, "") for each in tables.refusals(snapshot)))
        return 0
    names = _names()
    if options.json:
        print(json.dumps({"names": names}))
        return 0
    if names:
        tables.show_names((known["name"], known["kind"], _processes(known["pids"])) for known in names)
    return 0


def _processes(pids: Sequence[int]) -> str:
    return tables.pid_list(pids) if pids else "no process; shmtree clean removes it"


def _names() -> list[dict[str, Any]]:
    """Returns the names, and the processes that have the objects. Takes no locks and removes nothing."""
    records = _core.look_at_names()
    arenas = {arena["uuid"]: arena for arena in seen(observe())["arenas"]}
    return [
        {
            "name": name,
            "kind": KINDS.get(kind, "something"),
            "pids": _pids(arenas.get(uuid.hex()), block) if is_alive else [],
        }
        for name, kind, uuid, block, is_alive in sorted(records)
    ]


def _pids(arena: dict[str, Any] | None, block: int) -> list[int]:
    """Returns the processes that are attached to the channel in a block; for other objects, those that have the arena.

    A single 0 stands for processes that are not visible from here.
    """
    if arena is None:
        return [0]
    attached = {
        pid
        for channel in arena.get("channels", ())
        if channel["block"] == block and not channel["refused"]
        for pid in (*channel["sender_pids"], *channel["receiver_pids"])
    }
    pids = attached or {opener["pid"] for opener in arena["openers"] if not opener["read_only"]}
    return sorted(pids) or [0]


def _clean(options: argparse.Namespace) -> int:
    removed = clean_names()
    if options.json:
        print(json.dumps({"removed": removed}))
        return 0
    for name in removed:
        print(f"removed {drawing.printable(name)}")
    return 0


def add_to(verbs: Any) -> None:
    ls = add_verb(
        verbs,
        "ls",
        "list names, their kinds and processes",
        """
        shmtree ls
        shmtree ls --all --json
        """,
    )
    ls.add_argument("--all", action="store_true", help="list all arenas, also unnamed ones")
    add_json(ls, "print one line of JSON")
    ls.set_defaults(run=_ls)
    clean = add_verb(verbs, "clean", "remove names that killed processes left", "shmtree clean")
    add_json(clean, "print one line of JSON")
    clean.set_defaults(run=_clean)
