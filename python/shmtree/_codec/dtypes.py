"""Texts for the dtypes that have no number in a frame.

A dtype without fields is written as NumPy's ``dtype.str``: ``>f8``, ``<M8[25s]``, ``|S5``. A structured dtype is a
Python literal: the dict that ``np.dtype`` takes, with ``names``, ``formats``, ``offsets``, ``itemsize`` and, if
present, ``titles`` and ``aligned``. Formats are texts, such dicts, or pairs (format, shape).
"""

from __future__ import annotations

import ast
import contextlib
import re
from typing import Any

import numpy as np

# The kinds whose elements are plain bytes. Elements of other kinds, such as objects and NumPy 2's StringDType, refer to
# memory outside the array, so only pickle can send them.
_PLAIN_KINDS = frozenset("biufcSUVmM?")
_ESCAPES_OF_REPR = re.compile(r"(?:[^\\]|\\[\\'nrtxuU])*", re.DOTALL)


def describe(dtype: np.dtype[Any], with_objects: bool) -> str | None:
    """Returns the text of a dtype, or None if a text cannot express it (metadata, objects, other packages' classes)."""
    parts = _parts(dtype, with_objects)
    return parts if parts is None or isinstance(parts, str) else repr(parts)


def parse(text: str) -> np.dtype[Any]:
    """Returns the dtype of a text. Raises ValueError for a text that `describe` does not write.

    The error has no cause or context: the errors of Python and NumPy contain the text unescaped, and the text of a
    message may have characters that control a terminal.
    """
    try:
        return _build(_literal(text) if text.startswith(("{", "(")) else text)
    except (SyntaxError, ValueError, TypeError, LookupError) as error:
        raise ValueError(f"{text[:200]!a} is not the description of a dtype ({type(error).__name__})") from None


def _literal(text: str) -> Any:
    if not _ESCAPES_OF_REPR.fullmatch(text):  # for other escapes, Python prints a warning with the unescaped text
        raise ValueError("the text has an escape sequence that repr() does not produce")
    for _ in range(1000):
        # Before 3.12, threads that parse at the same time share one depth counter, and get a false SystemError.
        with contextlib.suppress(SystemError):
            return ast.literal_eval(text)
    return ast.literal_eval(text)


def _build(parts: Any) -> np.dtype[Any]:
    if isinstance(parts, str):
        return np.dtype(parts)
    if isinstance(parts, tuple):
        base, shape = parts
        return np.dtype((_build(base), shape))
    formats = [_build(part) for part in parts["formats"]]
    whole: np.dtype[Any] = np.dtype({**parts, "formats": formats})  # type: ignore[call-overload]
    return whole


def _is_described_by_text(dtype: np.dtype[Any]) -> bool:
    """Returns False for dtypes of other packages, because NumPy would read their text as another dtype, or reject
    it."""
    try:
        return np.dtype(dtype.str).type is dtype.type
    except TypeError:
        return False


def _parts(dtype: np.dtype[Any], with_objects: bool) -> Any:
    if dtype.metadata is not None or (dtype.kind not in _PLAIN_KINDS and not (with_objects and dtype.kind == "O")):
        return None
    if dtype.subdtype is not None:
        base = _parts(dtype.subdtype[0], with_objects)
        return None if base is None else (base, dtype.subdtype[1])
    if dtype.names is None:
        return dtype.str if _is_described_by_text(dtype) else None
    if dtype.type is not np.void or dtype.fields is None:
        return None
    fields = [dtype.fields[name] for name in dtype.names]
    formats = [_parts(field[0], with_objects) for field in fields]
    if None in formats:
        return None
    parts: dict[str, Any] = {
        "names": list(dtype.names),
        "formats": formats,
        "offsets": [field[1] for field in fields],
        "itemsize": dtype.itemsize,
    }
    if any(len(field) > 2 for field in fields):
        parts["titles"] = [field[2] if len(field) > 2 else None for field in fields]
        if not all(title is None or isinstance(title, str) for title in parts["titles"]):
            return None
    if dtype.isalignedstruct:
        parts["aligned"] = True
    return parts
