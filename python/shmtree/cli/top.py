"""``python -m shmtree top``: all arenas, channels and processes, refreshed periodically."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from typing import Any

from .._ipc.observer import Observer, bottlenecks, is_of, seen
from . import drawing, screen
from .arguments import add_json, add_verb, seconds
from .results import failed

FIRST_INTERVAL = 0.5  # minimum interval in seconds over which rates are measured


class _Chosen:
    """Snapshots of the arenas that a name or pid identifies, or of all."""

    def __init__(self, what: str | None) -> None:
        self._observer, self._what = Observer(), what

    def look(self) -> dict[str, Any]:
        snapshot = seen(self._observer.look())
        if self._what is None:
            return snapshot
        snapshot["arenas"] = [arena for arena in snapshot["arenas"] if is_of(arena, self._what)]
        snapshot["bottlenecks"] = bottlenecks(snapshot)
        return snapshot


def _top(options: argparse.Namespace) -> int:
    observer = _Chosen(options.what)
    if not observer.look()["arenas"] and options.what is not None:
        return failed(
            f"no process, name or uuid {options.what!r} among the arenas of this user; shmtree ls --all lists them"
        )
    time.sleep(min(options.interval, FIRST_INTERVAL))
    if not options.once and not options.json and sys.stdout.isatty() and drawing.has_rich():
        _draw(observer, options)
    while True:
        snapshot = observer.look()
        if options.json:
            print(json.dumps(snapshot), flush=True)
        else:
            width = shutil.get_terminal_size().columns  # elsewhere COLUMNS, or 80
            drawing.show(*screen.blocks(snapshot, options.sort), *([] if options.once else [("", "")]), width=width)
        if options.once:
            return 0
        time.sleep(options.interval)


def _draw(observer: _Chosen, options: argparse.Namespace) -> None:
    """Redraws the page until a signal ends the program. Returns at once on a terminal that cannot be drawn on."""
    from rich.console import Console, Group
    from rich.live import Live

    console = Console()
    if console.is_dumb_terminal:
        return
    snapshot = observer.look()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            shown = screen.blocks(snapshot, options.sort, console.height)
            live.update(Group(*(drawing.drawn(block, console.width) for block in shown)), refresh=True)
            time.sleep(options.interval)
            snapshot = observer.look()


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
