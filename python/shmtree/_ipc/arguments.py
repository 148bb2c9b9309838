"""Checks of arguments that users pass."""

from __future__ import annotations

import operator
from numbers import Real
from typing import Any


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


def seconds(what: str, value: Any) -> float:
    """Returns `value`, a time in seconds, as a float. Raises TypeError if it is not a number."""
    if not isinstance(value, Real):
        raise TypeError(f"{what} is {value!r}; it must be a number of seconds, or None")
    return float(value)


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
