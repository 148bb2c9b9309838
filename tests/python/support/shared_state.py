"""Checks of the invariants of shared state, by the program `check_state` (tests/cpp/programs)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

BUILT = Path(__file__).parents[3] / "build" / "dev" / "tests" / "cpp"
PROGRAM = Path(os.environ.get("SHMTREE_PROGRAMS", BUILT)) / "check_state"


def violated(arena: Any, block: int | None = None) -> str:
    """Returns the first violated invariant of an arena, or of the object in a block of it; empty if there is none.

    No other thread or process may use the object during the check. Checks nothing, and returns
    an empty text, if the program was not built: `./dev test` builds it.

    Args:
        arena: a `shmtree.Arena`, or its core.
        block: number of the control block of a Broadcast, a Latest or a replay buffer.
    """
    if not PROGRAM.exists():
        return ""
    fd = getattr(arena, "_core", arena).fd
    command = [str(PROGRAM), str(fd), *([] if block is None else [str(block)])]
    return subprocess.run(command, pass_fds=[fd], check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout


def violated_by(shared: Any) -> str:
    """Returns the first violated invariant of a Broadcast, a Latest or a replay buffer; empty if there is none."""
    for name in ("_shared", "_replay"):
        if hasattr(shared, name):
            core = getattr(shared, name)
            return violated(core.arena, core.block)
    raise TypeError(f"{type(shared).__name__} has no control block")
