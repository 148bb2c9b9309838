"""Checks of arguments that users pass."""

from __future__ import annotations

import operator
import time
from typing import Any

from .. import _core


def whole(what: str, value: Any) -> int:
    """Returns `value` as an int that fits in the core's signed 64 bits. Raises TypeError or OverflowError."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is {value!r}; it must be an int") from None
    if number >= 1 << 63:
        raise OverflowError(f"{what} is {value}; it must be below 2**63")
    return number


def natural(what: str, value: Any) -> int:
    """Returns `value` as an int that is not negative. Raises ValueError for a negative one."""
    number = whole(what, value)
    if number < 0:
        raise ValueError(f"{what} is {value}; it must not be negative")
    return number


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


def limit(what: str, value: int | None) -> int:
    """Returns a limit in the core's form, in which 0 means no limit."""
    number = 0 if value is None else whole(what, value)
    if number < 0:
        raise ValueError(f"{what} is {value}; it must be positive, or None or 0 for no limit")
    return number


def one_of(what: str, value: Any, *words: str | bool) -> str:
    """Returns `value` if it is one of `words`; else raises ValueError."""
    if value not in words:
        raise ValueError(f"{what} is {value!r}; it must be {', '.join(map(repr, words[:-1]))} or {words[-1]!r}")
    return str(value)
