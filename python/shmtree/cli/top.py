"""``python -m shmtree top``: all arenas, channels and processes, refreshed periodically."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

from .._ipc.observer import Observer, bottlenecks, is_of, seen
from . import drawing, screen, tables
from .arguments import add_json, add_verb, seconds
from .results import failed

FIRST_INTERVAL = 0.5  # minimum interval in seconds over which rates are measured


def _snapshots(what: str | None) -> Callable[[], dict[str, Any]]:
    """Returns a function that takes a snapshot of the arenas that a name or pid identifies, or of all."""
    observer = Observer()

    def look() -> dict[str, Any]:
        snapshot = seen(observer.look())
        if what is None:
            return snapshot
        snapshot["arenas"] = [arena for arena in snapshot["arenas"] if is_of(arena, what)]
        return {**snapshot, "bottlenecks": bottlenecks(snapshot)}

    return look


def _top(options: argparse.Namespace) -> int:
    look = _snapshots(options.what)
    if not look()["arenas"] and options.what is not None:
        return failed(tables.unknown(options.what))
    time.sleep(min(options.interval, FIRST_INTERVAL))
    if not options.once and not options.json and sys.stdout.isatty() and drawing.has_rich():
        _draw(look, options)
    while True:
        snapshot = look()
        if options.json:
            print(json.dumps(snapshot), flush=True)
        else:
            width = shutil.get_terminal_size().columns  # elsewhere COLUMNS, or 80
            drawing.show(*screen.blocks(snapshot, options.sort), *([] if options.once else [("", "")]), width=width)
        if options.once:
            return 0
        time.sleep(options.interval)


def _draw(look: Callable[[], dict[str, Any]], options: argparse.Namespace) -> None:
    """Redraws the page until a signal ends the program. Returns at once on a terminal that cannot be drawn on."""
    from rich.console import Console, Group
    from rich.live import Live

    console = Console()
    if console.is_dumb_terminal:
        return
    snapshot = look()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            shown = screen.blocks(snapshot, options.sort, console.height)
            live.update(Group(*(drawing.drawn(block, console.width) for block in shown)), refresh=True)
            time.sleep(options.interval)
            snapshot = look()


def add_to(verbs: Any) -> None:
    verb = add_verb(
        verbs,
        "top",
        "show channels, processes and the bottleneck",
        """
        shmtree top
        shmtree top samples
        shmtree top --sort depth --interval 5
        shmtree top --once --json
        """,
        "It also shows the arenas. On a terminal, with rich, it draws one page again and again, until Ctrl-C.",
    )
    verb.add_argument(
        "what", metavar="PID|NAME", nargs="?", help="show only the arenas of this process or name (default: all)"
    )
    verb.add_argument("--once", action="store_true", help="print one snapshot and exit")
    verb.add_argument(
        "--interval", metavar="S", type=seconds, default=1.0, help="seconds between snapshots (default: %(default)s)"
    )
    verb.add_argument(
        "--sort", choices=screen.SORTS, default="name", help="order of the channels (default: %(default)s)"
    )
    add_json(verb)
    verb.set_defaults(run=_top)
