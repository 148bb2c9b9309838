"""Finds the object in a message that pickle cannot send, so that the error can contain its path."""

from __future__ import annotations

import collections
import copyreg
import enum
import functools
import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any

from ..errors import NotPortable
from . import portable, reducers

# Errors whose only argument is a text, so that the text can be replaced.
_PLAIN_ERRORS = (TypeError, AttributeError, ValueError, RuntimeError, pickle.PicklingError, NotImplementedError)
_PLAIN = {type(None), bool, int, float, complex, str, bytes}
_LONGEST_KEY = 60


class _Nowhere:
    def write(self, data: Any) -> int:
        return len(data)


class _Trial(pickle.Pickler):
    """Pickles like a channel, but discards the output, and begins no transfer to another process."""

    def __init__(self, is_portable: bool) -> None:
        super().__init__(_Nowhere(), 5, buffer_callback=lambda buffer: None)
        forking = getattr(sys.modules.get("multiprocessing.reduction"), "ForkingPickler", None)
        self._is_portable, self._local = is_portable, portable.refused()
        self.met: list[Any] = []  # every object that was to be pickled, in order
        self.dispatch_table = {
            **copyreg.dispatch_table,
            **getattr(forking, "_extra_reducers", {}),
            **reducers.table(False, None, False),
        }

    def persistent_id(self, value: Any) -> None:
        self.met.append(value)

    def reducer_override(self, value: Any) -> Any:
        if self._is_portable:
            return portable.refuse(value) if portable.is_local(value) else NotImplemented
        is_local = isinstance(value, tuple(portable.handles)) or type(value) in self._local
        return (str, ("",)) if is_local else NotImplemented


def _try(value: Any, error: Exception) -> list[Any] | None:
    """Returns the objects that a trial pickle met if it raised an error of this type."""
    trial = _Trial(isinstance(error, NotPortable))
    try:
        trial.dump(value)
    except Exception as raised:
        return trial.met if type(raised) is type(error) else None
    return None


def key_text(key: Any) -> str:
    """Returns a key of a dict as a path shows it."""
    try:  # an enum may have a repr of the user, and the repr of an int may have too many digits
        text = repr(key) if type(key) in _PLAIN or isinstance(key, enum.Enum) else ""
    except Exception:
        text = ""
    if not text:
        return f"<{type(key).__name__}>"
    if type(key) is str and '"' not in text:
        text = f'"{text[1:-1]}"'
    return text if len(text) <= _LONGEST_KEY else text[:_LONGEST_KEY] + "..."


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the parts of an object that pickle sends, each with the step that leads to it."""
    if isinstance(value, type | types.ModuleType | types.FunctionType | types.BuiltinFunctionType):
        return
    if isinstance(value, dict):
        for number, (key, part) in enumerate(value.items()):
            yield f".keys()[{number}]", key
            yield f"[{key_text(key)}]", part
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from ((f".{name}", part) for name, part in zip(value._fields, value, strict=False))
    elif isinstance(value, list | tuple | set | frozenset | collections.deque):
        yield from ((f"[{number}]", part) for number, part in enumerate(value))
    if isinstance(value, functools.partial):
        yield ".func", value.func
        yield from ((f".args[{number}]", part) for number, part in enumerate(value.args))
        yield from ((f".keywords[{name!r}]", part) for name, part in value.keywords.items())
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ()) if isinstance(name, str)]
    attributes = {"__self__": types.MethodType, "value": enum.Enum, "start": slice, "stop": slice, "step": slice}
    names = [name for name, cls in attributes.items() if isinstance(value, cls)] + slots
    yield from ((f".{name}", getattr(value, name)) for name in names if name != "__dict__" and hasattr(value, name))
    yield from ((f".{name}", part) for name, part in getattr(value, "__dict__", {}).items())


def path_of_unsendable(value: Any, error: Exception) -> str | None:
    """Returns the path to the innermost object that pickle refuses with such an error, if a trial finds one.

    It is the last object that pickle has reached, or the object that reduces to that one.
    """
    met = _try(value, error)
    if met is None:
        return None
    paths = {id(value): ""}
    for each in met:
        if id(each) in paths and type(each) not in _PLAIN:
            for step, part in _parts(each):
                paths.setdefault(id(part), paths[id(each)] + step)
    refused = (each for each in reversed(met) if id(each) in paths and type(each) not in _PLAIN)
    return next((paths[id(each)] for each in refused if _try(each, error) is not None), "")


def explain(error: Exception, value: Any) -> None:
    """Adds the path of the object that cannot be sent to an error of a call that sends a value, such as `put`."""
    path = path_of_unsendable(value, error)
    if isinstance(error, NotPortable):
        if path is not None and error.path is None:
            error.args, error.path = (f"{path or 'the message itself'}: {error}",), path
    elif not path or isinstance(error, RecursionError):  # at the end of the stack, every object is refused
        return
    elif type(error) in _PLAIN_ERRORS and len(error.args) == 1 and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]}; it is at {path} of the message",)
    elif hasattr(error, "add_note"):
        error.add_note(f"The object that cannot be sent is at {path} of the message")
