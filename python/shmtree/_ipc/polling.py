"""Polling in coroutines, for objects that have no descriptor."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import TypeVar

from .arguments import seconds

_T = TypeVar("_T")

# First and longest interval between two checks of a waiting coroutine.
_FIRST_LOOK_S, _MOST_LOOK_S = 0.0005, 0.025
# Interval of the checks that need system calls: is a peer left to wait for?
_ASK_AGAIN_S = 0.25


async def poll(
    get: Callable[[], _T],
    is_empty: Callable[[], bool],
    timeout: float | None,
    not_yet: type[Exception] | tuple[type[Exception], ...] = queue.Empty,
) -> _T:
    """Calls `get` until it does not raise `not_yet`, and returns its result.

    Raises it after `timeout` seconds (None: never).

    `is_empty` is called often and has to be cheap.
    """
    import asyncio

    deadline = None if timeout is None else time.monotonic() + seconds("timeout", timeout)
    look = _FIRST_LOOK_S
    while True:
        try:
            return get()
        except not_yet:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise
        until = time.monotonic() + (_ASK_AGAIN_S if left is None else min(left, _ASK_AGAIN_S))
        while True:
            await asyncio.sleep(max(min(look, until - time.monotonic()), 0))
            look = min(1.25 * look, _MOST_LOOK_S)
            if not is_empty() or time.monotonic() >= until:
                break
