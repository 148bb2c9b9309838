"""Messages as bytes, taken from one channel and put into another."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._ipc.channel import Receiver

Bytes = npt.NDArray[np.uint8]

_SMALL = 64 << 10  # bytes: what is larger travels as a buffer of its own
_TOGETHER = (
    96_000  # bytes of small messages in one buffer: Ray sends arguments of less than 100 KiB with the call itself
)
_MOST_SMALL = 4 << 20  # bytes of small messages in one call: Ray sends 10 MiB with it, and the rest more slowly
_AT_ONCE = 64  # small messages

#: Buffers, and the sizes of the messages that lie in each, one behind the other.
Batch = list[tuple[bytes | Bytes, list[int]]]


class Taken(NamedTuple):
    """A message that was taken from its channel, and is there until it is acknowledged."""

    ticket: int
    frame: Any  # Frame, or _unread.Substitute


def take(receiver: Receiver[Any], messages: int, nbytes: int) -> tuple[list[Taken], Exception | None]:
    """Up to so many messages for one call, without waiting; of more than `nbytes` only one. And what came in place of
    the next.

    That is what `get_nowait` raises but for Empty: it is raised once, so whoever is told of it here has to act on it.
    """
    taken: list[Taken] = []
    size = small = 0
    while len(taken) < messages and size < nbytes and small < _MOST_SMALL:
        at_once = _AT_ONCE if taken and taken[-1].frame.nbytes < _SMALL else 1
        try:
            frames = receiver.take_frames(min(messages - len(taken), at_once), 0.0)
        except queue.Empty:
            break
        except Exception as error:
            return taken, error
        taken += [Taken(frame.ticket or 0, frame) for frame in frames]
        size += sum(frame.nbytes for frame in frames)
        small += sum(frame.nbytes for frame in frames if frame.nbytes < _SMALL)
    return taken, None


def join(frames: Iterable[Any]) -> Batch:
    """For one call: small messages are copied behind one another, and large ones are views."""
    batch: Batch = []
    small: list[Any] = []
    sizes: list[int] = []

    def end_small() -> None:
        if small:
            batch.append((b"".join(small), sizes.copy()))
            small.clear()
            sizes.clear()

    together = 0
    for frame in frames:
        size = len(frame)
        if size >= _SMALL:
            end_small()
            batch.append((np.frombuffer(frame, np.uint8), [size]))
            continue
        if together + size > _TOGETHER:
            end_small()
        together = together + size if small else size
        small.append(frame)
        sizes.append(size)
    end_small()
    return batch


def split(batch: Batch) -> Iterator[memoryview]:
    """What `join` was given."""
    for buffer, sizes in batch:
        memory: Any = buffer
        view, at = memoryview(memory), 0
        for size in sizes:
            yield view[at : at + size]
            at += size
