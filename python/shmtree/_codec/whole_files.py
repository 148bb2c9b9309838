"""Files that appear complete or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yields a temporary file next to `path`, which then replaces it. After an exception, `path` is as before.

    Processes that have the old file open or mapped keep it. Raises OSError, and yields nothing, if `path` is a folder
    or anything else that is not a regular file: root could replace ``/dev/null``.
    """
    path = os.fsdecode(path)
    _check_replaceable(path)
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=os.path.basename(path) + ".", dir=os.path.dirname(path) or ".")
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None  # the original error names the temporary file
    try:
        with open(descriptor, "w+b") as file:
            os.fchmod(descriptor, 0o666 & ~_umask())
            yield file
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _check_replaceable(path: str) -> None:
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise FileExistsError(errno.EEXIST, "exists and is not a regular file", path)


def _umask() -> int:
    """Returns the process's umask, from /proc if possible: the system call can only read it by setting it."""
    with contextlib.suppress(OSError), open("/proc/self/status") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o077
