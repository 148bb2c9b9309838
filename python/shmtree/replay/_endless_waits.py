"""Detects that a wait for rows can never end, because no other thread or process can add one."""

from __future__ import annotations

import _thread
import os
import queue
import signal
import sys
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

_forks = 0  # number of times that this process was about to fork


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(before=_count_fork)


class Owner:
    """Records whether other processes may have a buffer that this one has made."""

    def __init__(self, is_named: bool) -> None:
        self._pid, self._forks = os.getpid(), _forks
        self._given = is_named

    def give(self) -> None:
        """Records that another process may have the buffer from now on."""
        self._given = True

    @property
    def is_alone(self) -> bool:
        """True if no other process can have the buffer: it is unnamed and unsent, and this process has not forked."""
        return not self._given and self._pid == os.getpid() and self._forks == _forks


def _is_only_thread() -> bool:
    """True if no other thread, and no signal handler written in Python, can run during a wait."""
    if _thread._count() != 0 or len(sys._current_frames()) != 1:
        return False
    handlers = map(signal.getsignal, signal.valid_signals())
    return not any(callable(each) and each is not signal.default_int_handler for each in handlers)


def draw(sample_within: Callable[[float | None], _T], owner: Owner | None, timeout: float | None) -> _T:
    """Calls `sample_within`, which waits at most `timeout` seconds, and returns its result.

    Raises:
        RuntimeError: `timeout` is None, and only the calling thread could add rows.
    """
    if timeout is None and owner is not None and owner.is_alone:
        try:
            return sample_within(0.0)
        except queue.Empty as error:
            if _is_only_thread():
                raise RuntimeError(
                    f"this call would wait forever, because only this thread can add rows: {error}. Add rows, pass"
                    " the buffer to another process or thread that adds rows, or set timeout= to get queue.Empty"
                ) from None
    return sample_within(timeout)
