"""Paths to parts of an object, for errors and descriptions, which walk the object a second time.

The walk visits the same containers as the encoder, by exact class and in the same order. It flattens and pickles
nothing.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_MAPPINGS = {dict, collections.OrderedDict, collections.defaultdict, collections.Counter}
_SEQUENCES = {list, tuple, collections.deque, set, frozenset}
_PLAIN = {type(None), bool, int, float, complex, str, bytes}
_LONGEST_KEY = 60

# Classes with instances that always have a native kind, independent of their contents.
BUILTIN = _PLAIN | {dict, list, tuple, set, frozenset, collections.deque}


class Position(NamedTuple):
    """A part of an object: its path as a Python expression, and its value."""

    path: str
    value: Any
    again: str | None = None  # path of the first occurrence, for a value that contains itself and may not


def _key_text(key: Any) -> str:
    if type(key) not in _PLAIN and not isinstance(key, enum.Enum):
        return f"<{type(key).__name__}>"  # does not call a repr of the user
    text = repr(key)
    if type(key) is str and '"' not in text:
        text = f'"{text[1:-1]}"'
    return text if len(text) <= _LONGEST_KEY else text[:_LONGEST_KEY] + "..."


def _fields(cls: Any) -> list[str]:
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else cls.__attrs_attrs__
    return [field.name for field in fields]


def children(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the parts of a container, each with the step that leads to it; nothing for any other value."""
    cls = type(value)
    if cls in _MAPPINGS:
        for number, (key, item) in enumerate(value.items()):
            if type(key) not in _PLAIN:
                yield f".keys()[{number}]", key
            yield f"[{_key_text(key)}]", item
    elif cls in _SEQUENCES:
        for number, item in enumerate(value):
            yield f"[{number}]", item
    elif issubclass(cls, tuple) and hasattr(cls, "_fields"):
        for name, item in zip(cls._fields, value, strict=False):
            yield f".{name}", item
    elif dataclasses.is_dataclass(cls) or hasattr(cls, "__attrs_attrs__"):
        for name in _fields(cls):
            if hasattr(value, name):
                yield f".{name}", getattr(value, name)
    elif cls is types.SimpleNamespace or hasattr(cls, "__pydantic_core_schema__"):
        for attributes in (
            vars(value),
            getattr(value, "__pydantic_extra__", None),
            getattr(value, "__pydantic_private__", None),
        ):
            for name, item in (attributes or {}).items():
                yield f".{name}", item
    elif isinstance(value, enum.Enum):
        yield ".value", value.value
    elif isinstance(value, slice):
        for name in ("start", "stop", "step"):
            yield f".{name}", getattr(value, name)


def _is_plain(value: Any) -> bool:
    """Returns True for values that the encoder does not treat as containers, and for tuples that it does not track."""
    return type(value) in _PLAIN or (type(value) is tuple and all(type(item) in _PLAIN for item in value))


def _is_made_of_items(value: Any) -> bool:
    """Returns True if `value` is built from its items. Such a value cannot contain itself, except in a pickle."""
    return isinstance(value, tuple | frozenset | slice | enum.Enum) or hasattr(type(value), "__pydantic_core_schema__")


def walk(value: Any, is_leaf: Callable[[Any], bool] = lambda value: False) -> Iterator[Position]:
    """Yields all parts of an object, beginning with itself.

    Does not enter leaves, or containers that it has met before.

    `is_leaf` returns True for a value that counts as a leaf although it has parts.
    """
    met: dict[int, str] = {}
    kept = []  # keeps values that properties made, so that no address is used twice
    waiting = [iter([("", value)])]
    prefixes = [""]
    around: list[int] = []  # ids of the containers that are being walked
    while waiting:
        for step, item in waiting[-1]:
            path = prefixes[-1] + step
            if _is_plain(item):
                yield Position(path, item)
                continue
            kept.append(item)
            parts = iter(()) if is_leaf(item) else children(item)
            first = next(parts, None)
            is_container = first is not None or type(item) in _MAPPINGS | _SEQUENCES
            again = met.setdefault(id(item), path) if is_container else path
            in_itself = again != path and id(item) in around and _is_made_of_items(item)
            yield Position(path, item, again if in_itself else None)
            if first is not None and again == path:
                waiting.append(itertools.chain([first], parts))
                prefixes.append(path)
                around.append(id(item))
                break
        else:
            waiting.pop()
            prefixes.pop()
            if around:
                around.pop()


def path_of_refused(value: Any, refused: Any) -> str | None:
    """Returns the path of the object that needs a pickle, or None if it is not found.

    If `refused` is None, the message was refused because a value contains itself; the path is that of its inner
    occurrence. An object is not found, for example, if the program has changed it meanwhile.
    """
    for position in walk(value):
        if position.value is refused if refused is not None else position.again is not None:
            return position.path
    return None
