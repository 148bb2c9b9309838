"""Approximate sizes of messages, without encoding them."""

from __future__ import annotations

from typing import Any

_MAX_PARTS = 512
_PLAIN_BYTES = 8  # of a number, and of anything else that is small


def size_of(message: object) -> tuple[int, bool]:
    """Returns the bytes of the data in a message, and whether a tensor of `share_memory_()` is in it.

    Looks at the first 512 parts, and estimates the rest from them.
    """
    total, seen, shared = 0, 0, False
    parts: list[Any] = [message]
    while parts and seen < _MAX_PARTS:
        part = parts.pop()
        seen += 1
        kind = type(part)
        if kind in (str, bytes, bytearray):
            total += len(part)
        elif isinstance(part, dict):
            parts.extend(part.values())
        elif isinstance(part, (list, tuple, set, frozenset)):
            parts.extend(part)
        elif isinstance(size := getattr(part, "nbytes", None), int):
            total += size
            shared = shared or (hasattr(part, "is_shared") and kind.__module__.startswith("torch") and part.is_shared())
        elif isinstance(attributes := getattr(part, "__dict__", None), dict) and not isinstance(part, type):
            parts.extend(attributes.values())
        else:
            total += _PLAIN_BYTES
    if parts:
        total = total * (seen + len(parts)) // seen
    return total, shared
