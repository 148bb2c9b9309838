"""Arguments that several commands share."""

from __future__ import annotations

import argparse

MAX_SECONDS = 86400.0  # upper limit of the interval between snapshots


def duration(text: str) -> float:
    number = float(text)
    if not 0 <= number <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is out of range; it must be 0 to {MAX_SECONDS:.0f} seconds")
    return number


def add_json(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--json", action="store_true", help="print one line of JSON for each snapshot")
