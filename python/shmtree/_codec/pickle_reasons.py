"""Reasons why an object needs a pickle, for `describe`: its parts without a native kind, and their sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .. import _core
from ..errors import PickleRefused
from .paths import BUILTIN, Position, walk

_MAX_LINES = 100


def needs_pickle(value: Any) -> bool:
    """Returns True if this object itself has no native kind, and not only a part of it."""
    if type(value) in BUILTIN:
        return False
    try:
        _core._pack_aside(value, False)
    except PickleRefused as refusal:
        return refusal.path == ""
    except Exception:  # sending the object raises the same error
        return False
    return False


def _line(position: Position) -> str:
    path = position.path or "the object itself"
    cls = type(position.value)
    if position.again is not None:
        return f"{path}: the {cls.__qualname__} at {position.again or 'the root'}, which contains itself"
    name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    try:
        tree = _core._describe(_core._pack_aside(position.value)).splitlines()
    except Exception as error:
        return f"{path}: {name}, which raises {type(error).__name__}: {error}"
    size = re.match(r"pickle of (\d+) byte|long_pickle .*\) (\d+) byte", tree[1])
    text = f"{path}: {name}, {int(size[1] or size[2]) if size else 0} bytes in the pickle"
    buffers = [int(found[1]) for line in tree[2:] if (found := re.search(r"\) (\d+) bytes?", line))]
    return f"{text}, {sum(buffers)} in {len(buffers)} buffers next to it" if buffers else text


def lines(value: Any) -> Iterator[str]:
    """Yields a line for each part of `value` that causes a pickle; none if it needs none."""
    positions = (
        position for position in walk(value, needs_pickle) if position.again is not None or needs_pickle(position.value)
    )
    for number, position in enumerate(positions):
        if number == _MAX_LINES:
            yield "..."
            return
        yield _line(position)
