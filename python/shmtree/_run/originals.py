"""The standard queue classes, which keep working after `multiprocessing.queues` has others under their names.

Their methods look up `Queue` in the globals of their module. `claim` gives them globals of their own.
"""

from __future__ import annotations

from multiprocessing import queues as _module
from types import FunctionType
from typing import Any

Queue = _module.Queue
JoinableQueue = _module.JoinableQueue
SimpleQueue = _module.SimpleQueue


def claim() -> None:
    """Separates the classes from their module. Pickles of their instances find them here."""
    names = {**vars(_module), "Queue": Queue, "JoinableQueue": JoinableQueue, "SimpleQueue": SimpleQueue}
    for cls in (Queue, JoinableQueue, SimpleQueue):
        for name, value in list(vars(cls).items()):
            if isinstance(value, FunctionType):
                setattr(cls, name, _rebound(value, names))
            elif isinstance(value, staticmethod):
                setattr(cls, name, staticmethod(_rebound(value.__func__, names)))
        cls.__module__ = __name__


def _rebound(function: Any, names: dict[str, Any]) -> FunctionType:
    """Returns the function with other globals."""
    made = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    made.__doc__ = function.__doc__
    return made
