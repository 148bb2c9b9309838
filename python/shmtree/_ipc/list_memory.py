"""The memory of shared lists: sealed memory files, or files on disk, which this process maps read-only.

The seals forbid every process to write to a list or to change its size, so no process can change an item, and no
access raises SIGBUS. A file on disk has no seals. The kernel frees the memory when no process has it open or mapped.

This process keeps one descriptor for each file. At first, each list has a memory file of its own. Once the process has
many files, new lists share some, unless they are large, so that the process does not run out of descriptors.
"""

from __future__ import annotations

import fcntl
import os
import stat
import weakref
from collections.abc import Callable
from typing import Any

from .. import _core
from ..errors import CorruptMessage, OutOfSharedMemory
from .list_writer import Writer

_F_SEAL_FUTURE_WRITE = 0x10  # of Linux 5.1; the module fcntl lacks it before Python 3.13
_SIZE_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_SEALS = _SIZE_SEALS | fcntl.F_SEAL_WRITE
_RESERVE_BYTES = 4 << 20  # what a list leaves of the machine's memory, at least
_CHECK_BYTES = 16 << 20  # written between two checks of the machine's memory
_OWN_FILES = 64  # files of lists in this process from which on new lists share files
_GROUP_BYTES = 64 << 20  # of a shared file, which is sparse
_MAX_GROUPED_BYTES = 16 << 20  # of a list in a shared file: the kernel frees the file as a whole

_Key = tuple[int, int]  # device, inode
_files: weakref.WeakValueDictionary[_Key, ListFile] = weakref.WeakValueDictionary()
_lists: weakref.WeakValueDictionary[tuple[_Key, int, bytes], ListMemory] = weakref.WeakValueDictionary()
_groups: list[weakref.ref[ListFile]] = []  # shared files that no thread is adding to


class ListFile:
    """An open file with one list or several."""

    def __init__(self, fd: int, found: os.stat_result, group: _core.ListGroup | None = None) -> None:
        """Takes the descriptor over."""
        self.key = found.st_dev, found.st_ino
        self.anchors: dict[int, Any] = {}  # by process, see list_handles
        self.group = group  # writes to the file
        self._fd = _core.CheckedFd(fd)

    @property
    def fd(self) -> int:
        """Its descriptor, for a use that follows at once. Raises OSError if the program has closed it."""
        return self._fd.number("a shared list")

    def list_at(self, offset: int, what: str, fd: int | None = None) -> ListMemory:
        """Returns the list at this offset. Raises CorruptMessage if there is none of this version.

        `fd` is another descriptor of the file, for the case that the program has closed that of this object.
        """
        mapped = _core.MappedList(self.fd if fd is None else fd, what, offset)
        key = self.key, offset, mapped.identity
        known = _lists.get(key)
        if known is not None and (len(known.mapped), known.mapped.nbytes) == (len(mapped), mapped.nbytes):
            return known
        memory = _lists[key] = ListMemory(self, offset, mapped)
        return memory


class ListMemory:
    """One list as this process has it mapped. All lists and slices of this process that refer to it share it."""

    def __init__(self, file: ListFile, offset: int, mapped: _core.MappedList) -> None:
        self.file, self.offset, self.mapped = file, offset, mapped

    @property
    def fd(self) -> int:
        """The descriptor of its file, for a use that follows at once."""
        return self.file.fd

    @property
    def is_sealed(self) -> bool:
        """True if no process can change or shorten the memory. False for a file on disk."""
        try:
            seals = fcntl.fcntl(self.fd, fcntl.F_GET_SEALS)
        except OSError:
            return False
        return seals & _SIZE_SEALS == _SIZE_SEALS and seals & (fcntl.F_SEAL_WRITE | _F_SEAL_FUTURE_WRITE) != 0


def open_memory(fd: int, what: str, offset: int = 0) -> ListMemory:
    """Returns a list in an open file, and takes the descriptor over, also when it raises.

    Raises:
        CorruptMessage: The file is not a list of this version.
    """
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise CorruptMessage(f"{what} is not a regular file")
        file = _files.get((found.st_dev, found.st_ino))
        if file is not None:
            return file.list_at(offset, what, fd)
        file, fd = ListFile(fd, found), -1
        memory = file.list_at(offset, what)
        _files[file.key] = file
        return memory
    finally:
        if fd >= 0:
            os.close(fd)


def known_memory(device: int, inode: int, identity: bytes, offset: int, what: str) -> ListMemory | None:
    """Returns a list in a file that this process has open. None if it has not, or the file has another list there."""
    key = device, inode
    file, memory = _files.get(key), _lists.get((key, offset, identity))
    if memory is None and file is not None:
        memory = file.list_at(offset, what)
    return memory if memory is not None and memory.mapped.identity == identity else None


def new_memory(fill: Callable[[Writer], None]) -> ListMemory:
    """Returns a list in new shared memory, with the frames that `fill` adds.

    Raises:
        OutOfSharedMemory: The machine, or a control group, has too little memory left.
    """
    writing = os.memfd_create("shmtree-list", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        budget = _MemoryBudget()
        writer = Writer(writing, budget.take)
        budget.writer = writer
        fill(writer)
        writer.finish()
        nbytes = os.fstat(writing).st_size
        if len(_files) >= _OWN_FILES and nbytes <= _MAX_GROUPED_BYTES:
            budget.take(nbytes)
            try:
                return _add_to_group(writing, nbytes)
            except OSError:
                pass  # the kernel or the limits of this process do not allow a shared file
        fcntl.fcntl(writing, fcntl.F_ADD_SEALS, _SEALS)
        # A second, read-only descriptor: before Linux 6.7, a sealed file can be mapped as shared only through one.
        reading = os.open(f"/proc/self/fd/{writing}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(writing)
    return open_memory(reading, "the new list")


def _add_to_group(fd: int, nbytes: int) -> ListMemory:
    """Copies a list into a file that it shares with others. A file is in `_groups` unless a thread adds to it."""
    while True:
        try:
            file = _groups.pop()()
        except IndexError:
            file = _new_group()
        if file is None or file.group is None:
            continue  # all its lists were dropped, or this process is a child of the one that made it
        offset = file.group.add(fd, nbytes)
        if offset is not None:
            _groups.append(weakref.ref(file))
            return file.list_at(offset, "the new list")


def _new_group() -> ListFile:
    group = _core.ListGroup(_GROUP_BYTES)
    fd = group.open()
    file = ListFile(fd, os.fstat(fd), group)
    _files[file.key] = file
    return file


def _leave_groups() -> None:
    """Drops the mappings for writing, which the parent has too."""
    _groups.clear()
    for file in list(_files.values()):
        file.group = None


def open_file(path: str) -> ListMemory:
    """Returns the list in a file on disk."""
    return open_memory(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), repr(path))


def copy_whole(memory: ListMemory, fd: int) -> None:
    """Writes all bytes of the list to an empty file. Maps none of them."""
    done = 0
    while done < memory.mapped.nbytes:
        copied = os.sendfile(fd, memory.fd, memory.offset + done, min(memory.mapped.nbytes - done, 1 << 30))
        if copied == 0:
            raise CorruptMessage(f"the file of the list was truncated to {done} bytes while it was copied")
        done += copied


class _MemoryBudget:
    """Raises OutOfSharedMemory before a list takes the last memory: the kernel would kill a process instead."""

    writer: Writer | None = None

    def __init__(self) -> None:
        self._allowed = 0

    def take(self, nbytes: int) -> None:
        if nbytes > self._allowed:
            available = _core.available_memory()
            reserve = max(_RESERVE_BYTES, available // 20)
            if nbytes + reserve > available:
                count = self.writer.count if self.writer is not None else 0
                raise OutOfSharedMemory(
                    f"the list has {count} items so far, needs {nbytes} more bytes, and the machine or its control "
                    f"group has {available} bytes left; build it in a file with path="
                )
            self._allowed = min(max(nbytes, _CHECK_BYTES), available - reserve)
        self._allowed -= nbytes


os.register_at_fork(after_in_child=_leave_groups)
