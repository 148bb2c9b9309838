"""What a process of `shmtree run` left as it was, with the reason: lines of JSON in one file of all processes."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

from .sites import here

_seen: set[tuple[str, str]] = set()


class Note(NamedTuple):
    what: str
    where: str  #: file and line, or ""
    reason: str


def add(what: str, reason: str, where: str | None = None) -> None:
    """Adds a note, once for each place."""
    place = here("").place if where is None else where
    if (what, place) in _seen:
        return
    _seen.add((what, place))
    line = json.dumps(Note(what, place, reason)._asdict()) + "\n"
    directory = getattr(sys, "_shmtree_run", {}).get("directory")
    if directory is None:
        return
    with contextlib.suppress(OSError):  # the run is over, or the file system is full
        descriptor = os.open(os.path.join(directory, "notes"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())  # one write, so that lines of several processes do not mix
        finally:
            os.close(descriptor)


def read(directory: Path) -> list[Note]:
    """Returns the notes of all processes, each once."""
    found: dict[Note, None] = {}
    path = directory / "notes"
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found[Note(**json.loads(line))] = None
        except (ValueError, TypeError):
            continue
    return list(found)
