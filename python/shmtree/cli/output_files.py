"""Output files that only their user may read, and that appear when they are complete."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from typing import Any

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def replacing(path: str, mode: str) -> Iterator[Any]:
    """Opens a new file that only this user may read, and that replaces `path` when the block ends without an exception.

    Until then, an existing file stays unchanged. If the folder of `path` refuses new files, collects the contents in a
    temporary file and copies them into `path` at the end. A failure of that copy leaves `path` incomplete. If `path` is
    a pipe or a device, opens it directly. Raises PermissionError as `private` does.
    """
    with _naming(path):
        yield from _replacing(path, mode)


def _replacing(path: str, mode: str) -> Iterator[Any]:
    target = os.path.realpath(path)
    if os.path.exists(path):
        if not os.path.isfile(path) or not os.path.exists(target):
            with open(path, mode, opener=private) as out:
                yield out
            return
        os.close(private(path, os.O_WRONLY))  # checks the rights of other users; changes nothing
    made = _new_file_beside(target, path)
    if made is None:
        with tempfile.TemporaryFile(f"{mode}+") as contents:
            yield contents
            contents.seek(0)
            with open(path, mode, opener=private) as out:
                shutil.copyfileobj(contents, out)
        return
    descriptor, temporary = made
    try:
        with open(descriptor, mode) as out:
            yield out
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Adds the path to an error of a full disk. A write does not name its file."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in _FULL:
            raise OSError(error.errno, error.strerror, path) from None
        raise


def _new_file_beside(target: str, path: str) -> tuple[int, str] | None:
    """Returns the descriptor and path of a new file. None if `target` exists and its folder refuses new files."""
    try:
        return tempfile.mkstemp(prefix=".shmtree-", dir=os.path.dirname(target))
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and os.path.exists(target):
            return None
        raise OSError(error.errno, error.strerror, path) from None  # name the user's file


def private(path: str, flags: int) -> int:
    """Opens a file that only this user may read. Raises PermissionError if it exists and other users have rights."""
    descriptor = os.open(path, flags & ~os.O_TRUNC, 0o600)
    try:
        about = os.fstat(descriptor)
        if stat.S_ISREG(about.st_mode):
            rights = stat.S_IMODE(about.st_mode)
            if rights & 0o077:
                raise PermissionError(
                    errno.EACCES, f"the file exists and other users may access it (mode {rights:04o}); remove it", path
                )
            if flags & os.O_TRUNC:
                os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
