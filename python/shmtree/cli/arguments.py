"""Arguments that several commands share, and how a command is declared."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

MAX_SECONDS = 86400  # upper limit of the interval between snapshots
_HELP_WIDTH = 78  # width of descriptions, so that the help fits a terminal of 80 columns

_T = TypeVar("_T", int, float)


def add_verb(verbs: Any, name: str, summary: str, examples: str, details: str = "") -> argparse.ArgumentParser:
    """Adds a command. `summary` is its line in the list of commands, without a period; `examples` has one example per
    line."""
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


def _number(
    number: Callable[[str], _T], what: str, least: float, most: float, meaning: str = ""
) -> Callable[[str], _T]:
    """Returns a parser for an argument that is a `what` from `least` to `most`. Its error ends with `meaning`."""

    def parse(text: str) -> _T:
        try:
            value = number(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is out of range; it must be {least} to {most}{meaning}")
        return value

    return parse


seconds = _number(float, "a number of seconds", 0, MAX_SECONDS, " seconds")
count = _number(int, "a number of messages", 0, sys.maxsize, " messages")
rows = _number(int, "a number of rows", 1, sys.maxsize, " rows")
port = _number(int, "the number of a port", 0, 65535, "; 0 is any free port")
rate = _number(float, "a number", 0, 10**9, "; 0 is without pauses")


def address(text: str) -> str:
    """Rejects the empty text, which a socket takes for all addresses, and texts that no host name can be."""
    try:
        if text and text.encode("idna"):
            return text
    except UnicodeError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not an address")
