"""``python -m shmtree top``: all arenas, channels and processes, refreshed periodically."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from .._ipc.observer import Observer, bottlenecks, is_of, seen
from . import screen, tables, terminal
from .arguments import add_json, add_verb, seconds
from .columns import Line, cut
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
    order = screen.Order(options.sort)
    if options.once or options.json or not terminal.can_draw():
        while True:
            snapshot = observer.look()
            text = json.dumps(snapshot) if options.json else screen.text(snapshot, tables.width(), order)
            print(text, flush=True)
            if options.once:
                return 0
            if not options.json:
                print(flush=True)
            time.sleep(options.interval)
    with terminal.ended_by_signals():
        return _draw(observer, options.interval, order)


def _draw(observer: _Chosen, interval: float, order: screen.Order) -> int:
    from rich.console import Console
    from rich.live import Live

    snapshot = observer.look()
    console = Console()
    with terminal.Keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_drawn(snapshot, console.width, console.height, order), refresh=True)
            due = time.monotonic() + interval
            while (left := due - time.monotonic()) > 0:
                key = keys.next(left, live)
                if key == "q":
                    return 0
                if key == "s":
                    order = order.next()
                elif key == "r":
                    order = order._replace(is_reversed=not order.is_reversed)
                if key:
                    live.update(_drawn(snapshot, console.width, console.height, order), refresh=True)
            snapshot = observer.look()


def _drawn(snapshot: dict[str, Any], width: int, height: int, order: screen.Order) -> Any:
    from rich.text import Text

    sorted_by = f"{order.by}{', reversed' if order.is_reversed else ''}"
    foot = cut(f"q quits, s sorts by another column (now: {sorted_by}), r reverses", width)
    shown: list[Line] = screen.lines(snapshot, width, height - 2, order)
    shown += [[]] * (height - 1 - len(shown)) + [[(foot, "dim")]]
    drawn = Text("\n", no_wrap=True, overflow="crop").join(Text.assemble(*line) for line in shown)
    drawn.no_wrap, drawn.overflow = True, "crop"
    return drawn


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
        "It also shows the arenas. On a terminal, with rich, it draws one page again and again: q quits, s sorts by"
        " another column, r reverses the order.",
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
