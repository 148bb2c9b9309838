"""Reasons why an object needs a pickle, for `describe`: its parts without a native kind, and their sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .. import _core

_MAX_LINES = 100


def _line(path: str, part: Any, outer: str) -> str:
    cls = type(part)
    if outer != path:
        return f"{path}: the {cls.__qualname__} at {outer or 'the root'}, which contains itself"
    path = path or "the object itself"
    name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    try:
        tree = _core._describe(_core._pack_aside(part)).splitlines()
    except Exception as error:
        return f"{path}: {name}, which raises {type(error).__name__}: {error}"
    size = re.match(r"pickle of (\d+) byte|long_pickle .*\) (\d+) byte", tree[1])
    text = f"{path}: {name}, {int(size[1] or size[2]) if size else 0} bytes in the pickle"
    buffers = [int(found[1]) for line in tree[2:] if (found := re.search(r"\) (\d+) bytes?", line))]
    return f"{text}, {sum(buffers)} in {len(buffers)} buffers next to it" if buffers else text


def lines(value: Any) -> Iterator[str]:
    """Yields a line for each part of `value` that causes a pickle; none if it needs none."""
    known: list[Any] = []
    while (found := _core._first_refused(value, known)) is not None:
        if len(known) == _MAX_LINES:
            yield "..."
            return
        known.append(found[1])
        yield _line(*found)
