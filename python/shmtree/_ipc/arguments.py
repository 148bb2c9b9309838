"""Checks of arguments that users pass."""

from __future__ import annotations

import time
from typing import Any

from .. import _core

# Each takes the argument's name and its value, and raises TypeError, ValueError or OverflowError with both.
whole, natural, limit = _core.parse_whole, _core.parse_natural, _core.parse_limit


def deadline_after(timeout: Any, what: str = "timeout") -> float | None:
    """Returns the time at which a timeout ends; None for never. Raises TypeError or ValueError for a wrong timeout."""
    seconds = _core.parse_timeout(timeout, what)
    return None if seconds is None else time.monotonic() + seconds


def left(deadline: float | None) -> float | None:
    """Returns the seconds until the deadline, at least 0; None if there is no deadline."""
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)


def core_of(arena: Any) -> _core.Arena | None:
    """Returns the `_core.Arena` of an Arena, or None for None. Raises TypeError for anything else."""
    core = arena._open() if hasattr(arena, "_open") else arena
    if core is not None and not isinstance(core, _core.Arena):
        raise TypeError(f"arena is {arena!r}; it must be an Arena, or None")
    return core


def one_of(what: str, value: Any, *words: str | bool) -> str:
    """Returns `value` if it is one of `words`; else raises ValueError."""
    if value not in words:
        raise ValueError(f"{what} is {value!r}; it must be {', '.join(map(repr, words[:-1]))} or {words[-1]!r}")
    return str(value)
