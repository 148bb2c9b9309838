"""``python -m shmtree ls`` and ``clean``: the names of arenas, channels and arrays."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from .._ipc.observer import observe, seen
from .._ipc.pairs import clean_names, list_names
from . import tables
from .arguments import add_json, add_verb


def _ls(options: argparse.Namespace) -> int:
    if options.all:
        snapshot = seen(observe())
        print(json.dumps(snapshot) if options.json else tables.all_arenas(snapshot))
        return 0
    names = list_names()
    if options.json:
        print(json.dumps({"names": [known._asdict() for known in names]}))
        return 0
    print(tables.names((known.name, known.kind, _processes(known.pids)) for known in names))
    return 0


def _processes(pids: Sequence[int]) -> str:
    return tables.pid_list(pids) if pids else "no process; stale, removed"


def _clean(options: argparse.Namespace) -> int:
    removed = clean_names()
    if options.json:
        print(json.dumps({"removed": removed}))
        return 0
    for name in removed:
        print(f"removed {tables.printable(name)}")
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
        "It also removes the names that killed processes left behind.",
    )
    ls.add_argument("--all", action="store_true", help="list all arenas, also unnamed ones; removes nothing")
    add_json(ls, "print one line of JSON")
    ls.set_defaults(run=_ls)
    clean = add_verb(verbs, "clean", "remove names that killed processes left", "shmtree clean")
    add_json(clean, "print one line of JSON")
    clean.set_defaults(run=_clean)
