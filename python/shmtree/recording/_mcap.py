"""Writer of recordings: MCAP files (https://mcap.dev/spec) without chunks, so that frames are stored unchanged.

Every frame begins at a multiple of 64, so that its arrays can be used in the mapped file. Before a message, a record of
a private opcode, which readers skip, fills the gap. A file that was cut off at any byte has complete records up to the
cut, and can be read up to there. The summary at the end is for other tools. The extension reads the files
(src/recording).
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Sequence
from typing import Any

from .._codec import whole_files
from .._core import VERSION, CheckedFd

MAGIC = b"\x89MCAP0\r\n"
HEADER, FOOTER, CHANNEL, MESSAGE = 0x01, 0x02, 0x04, 0x05
STATISTICS, METADATA, METADATA_INDEX, DATA_END = 0x0B, 0x0C, 0x0D, 0x0F
PADDING = 0x80  # first opcode that the format reserves for private use
PROFILE = ENCODING = "shmtree"
MISSED = "shmtree.missed"  # name of the metadata with the number of messages of each channel that were missed

ALIGNMENT = 64
_PREFIX = struct.Struct("<BQ")  # of every record: opcode, number of following bytes
_MESSAGE = struct.Struct("<BQHIQQ")  # prefix, channel, sequence, log time, publish time; the frame follows
_STATISTICS = struct.Struct("<QHIIIIQQI")  # followed by the number of messages for each channel
_FOOTER = struct.Struct("<BQQQI")
_PRIVATE = 0o600  # mode of a new file
_MAX_PARTS = 1000  # of one writev; the system's limit is 1,024
_MAX_CHANNELS = 0xFFFF


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<I", len(encoded)) + encoded


def _map(values: dict[str, str]) -> bytes:
    pairs = b"".join(_text(key) + _text(value) for key, value in values.items())
    return struct.pack("<I", len(pairs)) + pairs


def _record(opcode: int, content: bytes) -> bytes:
    return _PREFIX.pack(opcode, len(content)) + content


def _padding(offset: int) -> bytes:
    """Returns the record between `offset` and the next message that makes its frame begin at a multiple of 64."""
    missing = -(offset + _MESSAGE.size) % ALIGNMENT
    if missing == 0:
        return b""
    if missing < _PREFIX.size:
        missing += ALIGNMENT
    return _record(PADDING, bytes(missing - _PREFIX.size))


class Writer:
    """Writes a new recording, which only its user may read.

    It replaces a file of that name, and keeps its mode; readers of the old file keep it.

    `begin` makes the file, with the channels added so far; else the first message does. A caller that fails before that
    has replaced nothing. A system error, such as a full disk, is an OSError: what was written before it stays, and can
    be read. Any number of threads may write, one at a time.
    """

    def __init__(self, path: whole_files.AnyPath) -> None:
        self.path = os.fsdecode(path)
        self.messages = 0
        self._channels: dict[str, int] = {}  # by name, from 0
        self._counts: list[int] = []
        self._records: list[bytes] = []  # records of the channels
        self._missed: dict[str, int] = {}
        self._first_ns = self._last_ns = 0
        self._offset = 0
        self._file: CheckedFd | None = None
        self._is_closed = False

    def begin(self) -> None:
        """Makes the file with the header, which replaces an old one."""
        if self._is_closed:
            raise ValueError("the recording is closed")
        header = [MAGIC, _record(HEADER, _text(PROFILE) + _text(f"shmtree {VERSION}")), *self._records]
        with whole_files.NewFile(self.path, _PRIVATE) as new:
            self._file = CheckedFd(os.dup(new.fd))
            try:
                self._append(header)
                new.publish()
            finally:
                self._close_file()
            self._file = CheckedFd(os.dup(new.fd))  # another file if it was copied into the old one

    @property
    def nbytes(self) -> int:
        """Bytes of the file so far."""
        return self._offset

    def add_channel(self, name: str) -> int:
        """Returns the number of a channel for `write`. Raises ValueError for more than 65,535 channels."""
        if name in self._channels:
            return self._channels[name]
        number = len(self._channels)
        if number == _MAX_CHANNELS:
            raise ValueError(f"a recording cannot have more than {_MAX_CHANNELS} channels")
        no_schema = 0
        content = struct.pack("<HH", number, no_schema) + _text(name) + _text(ENCODING) + _map({})
        record = _record(CHANNEL, content)
        if self._file is not None:
            self._append([record])
        self._channels[name] = number
        self._counts.append(0)
        self._records.append(record)
        return number

    def write(self, channel: int, messages: Sequence[tuple[int, int, Any]]) -> None:
        """Appends messages of one channel: (nanoseconds since the epoch, ticket, buffer of the frame) of each.

        After an error, the file has the messages for which there was space.
        """
        for first in range(0, len(messages), _MAX_PARTS // 2):
            some = messages[first : first + _MAX_PARTS // 2]
            try:
                self._write(channel, some)
            except OSError:
                for each in some:
                    self._write(channel, [each])

    def _write(self, channel: int, messages: Sequence[tuple[int, int, Any]]) -> None:
        if self._file is None:
            self.begin()
        parts: list[Any] = []
        offset = self._offset
        for time_ns, ticket, frame in messages:
            padding = _padding(offset)
            nbytes = memoryview(frame).nbytes
            content = _MESSAGE.size - _PREFIX.size + nbytes
            head = _MESSAGE.pack(MESSAGE, content, channel, ticket & 0xFFFFFFFF, time_ns, time_ns)
            parts += (padding + head, frame)
            offset += len(padding) + _MESSAGE.size + nbytes
        self._append(parts)
        times = [time_ns for time_ns, _, _ in messages]
        self._first_ns = min(self._first_ns, *times) if self.messages else min(times)
        self._last_ns = max(self._last_ns, *times)
        self.messages += len(messages)
        self._counts[channel] += len(messages)

    def note_missed(self, name: str, count: int) -> None:
        """Records that `count` messages of that channel are not in the recording."""
        self._missed[name] = count

    def close(self, *, in_order: bool = True) -> None:
        """Closes the file. If `in_order`, writes the summary, which tells readers that the file is complete."""
        self._is_closed = True
        if self._file is None:
            return
        try:
            if in_order:
                self._end()
        finally:
            self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _number(self) -> int:
        assert self._file is not None
        return self._file.number(f"cannot write {self.path!r}")

    def _end(self) -> None:
        index = b""
        if any(self._missed.values()):
            missed = {name: str(count) for name, count in self._missed.items() if count}
            metadata = _record(METADATA, _text(MISSED) + _map(missed))
            index = _record(METADATA_INDEX, struct.pack("<QQ", self._offset, len(metadata)) + _text(MISSED))
            self._append([metadata])
        no_crc = 0
        self._append([_record(DATA_END, struct.pack("<I", no_crc))])
        counts = b"".join(struct.pack("<HQ", number, count) for number, count in enumerate(self._counts))
        statistics = _STATISTICS.pack(
            self.messages, 0, len(self._counts), 0, 1 if index else 0, 0, self._first_ns, self._last_ns, len(counts)
        )
        summary = b"".join(self._records) + _record(STATISTICS, statistics + counts) + index
        footer = _FOOTER.pack(FOOTER, _FOOTER.size - _PREFIX.size, self._offset, 0, no_crc)
        self._append([summary, footer, MAGIC])

    def _append(self, parts: list[Any]) -> None:
        """Writes all parts. If that fails, cuts off what was written of them."""
        left = [memoryview(part).cast("B") for part in parts if len(part)]
        written = 0
        try:
            while left:
                count = os.writev(self._number(), left[:_MAX_PARTS])
                written += count
                whole = 0
                while whole < len(left) and count >= left[whole].nbytes:
                    count -= left[whole].nbytes
                    whole += 1
                del left[:whole]
                if count:
                    left[0] = left[0][count:]
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._number(), self._offset)
                os.lseek(self._number(), self._offset, os.SEEK_SET)
            if isinstance(error, OSError):
                raise OSError(error.errno, error.strerror, self.path) from None
            raise
        self._offset += written

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(in_order=kind is None)
