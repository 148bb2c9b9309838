"""Commands that run until Ctrl-C or SIGTERM."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator

_ENDS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def asked_to_stop(limit: float | None = None) -> Iterator[Callable[..., bool]]:
    """Yields a function that returns True after Ctrl-C or SIGTERM (`times` of them), or after `limit` seconds.

    These are regular ends, and no errors.
    """
    signals: list[int] = []
    end = math.inf if limit is None else time.monotonic() + limit
    before = {each: signal.signal(each, lambda number, _: signals.append(number)) for each in _ENDS}
    try:
        yield lambda times=1: len(signals) >= times or (times == 1 and time.monotonic() >= end)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
