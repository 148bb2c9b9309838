"""Results of a command as a line of text or JSON, and its errors."""

from __future__ import annotations

import argparse
import json
import sys


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
    """Prints an error, and returns the exit code."""
    print(f"shmtree: {what}", file=sys.stderr)
    return code
