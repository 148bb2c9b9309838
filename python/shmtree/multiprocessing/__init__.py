"""The standard `multiprocessing` with shmtree's queues and pipes; to migrate, change the import.

::

    from shmtree import multiprocessing as mp  # or: import shmtree.multiprocessing as mp

`Queue`, `JoinableQueue`, `SimpleQueue` and `Pipe` are shmtree's, here, in every context, and in `mp.queues`. So pools
and executors that are made with this module or one of its contexts move their data through shared memory::

    mp.Pool(4)                                               # tasks and results
    ProcessPoolExecutor(mp_context=mp.get_context("spawn"))  # results; it always makes its own queue for calls

Everything else is the standard module itself: its classes, its submodules (`mp.managers` is the standard one), and its
start method, so that `set_start_method` of either module applies to both. Code that does not ask this module or its
contexts for a queue, such as ``mp.pool.Pool()`` without a context or a manager's queues, works as before. Two
things change in standard modules: `reduction.send_handle` and `recv_handle` also accept the connections of shmtree's
`Pipe`, and `logging.config.dictConfig` accepts its queues.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing as _standard
import pkgutil
import sys
import typing

from . import _send_handle
from . import queues as queues
from ._contexts import default_context as _default_context

if typing.TYPE_CHECKING:  # a type checker takes the first of two bindings
    from .._ipc.pipe import Pipe as Pipe
    from ._contexts import get_context as get_context
    from .queues import JoinableQueue as JoinableQueue  # classes, as in the standard stubs: `mp.Queue[int]` is a type
    from .queues import Queue as Queue
    from .queues import SimpleQueue as SimpleQueue

    # isort: split
    from multiprocessing import *  # type: ignore[assignment]  # noqa: F403
    from multiprocessing import connection as connection
    from multiprocessing import dummy as dummy
    from multiprocessing import managers as managers
    from multiprocessing import pool as pool
    from multiprocessing import shared_memory as shared_memory
    from multiprocessing import sharedctypes as sharedctypes
    from multiprocessing import synchronize as synchronize
    from multiprocessing import util as util

__all__ = _standard.__all__

for _found in pkgutil.walk_packages(_standard.__path__, f"{_standard.__name__}."):
    with contextlib.suppress(ImportError):  # modules for other systems
        _module = importlib.import_module(_found.name)
        sys.modules.setdefault(__name__ + _found.name.removeprefix(_standard.__name__), _module)

# Functions are bound methods of the default context, as in the standard module.
globals().update({name: value for name, value in vars(_standard).items() if name[0] != "_" and name != "queues"})
globals().update({name: getattr(_default_context, name) for name in __all__})

_send_handle.install()
if sys.version_info >= (3, 12):
    from . import _logging

    _logging.install()
