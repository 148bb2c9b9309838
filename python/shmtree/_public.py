"""Public classes and functions as tracebacks, `help` and editors show them: by their public module and constructor."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, NoReturn, TypeVar

_C = TypeVar("_C", bound=type)

_PRIVATE = re.compile(r"shmtree\.(errors$|(.*\.)?_)")

#: The module that defines each public name, by the module that exports it, for links to the source.
DEFINED_IN: dict[tuple[str, str], str] = {}


def claim_names(namespace: dict[str, Any], modules: Iterable[str] = ()) -> Callable[[], list[str]]:
    """Makes the names in `__all__` belong to the module with this namespace, and returns the module's `__dir__`.

    Tracebacks, `help` and pickles then say ``shmtree.Sender`` instead of the file of the class. `modules` are the
    names of public modules in a package; `dir` shows those that are imported.
    """
    public = tuple(namespace["__all__"])
    for name in public:
        exported = namespace[name]
        home = str(getattr(exported, "__module__", None))
        DEFINED_IN[namespace["__name__"], name] = home
        if not _PRIVATE.match(home):
            continue
        members = vars(exported).values() if isinstance(exported, type) else ()
        for each in (exported, *(member for member in members if type(member) is FunctionType)):
            if each.__module__ == home:
                each.__module__ = namespace["__name__"]

    def names() -> list[str]:
        special = (name for name in namespace if name.startswith("__") and name.endswith("__"))
        return sorted({*public, *special, *(name for name in modules if name in namespace)})

    return names


def made_by(*functions: str) -> Callable[[_C], _C]:
    """Makes a class raise TypeError when it is called, because its objects are made by the named functions.

    The error names the functions. The package makes the objects with a class method of the class. Pickles, copies and
    frames work as before: they call `__new__` without arguments, or with the items of a tuple, and not `__init__`.
    """
    instead = f"use {' or '.join(functions)}"

    def refuse(self: Any, *args: Any, **options: Any) -> NoReturn:
        name = (self if isinstance(self, type) else type(self)).__name__
        raise TypeError(f"cannot create a {name} by calling the class; {instead}")

    refuse.__doc__ = f"Raises TypeError: {instead}."

    def hide(cls: _C) -> _C:
        if issubclass(cls, tuple):
            _define(cls, "__new__", lambda cls, *items, **options: tuple.__new__(cls, items))
        elif cls.__new__ is not object.__new__:
            _define(cls, "__new__", refuse)
            return cls
        _define(cls, "__init__", refuse)
        return cls

    return hide


def _define(cls: type, name: str, function: Callable[..., Any]) -> None:
    """Makes the function a method that shows no parameters."""
    function.__name__, function.__qualname__ = name, f"{cls.__qualname__}.{name}"
    first = inspect.Parameter("cls" if name == "__new__" else "self", inspect.Parameter.POSITIONAL_ONLY)
    function.__signature__ = inspect.Signature([first])  # type: ignore[attr-defined]
    setattr(cls, name, staticmethod(function) if name == "__new__" else function)
