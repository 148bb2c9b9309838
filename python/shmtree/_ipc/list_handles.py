"""References to shared lists for other processes.

A process that is being started inherits the descriptor of the list. A running process opens the list through ``/proc``
of the process that made the reference, or of any other process that has the list. Until then, the process that made
the reference keeps the file: a block of its default arena is in transit together with the reference, and the process
that opens the reference ends that transfer.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
import weakref
from multiprocessing import context, reduction
from typing import Any, NamedTuple

import numpy as np

from .. import _core
from .._process import arenas, handles
from ..errors import CorruptMessage
from .list_memory import ListFile, ListMemory, known_memory, open_memory

#: Errors that mean this process lacks a resource. The reference may be good.
_OF_THIS_PROCESS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR})

# pid, descriptor, device, inode, offset, identity; then the handle of the block in transit, if any
_REFERENCE = struct.Struct("<II QQQ16s")


class _Anchor(NamedTuple):
    """A block of this process's default arena that is in transit with each reference to a list of one file."""

    arena: _core.Arena
    block: int
    array: Any  # pins the block

    def is_in_transit(self) -> bool:
        return self.arena.is_shared(self.block)


_in_transit: set[ListFile] = set()  # keeps them; each change is atomic, for threads and signal handlers
_adopted: set[int] = set()
_passed: weakref.WeakKeyDictionary[Any, dict[int, Any]] = weakref.WeakKeyDictionary()  # by process being started


def reference_of(memory: ListMemory) -> bytes:
    """Returns a reference for a running process. The list is in transit from now on."""
    anchor = _anchor_of(memory.file)
    handle = handles.memory_handle(anchor.arena, anchor.block, None)
    _in_transit.add(memory.file)
    sweep()
    return _plain_reference(memory) + handle


def _anchor_of(file: ListFile) -> _Anchor:
    anchor: _Anchor | None = file.anchors.get(os.getpid())
    if anchor is None:
        arena = arenas.default_arena()
        array = arena.new_shared_array((1,), np.uint8)
        anchor = _Anchor(arena, _core.block_of(array), array)
        anchor = file.anchors.setdefault(os.getpid(), anchor)  # another thread may have made one
    return anchor


def reduce_list(memory: ListMemory) -> tuple[bytes, Any]:
    """Does the same as `reference_of`, or lets the process inherit the list if it is being started."""
    popen = context.get_spawning_popen()
    if popen is None:
        return reference_of(memory), None
    passed = _passed.setdefault(popen, {})
    fd = memory.fd
    if fd not in passed:  # spawn refuses to pass one descriptor twice
        passed[fd] = reduction.DupFd(fd)
    return _plain_reference(memory), passed[fd]


def open_reference(reference: bytes, inheritance: Any) -> ListMemory:
    """Opens a reference, and then ends its transfer.

    Raises:
        FileNotFoundError: No process that this one can look into has the list.
        CorruptMessage: The reference is invalid.
    """
    if len(reference) < _REFERENCE.size:
        raise CorruptMessage(f"a reference to a shared list has {len(reference)} bytes, fewer than {_REFERENCE.size}")
    pid, number, device, inode, offset, identity = _REFERENCE.unpack_from(reference)
    memory = _inherited(inheritance, offset) if inheritance is not None else None
    if memory is None or memory.mapped.identity != identity:
        memory = known_memory(device, inode, identity, offset, "the list")
    if memory is None:
        memory = _opened_in_proc(pid, number, device, inode, offset, identity)
    if len(reference) > _REFERENCE.size:
        with contextlib.suppress(FileNotFoundError):  # it was opened before
            handles.open_memory(reference[_REFERENCE.size :], None, _check_anchor)
    sweep()
    return memory


def _check_anchor(core: _core.Arena, block: int, _: _core.Name | None) -> None:
    """Raises ValueError unless the block is one of those that `_anchor_of` makes."""
    core.open_array(block, (1,), np.uint8, "C")


def sweep() -> None:
    """Drops each file after all its references were opened. Each new list, made and opened reference calls it."""
    for file in list(_in_transit):
        anchor = _anchor_of(file)
        if not anchor.is_in_transit():
            _in_transit.discard(file)
            if anchor.is_in_transit():  # another thread has made a reference meanwhile
                _in_transit.add(file)


def _plain_reference(memory: ListMemory) -> bytes:
    file = memory.file
    return _REFERENCE.pack(os.getpid(), file.fd, *file.key, memory.offset, memory.mapped.identity)


def _inherited(inheritance: Any, offset: int) -> ListMemory | None:
    """Opens the descriptor that the parent left to this process. Returns None if it was adopted before."""
    fd = inheritance.detach()
    if fd in _adopted:
        return None
    _adopted.add(fd)
    return open_memory(fd, "the inherited list", offset)


def _opened_in_proc(pid: int, number: int, device: int, inode: int, offset: int, identity: bytes) -> ListMemory:
    for path in _candidates(pid, number):
        try:
            found = os.stat(path)  # first: opening another kind of file may block or have effects
            if (found.st_dev, found.st_ino) != (device, inode) or not stat.S_ISREG(found.st_mode):
                continue
            memory = open_memory(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "the list", offset)
        except CorruptMessage:
            continue
        except OSError as error:
            if error.errno in _OF_THIS_PROCESS:
                raise
            continue
        if memory.mapped.identity == identity:
            return memory
    raise FileNotFoundError("the shared list was freed before it was received; keep it in the sender until then")


def _candidates(pid: int, number: int) -> Any:
    """Yields the descriptor that the reference names, then all descriptors of all processes of this user."""
    yield f"/proc/{pid}/fd/{number}"
    for process in os.listdir("/proc"):
        if process.isdigit():
            with contextlib.suppress(OSError):
                for each in os.listdir(f"/proc/{process}/fd"):
                    yield f"/proc/{process}/fd/{each}"


os.register_at_fork(after_in_child=_in_transit.clear)
