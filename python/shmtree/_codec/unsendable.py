"""Finds the object in a message that pickle cannot send, so that the error can contain its path."""

from __future__ import annotations

import copyreg
import enum
import functools
import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any

from . import portable, reducers
from .paths import children

# Errors whose only argument is a text, so that the text can be replaced.
_PLAIN_ERRORS = (TypeError, AttributeError, ValueError, RuntimeError, pickle.PicklingError, NotImplementedError)
_MAX_LEVELS = 1000


class _Nowhere:
    def write(self, data: Any) -> int:
        return len(data)


class _Trial(pickle.Pickler):
    """Pickles as a channel does, but writes nothing and transfers nothing to another process."""

    def __init__(self) -> None:
        super().__init__(_Nowhere(), 5, buffer_callback=lambda buffer: None)
        forking = getattr(sys.modules.get("multiprocessing.reduction"), "ForkingPickler", None)
        self._local = portable.refused()
        self.dispatch_table = {
            **copyreg.dispatch_table,
            **getattr(forking, "_extra_reducers", {}),
            **reducers.table(False, None, False),
        }

    def reducer_override(self, value: Any) -> Any:
        return (
            (str, ("",)) if isinstance(value, tuple(portable.handles)) or type(value) in self._local else NotImplemented
        )


def _error_of(value: Any) -> Exception | None:
    try:
        _Trial().dump(value)
    except Exception as error:
        return error
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the parts of an object that pickle sends, each with the step that leads to it."""
    steps = set()
    for step, part in children(value):
        steps.add(step)
        yield step, part
    if isinstance(value, type | types.ModuleType | types.FunctionType | types.BuiltinFunctionType | enum.Enum):
        return
    if isinstance(value, functools.partial):
        yield ".func", value.func
        yield from ((f".args[{number}]", part) for number, part in enumerate(value.args))
        yield from ((f".keywords[{name!r}]", part) for name, part in value.keywords.items())
    if isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    if isinstance(value, dict) and not steps:
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    if isinstance(value, list | tuple | set | frozenset) and not steps:
        yield from ((f"[{number}]", part) for number, part in enumerate(value))
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ()) if isinstance(name, str)]
    attributes = {name: getattr(value, name) for name in slots if name != "__dict__" and hasattr(value, name)}
    attributes.update(getattr(value, "__dict__", {}))
    for name, part in attributes.items():
        if f".{name}" not in steps:
            yield f".{name}", part


def _failing(parts: list[tuple[str, Any]]) -> tuple[str, Any] | None:
    """Returns the first part that cannot be pickled. Bisects the list, so each part is pickled about twice."""
    if _error_of([part for _, part in parts]) is None:
        return None
    while len(parts) > 1:
        half = parts[: len(parts) // 2]
        parts = half if _error_of([part for _, part in half]) is not None else parts[len(half) :]
    return parts[0] if parts and _error_of(parts[0][1]) is not None else None


def path_of_unsendable(value: Any, error: Exception) -> str:
    """Returns the path to the innermost object that pickle refuses with such an error; "" for the whole message."""
    path = ""
    if type(_error_of(value)) is not type(error):
        return path
    met = {id(value)}
    while len(met) < _MAX_LEVELS:
        found = _failing([(step, part) for step, part in _parts(value) if id(part) not in met])
        if found is None:
            return path
        step, value = found
        path += step
        met.add(id(value))
    return path


def explain(error: Exception, value: Any) -> None:
    """Adds the path of the object that cannot be sent to an error of a call that sends a value, such as `put`."""
    path = path_of_unsendable(value, error)
    if not path:
        return
    if type(error) in _PLAIN_ERRORS and len(error.args) == 1 and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]}; it is at {path} of the message",)
    elif hasattr(error, "add_note"):
        error.add_note(f"The object that cannot be sent is at {path} of the message")
