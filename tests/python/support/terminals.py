"""Pseudo-terminals for programs that draw on a terminal."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

import pytest

# Errors of openpty() without /dev/ptmx, without devpts behind it, or without permission to open it.
NO_TERMINALS = (errno.ENODEV, errno.ENOENT, errno.EACCES, errno.EPERM)


@contextlib.contextmanager
def pseudo_terminal() -> Iterator[tuple[int, int]]:
    """Yields the descriptors of a new pseudo-terminal, ours and the program's, and closes them.

    Skips the test if there is none.
    """
    try:
        ours, theirs = os.openpty()
    except OSError as error:
        if error.errno not in NO_TERMINALS:
            raise
        pytest.skip("this machine has no pseudo-terminals")
    try:
        yield ours, theirs
    finally:
        os.close(ours)
        os.close(theirs)
