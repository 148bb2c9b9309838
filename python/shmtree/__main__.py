"""``python -m shmtree``: shows and sweeps the names of arenas, channels and arrays, and looks into all of them."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from typing import Any

from . import _recording_verbs, _shown, _why, clean_names, list_names, observe
from ._metrics import Server
from ._observe import Observer, is_of, messages, seen
from ._watch import Watch

MOST_MESSAGES = 8
MOST_SECONDS = 86400.0  # between looks
FIRST_LOOK = 0.5  # seconds that rates are measured over at least


def _ls(options: argparse.Namespace) -> int:
    if options.all:
        look = seen(observe())
        print(json.dumps(look) if options.json else _shown.table(_shown.ARENAS, _shown.arena_rows(look)))
        return 0
    names = list_names()
    if options.json:
        print(json.dumps({"names": [known._asdict() for known in names]}))
        return 0
    for known in names:
        who = ", ".join(str(pid) if pid else "out of sight" for pid in known.pids) or "nobody, left over: removed"
        print(f"{_shown.printable(known.name)}\t{known.kind}\t{who}")
    return 0


def _clean(_: argparse.Namespace) -> int:
    for name in clean_names():
        print(f"removed {_shown.printable(name)}")
    return 0


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
        print(f"shmtree: nothing that this user's processes have is {options.what!r}", file=sys.stderr)
        return 1
    for arena in found:
        for channel in arena.get("channels", ()):
            if channel["refused"] is None:
                with contextlib.suppress(FileNotFoundError):  # it went meanwhile
                    channel["messages"] = messages(arena, channel, options.messages)
    print(json.dumps({"arenas": found}) if options.json else "\n\n".join(map(_shown.inspect, found)))
    return 0


def _top(options: argparse.Namespace) -> int:
    observer = Observer()
    observer.look()
    time.sleep(min(options.interval, FIRST_LOOK))
    if options.once or options.json or not sys.stdout.isatty() or importlib.util.find_spec("rich") is None:
        while True:
            look = seen(observer.look())
            print(json.dumps(look) if options.json else _shown.top(look), flush=True)
            if options.once:
                return 0
            time.sleep(options.interval)
    from rich.live import Live
    from rich.text import Text

    with Live(Text(_shown.top(seen(observer.look()))), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(options.interval)
            live.update(Text(_shown.top(seen(observer.look()))), refresh=True)


def _run_why(options: argparse.Namespace) -> int:
    found = _why.why(options.what)
    print(json.dumps(found) if options.json else _why.words(found))
    return 0


def _run_watch(options: argparse.Namespace) -> int:
    # It keeps a descriptor of each arena and of each process, however many there are.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    watch, trouble = Watch(options.dump, options.names), ""
    is_first = True
    while True:
        for path, pids in watch.look():
            words = f"{_shown.who(pids)} {'was' if len(pids) == 1 else 'were'} killed: {path}"
            print(json.dumps({"dump": path, "killed": pids}) if options.json else words, flush=True)
        if watch.trouble not in ("", trouble):
            print(f"shmtree: {watch.trouble}", file=sys.stderr)
        trouble = watch.trouble
        if is_first:
            print(json.dumps({"watching": len(watch)}) if options.json else f"watching {len(watch)}", flush=True)
        is_first = False
        watch.wait(options.interval)


def _run_metrics(options: argparse.Namespace) -> int:
    try:
        server = Server(options.port, options.host)
    except OSError as error:
        print(f"shmtree: port {options.port}: {error.strerror}", file=sys.stderr)
        return 1
    with server:
        print(server.address, flush=True)
        server.serve_forever()
    return 0


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text} is no port: they go from 0, which takes a free one, to 65535")
    return port


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to {MOST_SECONDS:.0f} seconds")
    return seconds


def _count(text: str) -> int:
    count = int(text)
    if not 0 <= count <= sys.maxsize:
        raise argparse.ArgumentTypeError(f"{text} is no number of messages")
    return count


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="shmtree", description="What this user's processes share.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    ls = verbs.add_parser(
        "ls", help="show the names, what they are of, and which processes have them; remove those left over"
    )
    ls.add_argument("--all", action="store_true", help="show arenas without a name, too; only looks, removes nothing")
    ls.set_defaults(run=_ls)
    verbs.add_parser("clean", help="remove the names that a kill left over").set_defaults(run=_clean)
    inspect = verbs.add_parser("inspect", help="what lies in an arena, in words; queued messages stay queued")
    inspect.add_argument("what", metavar="PID|NAME[:CHANNEL]", help="a process, a name, or 8 digits of a uuid or more")
    inspect.add_argument(
        "--messages", type=_count, default=MOST_MESSAGES, help="how many of a channel to describe (%(default)s)"
    )
    inspect.set_defaults(run=_inspect)
    top = verbs.add_parser("top", help="all arenas and channels, who holds what, and which stage limits")
    top.add_argument("--once", action="store_true", help="look once, and end")
    top.add_argument("--interval", type=_seconds, default=1.0, help="seconds between looks (%(default)s)")
    top.set_defaults(run=_top)
    why = verbs.add_parser("why", help="who waits for whom, what for and since when; deadlocks; stacks by py-spy")
    why.add_argument("what", metavar="PID|CHANNEL", nargs="?", help="what depends on that (everybody)")
    why.set_defaults(run=_run_why)
    watch = verbs.add_parser("watch", help="writes a file for each arena in which somebody was killed")
    watch.add_argument("--dump", metavar="DIR", required=True, help="where to write; made, if it is not there")
    watch.add_argument("names", metavar="PID|NAME", nargs="*", help="only what these have, or are of (everything)")
    watch.add_argument("--interval", type=_seconds, default=0.2, help="seconds between looks (%(default)s)")
    watch.set_defaults(run=_run_watch)
    metrics = verbs.add_parser("metrics", help="all counts as OpenMetrics, for a Prometheus on this machine")
    metrics.add_argument("--port", type=_port, required=True, help="on 127.0.0.1; 0 takes a free one")
    metrics.add_argument(
        "--host", action="append", default=[], metavar="NAME", help="also answer requests for this host name"
    )
    metrics.set_defaults(run=_run_metrics)
    _recording_verbs.add_to(verbs, _seconds)
    for verb in (ls, inspect, top, why, watch):
        verb.add_argument("--json", action="store_true", help="one JSON object on a line for each look")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if sys.stdout is None:  # the descriptor was closed before Python started
        if sys.stderr is not None:
            print("shmtree: standard output is closed", file=sys.stderr)
        return 1
    try:
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130 if options.verb not in ("top", "watch", "metrics") else 0
    except BrokenPipeError:  # whoever reads it has seen enough; nor may the end of the interpreter write on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"shmtree: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
