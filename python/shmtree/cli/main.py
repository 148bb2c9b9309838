"""The command line of ``python -m shmtree``."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import queue
import signal
import sys
from collections.abc import Sequence

from ..errors import Error
from . import run
from .arguments import listed_examples
from .results import check_output, failed

_EXAMPLES = """
shmtree top                           what all channels do, and the bottleneck
shmtree why                           which process waits for which others
shmtree inspect samples               the messages that are queued
shmtree record samples --out run.mcap
shmtree COMMAND --help                the options of a command
"""
_MODULES = ("names", "inspect", "top", "why", "crashdump", "metrics", "recordings", "replays", "run")
#: Commands that run until they are interrupted, so that an interrupt is no failure.
_ENDLESS = ("top", "crashdump", "metrics", "load")


def make_parser() -> argparse.ArgumentParser:
    from .. import _core  # imported here, because `run` needs neither this module nor the other commands

    parser = argparse.ArgumentParser(
        prog="shmtree",
        description="Shows, records and plays what processes share.",
        epilog=listed_examples(_EXAMPLES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"shmtree {_core.VERSION}", help="print the version")
    importlib.import_module(".generated", __package__).add_to(parser)
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND", title="commands")
    for name in _MODULES:
        importlib.import_module(f".{name}", __package__).add_to(verbs)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    verb = None
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # restores the handler that _early_run replaced
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if isinstance(sys.stdout, io.TextIOWrapper):  # names may have characters that its encoding lacks
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            options = run.parsed(words[1:]) if words[:1] == ["run"] else (parser := make_parser()).parse_args(words)
        except SystemExit:  # after --help
            if sys.stdout is not None:
                sys.stdout.flush()
            raise
        verb = options.verb
        for each in (signal.SIGTERM, signal.SIGHUP) if verb in _ENDLESS else ():
            if signal.getsignal(each) is signal.SIG_DFL:
                signal.signal(each, signal.default_int_handler)
        check_output()
        if verb is None:
            parser.print_help()
            return 0
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 0 if verb in _ENDLESS else 130
    except (OSError, ValueError, Error, queue.Full) as error:
        if isinstance(error, BrokenPipeError) and not isinstance(error, Error):
            # The reader has closed the pipe; this prevents a second error at interpreter exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return failed(error)


if __name__ == "__main__":
    raise SystemExit(main())
