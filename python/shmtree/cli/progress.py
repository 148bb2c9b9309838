"""Progress bars on standard error, if it is a terminal and rich is installed."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from . import drawing

_T = TypeVar("_T")
_INTERVAL_S = 0.1  # between two updates of a bar


def is_shown() -> bool:
    return sys.stderr is not None and sys.stderr.isatty() and importlib.util.find_spec("rich") is not None


class Bar:
    """Counts messages. Draws nothing before `start`, and nothing at all without a terminal or without rich.

    Leaves no trace on the terminal when it ends.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._progress: Any = None
        self._task: Any = None
        self._next = 0.0  # time of the next update
        self.done = 0

    def start(self, total: int | None) -> None:
        """Draws the bar. `total`: number of messages; None: unknown."""
        if not is_shown() or self._progress is not None:
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

        last = TimeElapsedColumn() if total is None else TimeRemainingColumn()
        columns = ("{task.description}", BarColumn(), "{task.fields[text]}", last)
        alone: Any = {"transient": True, "redirect_stdout": False, "redirect_stderr": False}
        self._progress = Progress(*columns, console=Console(stderr=True), **alone)
        self._task = self._progress.add_task(self._what, total=total, text="")
        self._progress.start()

    def show(self, done: int, text: str = "", total: int | None = None) -> None:
        """Sets the number of messages, and a text beside the bar. `total`: None keeps that of `start`."""
        self.done = done
        if self._progress is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + _INTERVAL_S
            self._progress.update(self._task, completed=done, text=text or f"{done:,}", total=total)

    def show_bytes(self, done: int, total: int) -> None:
        """Sets the numbers of bytes. The first call draws the bar."""
        self.start(total)
        self.show(done, f"{drawing.size(done)} of {drawing.size(total)}", total)

    def advance(self, count: int = 1) -> None:
        self.show(self.done + count)

    def over(self, messages: Iterable[_T]) -> Iterator[_T]:
        """Yields the messages, and counts each when the next one is asked for."""
        for each in messages:
            yield each
            self.advance()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
