"""Permanent names by which pickles in frames call functions of this package, wherever the functions are moved.

Frames outlive processes and releases: `dump` and recordings write them to files.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])


def known_as(module: str, name: str) -> Callable[[_F], _F]:
    """Lets pickles refer to the decorated function as `name` of `module`, which need not have a file."""

    def publish(function: _F) -> _F:
        function.__module__, function.__qualname__ = module, name
        sys.modules.setdefault(module, types.ModuleType(module))
        setattr(sys.modules[module], name, function)
        return function

    return publish
