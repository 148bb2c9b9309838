"""What a process of `shmtree run` left as it was, with the reason: lines in one file of all processes."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import NamedTuple

from .sites import here

_SPACES = str.maketrans("\t\n", "  ")
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
    line = "\t".join(each.translate(_SPACES) for each in (what, place, reason)) + "\n"
    directory = getattr(sys, "_shmtree_run", {}).get("directory")
    if directory is None:
        return
    with contextlib.suppress(OSError):  # the run is over, or the file system is full
        descriptor = os.open(os.path.join(directory, "notes"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode(errors="replace"))  # one write: lines of several processes do not mix
        finally:
            os.close(descriptor)


def read(directory: Path) -> list[Note]:
    """Returns the notes of all processes, each once."""
    found: dict[Note, None] = {}
    path = directory / "notes"
    for line in path.read_text(errors="replace").split("\n") if path.exists() else ():
        if line.count("\t") == 2:
            found[Note(*line.split("\t"))] = None
    return list(found)
