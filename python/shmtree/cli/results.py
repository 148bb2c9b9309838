"""Results of a command as a line of text or JSON, and its errors."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys

from .drawing import printable


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def print_line(options: argparse.Namespace, text: str, **data: object) -> None:
    """Prints a line: `text`, or `data` as JSON."""
    print(json.dumps(data) if options.json else text, flush=True)


def check_output() -> None:
    """Raises OSError if the descriptor of standard output was closed before Python started."""
    if sys.stdout is None:
        raise OSError("standard output is closed, so nothing can be printed")


def failed(what: object, code: int = 1) -> int:
    """Prints an error as one line to standard error, if that is writable, and returns the exit code."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"shmtree: {printable(str(what))}", file=sys.stderr, flush=True)
    return code
