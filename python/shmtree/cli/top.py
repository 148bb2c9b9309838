"""``python -m shmtree top``: all arenas and channels, refreshed periodically."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from typing import Any

from .._ipc.observer import Observer, seen
from . import tables
from .arguments import add_json, add_verb, seconds

FIRST_INTERVAL = 0.5  # minimum interval in seconds over which rates are measured


def _top(options: argparse.Namespace) -> int:
    observer = Observer()
    observer.look()
    time.sleep(min(options.interval, FIRST_INTERVAL))
    if options.once or options.json or not sys.stdout.isatty() or importlib.util.find_spec("rich") is None:
        while True:
            snapshot = seen(observer.look())
            print(json.dumps(snapshot) if options.json else tables.top(snapshot), flush=True)
            if options.once:
                return 0
            time.sleep(options.interval)
    from rich.live import Live
    from rich.text import Text

    with Live(Text(tables.top(seen(observer.look()))), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(options.interval)
            live.update(Text(tables.top(seen(observer.look()))), refresh=True)


def add_to(verbs: Any) -> None:
    verb = add_verb(
        verbs,
        "top",
        "show all arenas and channels, pinned memory, and the bottleneck",
        """
        shmtree top
        shmtree top --once --json
        """,
    )
    verb.add_argument("--once", action="store_true", help="print one snapshot and exit")
    verb.add_argument("--interval", type=seconds, default=1.0, help="seconds between snapshots (default: %(default)s)")
    add_json(verb)
    verb.set_defaults(run=_top)
