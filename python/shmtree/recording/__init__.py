"""Recordings of channels: MCAP files, which ``python -m shmtree record`` makes, mapped and read.

for message in Recording("run.mcap"):
    print(message.channel, message.time_ns, message.load()["obs"])
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from .._core import MappedRecording, unpack

__all__ = ["RecordedMessage", "Recording"]


class RecordedMessage(NamedTuple):
    """A message of a recording."""

    channel: str  #: the name of the channel that it was put into
    time_ns: int  #: when it was put: nanoseconds since the epoch
    sequence: int  #: the low 32 bits of its ticket, which counts the puts of its channel
    frame: memoryview  #: the message as `unpack` takes it, where it lies in the mapped file

    def load(self, *, copy: bool | None = None, allow_pickle: bool = False) -> Any:
        """The object, as of `unpack`: large arrays are read-only views of the file, which stays mapped for them."""
        return unpack(self.frame, copy=copy, allow_pickle=allow_pickle)


def _without_waiting(path: str, flags: int) -> int:
    """As of a named pipe that nobody writes to."""
    return os.open(path, flags | os.O_NONBLOCK)


class Recording:
    """A recording, whose messages come in the order in which they were written. Any number of threads may read.

    Args:
        path: of the file. It may be one that is still written, or that was cut off: there is what was whole when this
            object was made.

    Raises:
        CorruptMessage: it is no recording of ours, or was altered.
        OSError: it cannot be read, or is no regular file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        with open(path, "rb", buffering=0, opener=_without_waiting) as file:
            self._file = MappedRecording(file.fileno(), os.fsencode(path))

    @property
    def path(self) -> str:
        return self._path

    @property
    def channels(self) -> dict[str, int]:
        """How many messages there are of each channel, by its name."""
        return self._file.channels

    @property
    def missed(self) -> dict[str, int]:
        """How many were put and are not here, by the channel; known of a recording that was ended in order."""
        return self._file.missed

    @property
    def whole(self) -> bool:
        """Whether it was ended in order, and has not been cut off since."""
        return self._file.whole

    def __len__(self) -> int:
        return len(self._file)

    def __iter__(self) -> Iterator[RecordedMessage]:
        return (RecordedMessage(*entry) for entry in self._file)
