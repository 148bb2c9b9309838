"""Checks of numeric arguments; each error has the argument's name, its value and its limits."""

from __future__ import annotations

import math
import operator
from typing import Any

MAX = (1 << 63) - 1


def whole(what: str, value: Any, least: int = 0, most: int = MAX) -> int:
    """Returns an int of Python or NumPy in [least, most].

    Raises TypeError for other types, ValueError for other ints.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is {value!r}; it must be an int") from None
    if number < least:
        raise ValueError(f"{what} is {number}; it must be at least {least}")
    if number > most:
        raise ValueError(f"{what} is {number}; it must be at most {most}")
    return number


def positive(what: str, value: Any, most: int = MAX) -> int:
    """Returns an int of at least 1."""
    return whole(what, value, 1, most)


def not_negative(what: str, value: Any) -> float:
    """Returns a finite number that is not negative."""
    try:
        if isinstance(value, str | bytes | bytearray):
            raise TypeError
        found = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{what} is {value!r}; it must be a number") from None
    except OverflowError:
        raise ValueError(f"{what} is {value!r}; it must be at most 1.8e308") from None
    if not math.isfinite(found) or found < 0:
        raise ValueError(f"{what} is {value!r}; it must be finite and not negative")
    return found


def seed_of(value: Any) -> int:
    """Returns the low 64 bits of an int."""
    try:
        return operator.index(value) & (1 << 64) - 1
    except TypeError:
        raise TypeError(f"seed is {value!r}; it must be an int, or None") from None
