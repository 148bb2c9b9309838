"""The metaclass of the replaced queue classes: which subclasses and calls get the standard class after all."""

from __future__ import annotations

import abc
import dis
import functools
from types import FunctionType
from typing import Any

from ..errors import Error
from . import notes

#: Private attributes of the standard queues that shmtree's queues lack.
_LACKING = frozenset({
    "_after_fork", "_buffer", "_cond", "_feed", "_finalize_close", "_finalize_join", "_ignore_epipe", "_joincancelled",
    "_jointhread", "_make_methods", "_notempty", "_on_queue_feeder_error", "_opid", "_recv_bytes", "_reset", "_sem",
    "_send_bytes", "_start_thread", "_thread", "_unfinished_tasks",
})  # fmt: skip
#: Attributes that shmtree's queues have, but that cannot be assigned.
_FIXED = frozenset({"_closed", "_poll", "_reader", "_rlock", "_wlock", "_writer"})


class Substitute(abc.ABCMeta):
    """Type of a class that stands for a standard class, its attribute `standard`.

    It is an ABCMeta so that a class can derive from a queue and from an abstract class.

    A subclass gets the standard class as its base if it uses private attributes that only that class has. A call
    returns a standard object if shmtree cannot make one here. `isinstance` accepts both.
    """

    standard: type

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], standard: type | None = None, **options: Any
    ) -> Any:
        is_known = standard is not None or namespace.get("__module__") == "concurrent.futures.process"
        used = [] if is_known else _standard_attributes(namespace)
        derived = [base for base in bases if isinstance(base, Substitute) and "standard" not in vars(base)]
        if used and derived:  # too late: the methods of this base refer to it
            missing = f"it uses {', '.join(used)}, which its replaced base class {derived[0].__qualname__} lacks"
            notes.add(f"{namespace.get('__module__')}.{name}", missing)
        elif used:
            standard_bases = tuple(base.standard if isinstance(base, Substitute) else base for base in bases)
            left: Any = type(standard_bases[0])(name, standard_bases, namespace, **options)
            _note_instances(left, used)
            return left
        made = super().__new__(mcs, name, bases, namespace, **options)
        if standard is not None:
            made.standard = standard
        return made

    def __init__(cls, name: str, bases: Any, namespace: Any, standard: type | None = None, **options: Any) -> None:
        super().__init__(name, bases, namespace, **options)

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        try:
            return super().__call__(*arguments, **options)
        except (Error, OSError, MemoryError) as error:
            if "standard" not in vars(cls):  # a subclass of the program
                raise
            notes.add(cls.standard.__name__, f"shmtree cannot make it: {error}")
            return cls.standard(*arguments, **options)

    def __instancecheck__(cls, obj: object) -> bool:
        return super().__instancecheck__(obj) or ("standard" in vars(cls) and isinstance(obj, cls.standard))

    def __subclasscheck__(cls, other: type) -> bool:
        return super().__subclasscheck__(other) or ("standard" in vars(cls) and issubclass(other, cls.standard))


def _note_instances(cls: Any, used: list[str]) -> None:
    """Adds a note when the first object of this class is made."""
    initialize = cls.__init__

    @functools.wraps(initialize)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        notes.add(f"{cls.__module__}.{cls.__qualname__}", f"the class uses {', '.join(used)} of the standard queue")
        initialize(self, *arguments, **options)

    cls.__init__ = __init__


def _standard_attributes(namespace: dict[str, Any]) -> list[str]:
    """Returns the attributes of a class body that only standard queues have, in the order of the alphabet."""
    found = _LACKING.intersection(namespace)
    for each in namespace.values():
        function = getattr(each, "fget", None) or getattr(each, "__func__", each)
        if isinstance(function, FunctionType):
            found |= _LACKING.intersection(function.__code__.co_names)
            found |= {
                step.argval
                for step in dis.get_instructions(function)
                if step.opname == "STORE_ATTR" and step.argval in _FIXED
            }
    return sorted(found)
