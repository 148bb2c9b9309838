"""Arguments that several commands share."""

from __future__ import annotations

import argparse

MOST_SECONDS = 86400.0  # upper limit of the interval between snapshots


def duration(text: str) -> float:
    number = float(text)
    if not 0 <= number <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to {MOST_SECONDS:.0f} seconds")
    return number


def add_json(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--json", action="store_true", help="one JSON object on a line for each look")
