"""Replay buffers inside messages, as handles; see `shmtree._ipc.ends_in_messages`."""

from __future__ import annotations

from .. import _core
from .._codec import portable
from .._ipc.ends_in_messages import opened, parts
from .._process import handles
from ._buffer import ReplayBuffer


def _flatten(buffer: ReplayBuffer) -> object:
    buffer._note_given()
    return (handles.memory_handle(buffer._replay.arena, buffer._replay.block, buffer._name),)


def _open(flat: object, _: bool) -> ReplayBuffer:
    (handle,) = parts(flat, bytes)
    return opened(handle, ReplayBuffer._opened, ReplayBuffer._gone)


_core._register_end(ReplayBuffer, "shmtree:ReplayBuffer", _flatten, _open)
portable.handles.append(ReplayBuffer)
