"""Files that appear complete or not at all.

A new file has no name while it is written (O_TMPFILE), so nothing is left of it if its writer is killed. Where the file
system cannot do that, and in the moment before the file replaces an old one, it has a temporary name. Its writer locks
it (flock). Therefore the next write of the same target recognizes the file of a killed writer, and removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import stat
import tempfile
import zlib
from collections.abc import Iterator
from typing import IO, Any

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]  # the types that `open` accepts

_CHECKED_NAMES = 8  # number of temporary names that each write checks; it checks more if these are in use
_MAX_LINKS = 40  # the limit of the kernel, which refuses a longer chain before
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: Errors if a folder accepts no new file, and of a rename onto a mount point.
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY})
_ACL = "system.posix_acl_access"


class NewFile:
    """A file that replaces `path` at `publish`, through symbolic links, and keeps its mode, and its owner if possible.

    Processes that have the old file open or mapped keep it. If the old file is a mount point, or its folder takes no
    new files, `publish` copies the bytes into the old file. Meanwhile, a reader may see a part of them, and a kill
    of the writer leaves that part. `path` may name an open file, such as ``/dev/stdout``: it is copied into too.

    Args:
        path: File to write.
        rights: Mode of a file that replaces none, without the bits of the umask.
        private: Refuses to replace a file that other users may access.

    Raises:
        FileExistsError: `path` is neither a regular file nor a folder: root could replace ``/dev/null``.
        OSError: The file cannot be written. The error names `path`.
    """

    def __init__(self, path: AnyPath, rights: int = 0o666, *, private: bool = False) -> None:
        self.path = os.fsdecode(path)
        self.fd = self._folder = self._in_place = -1
        self._name, self._temporary = "", ""
        try:
            with _naming(self.path):
                self._open(rights, private)
        except BaseException:
            self.close()
            raise

    def _open(self, rights: int, private: bool) -> None:
        self._old = _stat_of(self.path)  # the kernel refuses loops, and links that others made in a sticky folder
        if self._old is not None:
            _check_replaceable(self._old, private)
        target, is_open_file = _followed(self.path)
        folder, self._name = os.path.split(target)
        if not self._name:
            number = errno.EISDIR if self.path else errno.ENOENT
            raise OSError(number, os.strerror(number))
        if not is_open_file:
            self._folder = os.open(folder or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self._remove_files_of_killed_writers()
            try:
                self._create(rights if self._old is None else 0o600)
                return
            except OSError as error:
                if self._old is None or error.errno not in _REFUSED:
                    raise
        self._in_place = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        with tempfile.TemporaryFile() as contents:
            self.fd = os.dup(contents.fileno())

    def publish(self) -> None:
        """Replaces the file. `fd` then writes to the new file, after its last byte."""
        with _naming(self.path):
            if self._in_place < 0:
                try:
                    self._give_name()
                    return
                except OSError as error:
                    if error.errno not in _REFUSED:
                        raise
                    with contextlib.suppress(FileNotFoundError):
                        self._in_place = os.open(self._name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=self._folder)
                    if self._in_place < 0:
                        raise
            _copy(self.fd, self._in_place)
            os.dup2(self._in_place, self.fd, inheritable=False)

    def close(self) -> None:
        """Closes the file, and removes it if it was not published."""
        if self._temporary:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary, dir_fd=self._folder)
        for fd in (self.fd, self._folder, self._in_place):
            if fd >= 0:
                os.close(fd)
        self.fd = self._folder = self._in_place = -1

    def __enter__(self) -> NewFile:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if isinstance(error, OSError) and error.filename is None and error.errno in _FULL:
            error.filename = self.path  # a write does not name its file
        self.close()

    def _temporary_names(self) -> Iterator[str]:
        # Numbered, so that a write need not list the folder. Targets with the same checksum share these names.
        for number in itertools.count():
            yield f".shmtree-{zlib.crc32(os.fsencode(self._name)):08x}-{number}"

    def _remove_files_of_killed_writers(self) -> None:
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        for number, name in enumerate(self._temporary_names()):
            try:
                fd = os.open(name, flags, dir_fd=self._folder)
            except OSError:
                if number >= _CHECKED_NAMES:
                    return
                continue
            with contextlib.suppress(OSError):  # its writer has locked it
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(fd), os.stat(name, dir_fd=self._folder, follow_symlinks=False)):
                    os.unlink(name, dir_fd=self._folder)
            os.close(fd)

    def _create(self, rights: int) -> None:
        with contextlib.suppress(OSError):  # no O_TMPFILE here, or an error that the next call raises, too
            self.fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, rights, dir_fd=self._folder)
            _lock(self.fd)
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        for name in self._temporary_names():
            with contextlib.suppress(FileExistsError):
                self.fd = os.open(name, flags, rights, dir_fd=self._folder)
                self._temporary = name
                if _lock(self.fd) and os.fstat(self.fd).st_nlink > 0:
                    return
                # Before this process had locked the file, another writer removed it as the leftover of a killed writer.
                self._temporary = ""
                os.close(self.fd)
                self.fd = -1

    def _give_name(self) -> None:
        old = _stat_of(self._name, self._folder) or self._old
        if old is not None:
            self._take_rights(old)
        elif not self._temporary and self._link(self._name):
            return
        if not self._temporary:
            self._temporary = next(filter(self._link, self._temporary_names()))
        os.rename(self._temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._temporary = ""

    def _link(self, name: str) -> bool:
        """Gives the unnamed file this name. Returns False if the name exists."""
        with contextlib.suppress(FileExistsError):
            os.link(f"/proc/self/fd/{self.fd}", name, dst_dir_fd=self._folder, follow_symlinks=True)
            return True
        return False

    def _take_rights(self, old: os.stat_result) -> None:
        folder = os.fstat(self._folder)
        if folder.st_mode & stat.S_ISVTX and old.st_uid not in (os.geteuid(), folder.st_uid):
            return  # another user may have made this file in order to read the new contents
        mode = stat.S_IMODE(old.st_mode)
        try:
            os.fchown(self.fd, old.st_uid, old.st_gid)
        except PermissionError:
            try:
                os.fchown(self.fd, -1, old.st_gid)
            except PermissionError:
                mode &= 0o707  # the rights of the group were meant for another group
        try:
            acl = os.getxattr(f"/proc/self/fd/{self._folder}/{self._name}", _ACL)
        except OSError:
            with contextlib.suppress(OSError):
                os.removexattr(self.fd, _ACL)  # group of the folder
        else:
            os.setxattr(self.fd, _ACL, acl)
        os.fchmod(self.fd, mode)


@contextlib.contextmanager
def replacing(path: AnyPath, mode: str = "w+b", *, private: bool = False) -> Iterator[IO[Any]]:
    """Yields a file that replaces `path` when the block ends. After an exception, `path` is as before.

    The arguments and errors are those of `NewFile`. A private file is for its user only.
    """
    with NewFile(path, 0o600 if private else 0o666, private=private) as new:
        with open(new.fd, mode, closefd=False) as file:
            yield file
        new.publish()


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Names `path` in the errors of system calls on other files."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def _stat_of(path: str, folder: int | None = None) -> os.stat_result | None:
    try:
        return os.stat(path, dir_fd=folder)
    except FileNotFoundError:
        return None


def _check_replaceable(old: os.stat_result, private: bool) -> None:
    if stat.S_ISDIR(old.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(old.st_mode):
        raise FileExistsError(errno.EEXIST, "exists and is not a regular file")
    mode = stat.S_IMODE(old.st_mode)
    if private and mode & 0o077:
        text = f"the file exists and other users may access it (mode {mode:04o}); remove it"
        raise PermissionError(errno.EACCES, text)


def _followed(path: str) -> tuple[str, bool]:
    """Returns the path behind symbolic links, and true if one of them stands for an open file of a process."""
    for _ in range(_MAX_LINKS):
        try:
            link = os.readlink(path)
        except OSError:
            break
        if os.lstat(path).st_dev == os.stat("/proc").st_dev:
            return path, True
        path = os.path.join(os.path.dirname(path), link)
    return path, False


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # the file system has no locks, so no process removes the file
    return True


def _copy(source: int, target: int) -> None:
    """Replaces the contents of a file, and moves to its end. On a full disk, it is as before."""
    before, nbytes = os.fstat(target).st_size, os.fstat(source).st_size
    if nbytes > 0:
        try:
            os.posix_fallocate(target, 0, nbytes)
        except OSError as error:
            if error.errno in _FULL:
                os.ftruncate(target, before)
                raise
    done = 0
    while done < nbytes:
        done += os.sendfile(target, source, done, min(nbytes - done, 1 << 30))
    os.ftruncate(target, nbytes)
