"""The terminal that a command draws on: its keys, and its settings when the command ends or is stopped."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from typing import Any, Protocol

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DUMB = ("dumb", "unknown")  # values of TERM for which rich draws nothing
_SLICE_S = 0.1  # interval of checks for Ctrl-Z


class Drawing(Protocol):
    """What a command draws, for example rich's `Live`."""

    def start(self, refresh: bool = False) -> None: ...

    def stop(self) -> None: ...


def can_draw() -> bool:
    """Returns True if standard output is a terminal that can be drawn on, and rich is installed."""
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in DUMB
    return is_terminal and importlib.util.find_spec("rich") is not None


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raises KeyboardInterrupt at the first SIGINT, SIGTERM or SIGHUP, so that the block can restore the terminal.

    Ignores the following ones.
    """

    def end(number: int, frame: Any) -> None:
        for each in _ENDS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {each: signal.signal(each, end) for each in _ENDS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class Keys:
    """The keys of a terminal. Without a terminal as standard input there are none.

    Ctrl-Z stops the program outside of a signal handler, in `next`: a handler could interrupt the drawing.
    """

    def __init__(self) -> None:
        self._terminal = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._settings: Any = None
        self._is_stop_due = False
        self._before_stop: Any = None

    def __enter__(self) -> Keys:
        if self._terminal is not None:
            self._settings = termios.tcgetattr(self._terminal)
        self._before_stop = signal.signal(signal.SIGTSTP, self._ask_for_stop)
        try:
            self._read_single_keys()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTSTP, self._before_stop)
        self._restore()

    def next(self, timeout: float, drawing: Drawing) -> str:
        """Returns the next key, or "" after `timeout` seconds. Returns "q" if the terminal is gone."""
        end = time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0:
            if self._is_stop_due:
                self._stop(drawing)
            elif self._terminal is None:
                time.sleep(min(left, _SLICE_S))
            elif select.select([self._terminal], [], [], min(left, _SLICE_S))[0]:
                read = os.read(self._terminal, 64)
                return read[:1].decode("latin-1") if read else "q"
        return ""

    def _ask_for_stop(self, number: int, frame: Any) -> None:
        self._is_stop_due = True

    def _stop(self, drawing: Drawing) -> None:
        drawing.stop()
        self._restore()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # returns after SIGCONT
        signal.signal(signal.SIGTSTP, self._ask_for_stop)
        self._is_stop_due = False
        self._read_single_keys()
        drawing.start(refresh=True)

    def _read_single_keys(self) -> None:
        if self._terminal is not None:
            tty.setcbreak(self._terminal)

    def _restore(self) -> None:
        if self._terminal is not None:
            with contextlib.suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._settings)
