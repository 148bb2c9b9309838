"""Exit of this process, which detaches it from everything, and its forks."""

from __future__ import annotations

import atexit
import functools
import multiprocessing.context
import multiprocessing.util
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from .. import _core
from ..errors import ChannelClosed, ShutDown
from . import spawn

_ENDS = (ChannelClosed, ShutDown, StopIteration, StopAsyncIteration)

_exit_functions: list[Callable[[], None]] = []
_endings: list[Callable[[], None]] = []
_waits: list[Callable[[], None]] = []


def before_leaving(function: Callable[[], None]) -> None:
    """Registers a function to call when this process exits, while it is still attached to its channels."""
    _exit_functions.append(function)


def before_end(function: Callable[[], None]) -> None:
    """Registers a function to call at exit, after this process leaves its channels and before it releases its pins."""
    _endings.append(function)


def wait_at_end(function: Callable[[], None]) -> None:
    """Registers a function to call last, after multiprocessing's children have exited.

    The function may wait for other processes to release blocks.
    """
    _waits.append(function)


_lock_owners: dict[str, weakref.WeakSet[Any]] = {}


def lock_in(owner: object, name: str) -> threading.Lock:
    """Returns a lock for that attribute of `owner`. A forked child gets a new one: it lacks the thread that held it."""
    _lock_owners.setdefault(name, weakref.WeakSet()).add(owner)
    return threading.Lock()


def exit_code_of(error: object) -> int:
    """Returns the exit code of a process that this exception ends; 0 if there is none, and for Ctrl-C."""
    if isinstance(error, SystemExit):
        return 0 if error.code is None else error.code & 0xFF if isinstance(error.code, int) else 1
    return int(error is not None and not isinstance(error, KeyboardInterrupt))


def failure_of(error: object) -> int | None:
    """Returns the exit code that an object reports if this exception leaves its `with` block; 0 if there is none yet.

    Returns None if the object closes normally: there is no exception, or it reports the end of a stream.
    """
    if isinstance(error, SystemExit):
        return exit_code_of(error) or None
    return 0 if isinstance(error, Exception) and not isinstance(error, _ENDS) else None


def _watch_target(_: object = None) -> None:
    """Wraps the target of this child, so that its failure is recorded. Called before the target runs."""
    process: Any = multiprocessing.process.current_process()
    process.run = functools.partial(_run, process.run)


def _run(target: Callable[[], None]) -> None:
    try:
        target()
    except BaseException as error:
        _core.note_exit_code(exit_code_of(error))  # before the frames, and the ends in them, are freed
        raise


def watch_targets() -> None:
    """Makes children of multiprocessing report the failure of their target to their peers.

    Call it after all other fork hooks are registered, since those expect the process without this change.
    """
    multiprocessing.util.register_after_fork(_anchor, _watch_target)
    # A process that spawn starts runs no hooks. It imports the program while this attribute is set.
    if getattr(multiprocessing.process.current_process(), "_inheriting", False):
        multiprocessing.context.SpawnProcess._after_fork = staticmethod(_watch_target)  # type: ignore[attr-defined]


def _error_of_program() -> BaseException | None:
    """Returns the uncaught exception that ends the main program. Cannot see SystemExit."""
    error = getattr(sys, "last_exc", getattr(sys, "last_value", None))
    if not isinstance(error, BaseException) or error.__traceback__ is None or hasattr(sys, "ps1"):
        return None
    import opcode  # imported here, because few programs need it

    # Event loops also print the exceptions of callbacks in this way, and then continue. If the main program has
    # continued, it is no longer at the instruction of the traceback, unless it has raised the exception again.
    frame = error.__traceback__.tb_frame
    module, function = frame.f_globals.get("__name__"), frame.f_code.co_name
    is_program = (module, function) in (("__main__", "<module>"), ("runpy", "_run_module_as_main"))
    raised_again = "RAISE" in opcode.opname[frame.f_code.co_code[frame.f_lasti]]
    has_ended = raised_again or frame.f_lasti == error.__traceback__.tb_lasti
    return error if is_program and has_ended else None


def _after_fork() -> None:
    for name, owners in _lock_owners.items():
        for owner in list(owners):
            setattr(owner, name, threading.Lock())
    _core.forget_exit()
    spawn.after_fork()
    _expect()


def _at_exit() -> None:
    """Detaches this process from all channels and names. Messages that it has put stay, and so do views."""
    if exit_code := exit_code_of(_error_of_program()):
        _core.note_exit_code(exit_code)
    for function in _exit_functions:
        function()
    _core.leave_all()
    _core.leave_names()
    for function in _endings:
        function()


def _at_very_end() -> None:
    for function in _waits:
        function()


def _expect_end() -> None:
    # At the parent's exit, multiprocessing terminates daemons and joins its other children. It does so in an atexit
    # function, which runs after those that were registered later. Finalizers with a priority below 0 run after that.
    multiprocessing.util.Finalize(None, _at_very_end, exitpriority=-100)


def _at_exit_of_child() -> None:
    # multiprocessing joins the other threads of a child only after this, and they may still put messages.
    for thread in threading.enumerate():
        if not thread.daemon and thread not in (threading.current_thread(), threading.main_thread()):
            thread.join()
    _at_exit()
    _at_very_end()


def _expect_exit(_: object = None) -> None:
    # Children of multiprocessing exit through os._exit, which runs these finalizers and no atexit functions.
    multiprocessing.util.Finalize(None, _at_exit_of_child, exitpriority=-100)


def _expect() -> None:
    # A process that os.fork makes in a child of multiprocessing exits in the same way as that child.
    _expect_exit() if multiprocessing.process.parent_process() is not None else _expect_end()


class _Anchor:
    """Keeps the after-fork hook registered: multiprocessing drops a hook when its object is collected."""


def _note_name(_: object = None) -> None:
    # A forked child still has its parent's name while the hooks of os.register_at_fork run.
    _core.note_process_name()


_anchor = _Anchor()
multiprocessing.util.register_after_fork(_anchor, _expect_exit)
multiprocessing.util.register_after_fork(_anchor, _note_name)
_note_name()
_expect()
atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
