"""Messages as bytes, which are taken from one channel and put into another."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .._core import Frame
from .._ipc.channel import Receiver

Bytes = npt.NDArray[np.uint8]

_SMALL = 64 << 10  # bytes: a larger message is sent in its own buffer
TOGETHER = 96_000  # bytes of small messages per buffer: Ray sends results below 100 KiB with the answer itself
_AT_ONCE = 64  # small messages taken at once

#: Buffers, with the sizes of the messages in each. Messages are concatenated.
Batch = list[tuple[bytes | Bytes, list[int]]]


def take(receiver: Receiver[Any], messages: int, nbytes: int, max_small: int) -> tuple[list[Frame], Exception | None]:
    """Takes messages for one call, without waiting, until it has `messages` of them or `nbytes` bytes.

    Also returns the error of the next message, as `get_nowait` raises it, except Empty. A channel raises it only once,
    so the caller has to act on it. `max_small` limits the bytes of small messages.
    """
    taken: list[Frame] = []
    size = small = 0
    while len(taken) < messages and size < nbytes and small < max_small:
        at_once = _AT_ONCE if taken and taken[-1].nbytes < _SMALL else 1
        try:
            frames = receiver.take_frames(min(messages - len(taken), at_once), 0.0)
        except queue.Empty:
            break
        except Exception as error:
            return taken, error
        taken += frames
        size += sum(frame.nbytes for frame in frames)
        small += sum(frame.nbytes for frame in frames if frame.nbytes < _SMALL)
    return taken, None


def join(frames: Iterable[Any]) -> Batch:
    """Packs frames for one call: small messages are concatenated, and large ones are views."""
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
        if together + size > TOGETHER:
            end_small()
        together = together + size if small else size
        small.append(frame)
        sizes.append(size)
    end_small()
    return batch


def split(batch: Batch) -> Iterator[memoryview]:
    """Yields the frames that were passed to `join`."""
    for buffer, sizes in batch:
        memory: Any = buffer
        view, at = memoryview(memory), 0
        for size in sizes:
            yield view[at : at + size]
            at += size
