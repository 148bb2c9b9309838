"""Notes about objects that `shmtree run` did not replace, with the reason. All processes append to one file, one note
per line."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import NamedTuple

from .sites import here

_SPACES = str.maketrans("\t\n", "  ")


class Note(NamedTuple):
    what: str
    where: str  #: file and line, or ""
    reason: str


_seen: set[Note] = set()


def add(what: str, reason: str) -> None:
    """Adds a note, once for each place."""
    note = Note(what, here("").place, reason)
    directory = getattr(sys, "_shmtree_run", {}).get("directory")
    if note in _seen or directory is None:
        return
    _seen.add(note)
    with contextlib.suppress(OSError), open(os.path.join(directory, "notes"), "a", errors="replace") as notes:
        notes.write("\t".join(each.translate(_SPACES) for each in note) + "\n")


def read(directory: Path) -> list[Note]:
    """Returns the notes of all processes, each once."""
    path = directory / "notes"
    lines = path.read_text(errors="replace").split("\n") if path.exists() else []
    return list(dict.fromkeys(Note(*line.split("\t")) for line in lines if line.count("\t") == 2))
