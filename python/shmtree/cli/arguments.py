"""Arguments that several commands share, and how a command is declared."""

from __future__ import annotations

import argparse
import math
import sys
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

MAX_SECONDS = 86400.0  # upper limit of the interval between snapshots
_HELP_WIDTH = 78  # of descriptions, so that help fits a terminal of 80 columns

_T = TypeVar("_T", int, float)


def add_verb(verbs: Any, name: str, summary: str, examples: str, details: str = "") -> argparse.ArgumentParser:
    """Adds a command. `summary` is its line in the list of commands, without a period; `examples` has one a line."""
    shown = textwrap.fill(f"{summary[0].upper()}{summary[1:]}. {details}".strip(), _HELP_WIDTH)
    verb: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=summary,
        description=shown,
        epilog=listed_examples(examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return verb


def listed_examples(examples: str) -> str:
    return "examples:\n" + textwrap.indent(textwrap.dedent(examples).strip(), "  ")


def add_json(verb: argparse.ArgumentParser, what: str = "print one line of JSON for each snapshot") -> None:
    verb.add_argument("--json", action="store_true", help=what)


def _number(text: str, number: Callable[[str], _T], what: str) -> _T:
    try:
        return number(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None


def seconds(text: str) -> float:
    number = _number(text, float, "a number of seconds")
    if not 0 <= number <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is out of range; it must be 0 to {MAX_SECONDS:.0f} seconds")
    return number


def count(text: str) -> int:
    number = _number(text, int, "a number of messages")
    if not 0 <= number <= sys.maxsize:
        raise argparse.ArgumentTypeError(f"{text} is out of range; it must be 0 to {sys.maxsize} messages")
    return number


def rows(text: str) -> int:
    number = _number(text, int, "a number of rows")
    if not 1 <= number <= sys.maxsize:
        raise argparse.ArgumentTypeError(f"{text} is out of range; it must be 1 to {sys.maxsize} rows")
    return number


def port(text: str) -> int:
    number = _number(text, int, "the number of a port")
    if not 0 <= number < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text} is out of range; a port is 1 to 65535, or 0 for any free port")
    return number


def address(text: str) -> str:
    """Rejects the empty text, which a socket takes for all addresses, and texts that no host name can be."""
    try:
        if text and text.encode("idna"):
            return text
    except UnicodeError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not an address")


def rate(text: str) -> float:
    number = _number(text, float, "a number")
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is out of range; a rate is positive, or 0 for no pauses")
    return number
