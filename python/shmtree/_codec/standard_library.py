"""Classes of the standard library: Fraction, arrays of `array`, and SimpleNamespace (the latter two as registered)."""

from __future__ import annotations

import array
import types
from fractions import Fraction
from typing import Any

import numpy as np

from .. import _core
from ..errors import CorruptMessage
from . import reducers


def _flatten_array(values: Any) -> tuple[str, Any]:
    return values.typecode, np.frombuffer(values, np.uint8) if values else np.empty(0, np.uint8)


def _build_array(flat: Any) -> Any:
    """Returns a copy, because an array of `array` owns its memory."""
    sound = type(flat) is tuple and len(flat) == 2 and type(flat[1]) is np.ndarray and flat[1].dtype == np.uint8
    if not sound or type(flat[0]) is not str or flat[0] not in tuple(array.typecodes):
        raise CorruptMessage("The frame is corrupt: an array.array is not a type code with an array of bytes")
    result = array.array(flat[0])
    if flat[1].size % result.itemsize:
        sizes = f"{flat[1].size} bytes, which is not a multiple of its item size, {result.itemsize}"
        raise CorruptMessage(f"The frame is corrupt: an array.array has {sizes}")
    result.frombytes(np.ascontiguousarray(flat[1]).data)
    return result


def _build_namespace(attributes: Any) -> Any:
    if type(attributes) is not dict:
        raise CorruptMessage(
            f"The frame is corrupt: a SimpleNamespace has a {type(attributes).__name__} of attributes, not a dict"
        )
    result = types.SimpleNamespace()
    vars(result).update(attributes)
    return result


# Larger fractions are not reduced: the time to find a common divisor grows with the square of their size.
_REDUCED_BITS = 8192


def _fraction_parts(value: Any) -> tuple[int, int] | None:
    parts = value.numerator, value.denominator
    return parts if type(parts[0]) is int and type(parts[1]) is int else None


def _build_fraction(numerator: int, denominator: int, _trusted: bool) -> Fraction:
    if max(numerator.bit_length(), denominator.bit_length()) <= _REDUCED_BITS:
        return Fraction(numerator, denominator)
    if denominator <= 0:
        raise CorruptMessage("The frame is corrupt: the denominator of a Fraction is not positive")
    result: Any = object.__new__(Fraction)
    result._numerator, result._denominator = numerator, denominator
    return result  # type: ignore[no-any-return]


def add() -> None:
    """Registers these classes. A namespace in a pickle is pickled as usual, because it may contain itself."""
    _core._add_kind("fraction", Fraction, _fraction_parts, _build_fraction)
    _core._register(array.array, _flatten_array, _build_array)
    reducers.add_registered(array.array, _flatten_array, "array:array")
    _core._register(types.SimpleNamespace, vars, _build_namespace)
