"""The memory of a shared list: a sealed memory file, or a file on disk, which this process maps read-only.

The seals forbid every process to write to the memory or to change its size, so no process can change an item, and no
access raises SIGBUS. A file on disk has no seals. The kernel frees the memory when no process has it open or mapped.
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

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_RESERVE_BYTES = 4 << 20  # what a list leaves of the machine's memory, at least
_CHECK_BYTES = 16 << 20  # written between two checks of the machine's memory

_known: weakref.WeakValueDictionary[tuple[int, int, bytes], ListMemory] = weakref.WeakValueDictionary()


class ListMemory:
    """One list as this process has it mapped. All lists and slices of this process that refer to it share it."""

    def __init__(self, fd: int, mapped: _core.MappedList, device: int, inode: int) -> None:
        """Takes the descriptor over."""
        self.mapped = mapped
        self.device, self.inode = device, inode
        self.anchors: dict[int, Any] = {}  # by process, see list_handles
        self._fd = _core.CheckedFd(fd)

    @property
    def fd(self) -> int:
        """Its descriptor, for a use that follows at once. Raises OSError if the program has closed it."""
        return self._fd.number("a shared list")

    @property
    def is_sealed(self) -> bool:
        """True if no process can change or shorten the memory. False for a file on disk."""
        try:
            return fcntl.fcntl(self.fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        except OSError:
            return False


def open_memory(fd: int, what: str) -> ListMemory:
    """Returns the list in an open file, and takes the descriptor over, also when it raises.

    Raises:
        CorruptMessage: The file is not a list of this version.
    """
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise CorruptMessage(f"{what} is not a regular file")
        mapped = _core.MappedList(fd, what)
        key = found.st_dev, found.st_ino, mapped.identity
        known = _known.get(key)
        if known is not None and (len(known.mapped), known.mapped.nbytes) == (len(mapped), mapped.nbytes):
            return known
        made = _known[key] = ListMemory(fd, mapped, found.st_dev, found.st_ino)
        fd = -1
        return made
    finally:
        if fd >= 0:
            os.close(fd)


def known_memory(device: int, inode: int, identity: bytes) -> ListMemory | None:
    """Returns the list of that file if this process has it mapped."""
    return _known.get((device, inode, identity))


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
        fcntl.fcntl(writing, fcntl.F_ADD_SEALS, _SEALS)
        # A second, read-only descriptor: before Linux 6.7, a sealed file can be mapped as shared only through one.
        reading = os.open(f"/proc/self/fd/{writing}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(writing)
    return open_memory(reading, "the new list")


def open_file(path: str) -> ListMemory:
    """Returns the list in a file on disk."""
    return open_memory(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), repr(path))


def copy_whole(memory: ListMemory, fd: int) -> None:
    """Writes all bytes of the list to an empty file. Maps none of them."""
    done = 0
    while done < memory.mapped.nbytes:
        copied = os.sendfile(fd, memory.fd, done, min(memory.mapped.nbytes - done, 1 << 30))
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
