"""Where something lies inside an object: for errors and descriptions, which look again at what was walked before.

The walk is that of the encoder: the same containers, by exact class, in the same order. Nothing is flattened or
pickled for it.
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

# Whose instances always have a native kind, whatever is in them.
BUILTIN = _PLAIN | {dict, list, tuple, set, frozenset, collections.deque}


class Place(NamedTuple):
    """A part of an object: how to get there, in Python's own words, and what is there."""

    path: str
    value: Any
    again: str | None = None  # where this same one was met first, of one that is in itself and may not be


def _key_text(key: Any) -> str:
    if type(key) not in _PLAIN and not isinstance(key, enum.Enum):
        return f"<{type(key).__name__}>"  # whose own repr is not asked
    text = repr(key)
    if type(key) is str and '"' not in text:
        text = f'"{text[1:-1]}"'
    return text if len(text) <= _LONGEST_KEY else text[:_LONGEST_KEY] + "..."


def _fields(cls: Any) -> list[str]:
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else cls.__attrs_attrs__
    return [field.name for field in fields]


def children(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a container, each with the step that leads to it; of anything else none."""
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
    """What is no container to the encoder, or a tuple that may be met any number of times."""
    return type(value) in _PLAIN or (type(value) is tuple and all(type(item) in _PLAIN for item in value))


def _is_made_of_items(value: Any) -> bool:
    """Whether its items have to be there before it is: then it cannot be among them, without a pickle."""
    return isinstance(value, tuple | frozenset | slice | enum.Enum) or hasattr(type(value), "__pydantic_core_schema__")


def walk(value: Any, is_leaf: Callable[[Any], bool] = lambda value: False) -> Iterator[Place]:
    """All parts of an object, itself first. Containers that were met before, and leaves, are not looked into.

    `is_leaf` says of what has parts that it is to be taken whole.
    """
    met: dict[int, str] = {}
    kept = []  # what properties made, so that no address is met twice
    waiting = [iter([("", value)])]
    prefixes = [""]
    around: list[int] = []  # what is being looked into
    while waiting:
        for step, item in waiting[-1]:
            path = prefixes[-1] + step
            if _is_plain(item):
                yield Place(path, item)
                continue
            kept.append(item)
            parts = iter(()) if is_leaf(item) else children(item)
            first = next(parts, None)
            is_container = first is not None or type(item) in _MAPPINGS | _SEQUENCES
            again = met.setdefault(id(item), path) if is_container else path
            in_itself = again != path and id(item) in around and _is_made_of_items(item)
            yield Place(path, item, again if in_itself else None)
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
    """Where the object lies that pickle would be needed for; `refused` None: one made of its items that is in itself.

    The place of that one in itself. None when it is not found, as when the object has changed since.
    """
    for place in walk(value):
        if place.value is refused if refused is not None else place.again is not None:
            return place.path
    return None
