"""Recordings of channels: MCAP files that ``python -m shmtree record`` writes, mapped into memory.

Example::

    for message in Recording("run.mcap"):
        print(message.channel, message.time_ns, message.load()["obs"])
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from .._codec.whole_files import AnyPath
from .._core import MappedRecording, unpack
from .._public import claim_names, made_by

__all__ = ["RecordedMessage", "Recording"]


@made_by("iter(Recording(path))")
class RecordedMessage(NamedTuple):
    """One message of a recording."""

    channel: str  #: name of its channel
    #: time of the put, in nanoseconds since the epoch; of a Broadcast or Latest, the time at which it was read
    time_ns: int
    sequence: int  #: the low 32 bits of its ticket, which counts the puts of its channel; of a Latest, of its version
    frame: memoryview  #: the message in the mapped file, in the form that `unpack` takes

    def load(self, *, copy: bool | None = None, allow_pickle: bool = False) -> Any:
        """Returns the object, as `unpack` does. Large arrays are read-only views of the file, and keep it mapped.

        Args:
            copy: See `shmtree.unpack`.
            allow_pickle: True if pickles may be loaded.

        Raises:
            CorruptMessage: The file was altered.
            PickleRefused: The message needs pickle, and `allow_pickle` is False.
        """
        return unpack(self.frame, copy=copy, allow_pickle=allow_pickle)


def _without_waiting(path: str, flags: int) -> int:
    """Opens a file without blocking, for example on a named pipe that has no writer."""
    return os.open(path, flags | os.O_NONBLOCK)


class Recording:
    """A recording; it iterates over its messages in the order in which they were written.

    Any number of threads may read it.

    Args:
        path: Path of the file. It may be a file that is still being written, or that was cut off. The recording has the
            messages that were complete when this object was made.

    Raises:
        CorruptMessage: The file is not a recording of shmtree, or was altered.
        OSError: The file cannot be read, or is not a regular file.
    """

    def __init__(self, path: AnyPath) -> None:
        self._path = os.fsdecode(path)
        with open(path, "rb", buffering=0, opener=_without_waiting) as file:
            self._file = MappedRecording(file.fileno(), os.fsencode(path))

    @property
    def path(self) -> str:
        """Path of the file."""
        return self._path

    @property
    def channels(self) -> dict[str, int]:
        """Number of messages of each channel, by its name."""
        return self._file.channels

    def __repr__(self) -> str:
        end = "" if self.whole else ", without its end"
        return f"<Recording {self._path!r} of {len(self)} messages{end}>"

    @property
    def missed(self) -> dict[str, int]:
        """Number of messages of each channel that were put, but are not in the recording.

        Known only for a recording that was closed properly.
        """
        return self._file.missed

    @property
    def whole(self) -> bool:
        """True if the recording was closed properly, and has not been cut off since."""
        return self._file.whole

    def __len__(self) -> int:
        return len(self._file)

    def __iter__(self) -> Iterator[RecordedMessage]:
        return (RecordedMessage._make(entry) for entry in self._file)


__dir__ = claim_names(globals())
