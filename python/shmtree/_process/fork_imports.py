"""Recovery of imports that were in progress in other threads when this process was forked.

While a thread imports a module, it holds the module's lock, and the module is in `sys.modules` with the part of its
contents that exists so far. A forked child has copies of the lock and of the unfinished module, but not of the thread.
Without this handler, every import of that module in the child would block forever. The child treats the import as one
that failed: it removes the module and its lock, and the next import loads the module again. This matters because
decoding a message may import a module: that of a class, one that a pickle names, torch, or the files of a time zone.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from types import ModuleType
from typing import Any

# Private to importlib, which has no public way to do this. If a Python lacks them, the locks stay as they are.
_bootstrap: Any = getattr(importlib, "_bootstrap", None)
_locks: dict[str, Any] = getattr(_bootstrap, "_module_locks", {})


def _after_fork() -> None:
    me = threading.get_ident()
    for name, reference in list(_locks.items()):
        lock = reference()
        if lock is None:
            continue
        if lock.owner == me:  # the forking thread was importing this module, and continues the import in the child
            lock.lock = threading.RLock()  # another thread, which does not exist in the child, may have held this lock
            continue
        if lock.owner is not None:
            _end_import(name)
        _locks.pop(name, None)  # the next import makes a new lock


def _end_import(name: str) -> None:
    """Ends the import of a module by a thread that this process lacks."""
    module = sys.modules.get(name)
    if not isinstance(module, ModuleType):
        return
    contents = ModuleType.__getattribute__(module, "__dict__")  # a plain access makes a lazy module load itself
    if getattr(contents.get("__spec__"), "_initializing", False):
        # Also removes its submodules. An import that found them would not make them attributes of the new package.
        for each in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
            del sys.modules[each]
        return
    # The module is complete, but its thread may not have set it as an attribute of its package yet.
    package, _, attribute = name.rpartition(".")
    parent = sys.modules.get(package)
    if isinstance(parent, ModuleType):
        ModuleType.__getattribute__(parent, "__dict__").setdefault(attribute, module)


os.register_at_fork(after_in_child=_after_fork)
