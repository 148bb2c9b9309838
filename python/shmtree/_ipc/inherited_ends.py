"""Attaches a forked process to the inherited ends that it was given or uses, and to no others.

A process that multiprocessing forks was given every end that its target, arguments and attributes can reach. A search
finds these ends, and makes the others passive: they keep neither a stream nor a name alive, and peers get no PeerDied
if this process dies. The first use of a passive end attaches it again.

The search is the first part of `run` of the process. There, an exception of a signal handler ends the process, as in
the target. In a hook that runs after the fork, multiprocessing would suppress the exception.

If shmtree cannot know what a process was given, the process stays attached to everything. This is so after a bare
`os.fork`, in workers of a pool (their tasks arrive later), and when the search would take too long.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing.process
import multiprocessing.util
import opcode
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from .. import _core
from .._process import lifetime
from .channel import Receiver, Sender
from .pipe import Connection
from .queue import BaseQueue

#: Bytecodes of a function that name a global, with the number of bits by which the name's number is shifted.
_GLOBAL_OPS = {
    opcode.opmap[name]: shift
    for name, shift in (
        ("LOAD_GLOBAL", int(sys.version_info >= (3, 11))),
        ("LOAD_NAME", 0),
        ("LOAD_FROM_DICT_OR_GLOBALS", 0),
    )
    if name in opcode.opmap
}
_LIBRARY_FOLDERS = [
    os.path.dirname(os.__file__) + os.sep,
    os.sep + "site-packages" + os.sep,
    os.sep + "dist-packages" + os.sep,
]
#: Functions of workers that receive their tasks later.
_WORKERS = (("multiprocessing.pool", "worker"), ("concurrent.futures.process", "_process_worker"))
#: Where torch keeps functions that the program has registered: a module, and how the names of its variables begin. A
#: search follows these functions instead of torch's own code, which takes 0.1 s.
_TORCH_REGISTRIES = (
    ("torch.utils.data._utils.collate", "default_collate_fn_map"),
    ("torch.nn.modules.module", "_global_"),
)


def keep_only(*ends: Sender | Receiver | BaseQueue[Any] | Connection) -> None:
    """Detaches a forked process from every inherited end except `ends`.

    Call it after `os.fork`, before the process starts threads, or in a pool worker (as `initializer`, with the ends as
    `initargs`). A process that multiprocessing forks to run a target does not need it. The other inherited ends become
    passive: they keep neither their stream nor its name alive, and peers get no PeerDied if this process dies. The
    first use of a passive end attaches it again; a Sender raises ChannelClosed if the stream has ended in the meantime.
    Ends that this process made, was sent or has used, and ends that one of its threads is using, stay attached. In a
    process that was not forked this does nothing.

    Args:
        ends: Senders, Receivers, queues and Connections; an end among them that is passive is attached again.

    Raises:
        TypeError: for anything else.
        ChannelClosed: an end among them was passive, and its stream has ended in the meantime.
    """
    kept: list[Any] = []
    for end in ends:
        if isinstance(end, Connection):
            kept += [each for each in (end._receiver, end._sender) if each is not None]
        elif isinstance(end, Sender | Receiver | BaseQueue):
            kept.append(end)
        else:
            raise TypeError(f"keep_only() takes Senders, Receivers, queues and Connections, not {end!r}")
    _core.keep_only(kept)
    for end in kept:
        if not end.closed:
            end._attach_inherited()


def _search_in_run(_: object) -> None:
    """Makes this process search when its `run` is called. Runs after the fork."""
    if _core.has_inherited():
        attributes = vars(multiprocessing.process.current_process())
        attributes["run"] = functools.partial(_search_and_run, attributes.get("run"))


def _search_and_run(own: Callable[[], None] | None) -> None:
    process = multiprocessing.process.current_process()
    del vars(process)["run"]
    if own is not None:
        vars(process)["run"] = own
    _keep_given(process)
    process.run()


def _keep_given(process: multiprocessing.process.BaseProcess) -> None:
    """Makes ends passive that the target cannot reach."""
    # If the search fails, nothing changes: the process stays attached to everything that it has.
    with contextlib.suppress(MemoryError):
        _core.keep_given(
            (*_torch_registries(), process),  # the last one is searched first
            _LIBRARY_FOLDERS,
            _own_packages(process),
            _GLOBAL_OPS,
            opcode.opmap["IMPORT_NAME"],
            opcode.EXTENDED_ARG,
            _task_loops(),
        )


def _own_packages(process: Any) -> list[str]:
    """Returns the packages of the target and of the process class, except torch.

    The search for ends treats them as code of the program, even if they are installed.
    """
    target = vars(process).get("_target")
    while type(target) is functools.partial:
        target = target.func
    modules: list[Any] = [type(process).__module__]
    if type(target) is types.MethodType:
        modules.append(type(target.__self__).__module__)
        target = target.__func__
    modules.append(
        target.__globals__.get("__name__") if type(target) is types.FunctionType else type(target).__module__
    )
    packages = {name.partition(".")[0] for name in modules if type(name) is str}
    return [package for package in packages - {"torch"} if package not in sys.stdlib_module_names]


def _torch_registries() -> list[Any]:
    found = []
    for name, start in _TORCH_REGISTRIES:
        module = sys.modules.get(name)
        if module is not None:
            found += [value for variable, value in vars(module).items() if variable.startswith(start)]
    return found


def _task_loops() -> list[Any]:
    modules = [(sys.modules.get(module), name) for module, name in _WORKERS]
    return [vars(module)[name] for module, name in modules if module is not None and name in vars(module)]


class _Anchor:
    """Keeps the after-fork hook registered: multiprocessing drops a hook when its object is collected."""


_anchor = _Anchor()
multiprocessing.util.register_after_fork(_anchor, _search_in_run)
lifetime.watch_targets()
