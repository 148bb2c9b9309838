"""Output files that only their user may read, and that appear when they are complete."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import Any

from .._codec import whole_files


@contextlib.contextmanager
def replacing(path: str, mode: str) -> Iterator[Any]:
    """Opens an output file. If `path` is a pipe or device, opens it; otherwise, makes a private file that replaces
    `path` at the end, as `whole_files.replacing` does."""
    try:
        with open(path, mode) if _is_stream(path) else whole_files.replacing(path, mode, private=True) as out:
            yield out
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise OSError(error.errno, error.strerror, path) from None  # a write does not name its file


def _is_stream(path: str) -> bool:
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)
    except OSError:  # opening it raises the error
        return False
    return kind not in (stat.S_IFREG, stat.S_IFDIR)
