"""Names of processes, from /proc."""

from __future__ import annotations

from pathlib import PurePath

from . import drawing


def words_of(pid: int) -> list[str]:
    """Returns the command line of a process; empty if it cannot be read."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def command(pid: int) -> str:
    """Returns the command line of a process, without the folder of its program; "" if it cannot be read."""
    program, *arguments = words_of(pid) or [""]
    return drawing.printable(" ".join([PurePath(program).name, *arguments]).strip())
