"""Writer of recordings: MCAP files (https://mcap.dev/spec) with chunks that are not compressed, and an index of them.

    magic  header  channel...  (chunk  message index...)...  metadata  data end  summary  footer  magic

    chunk     first time: 8   last time: 8   size: 8   CRC: 4   compression: 4   size: 8   (padding  message)...

Every frame begins at a multiple of 64, so that its arrays can be used in the mapped file. Before a message, a record of
a private opcode, which readers skip, fills the gap. Messages are in the file when `write` returns: the last chunk
grows, and its header is written again each time. So a file that was cut off at any byte is readable up to the last
complete record. The message indexes and the summary are for other tools. The extension reads the files
(src/recording).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
from collections.abc import Sequence
from typing import Any

from .._codec import whole_files
from .._core import VERSION, CheckedFd

MAGIC = b"\x89MCAP0\r\n"
HEADER, FOOTER, CHANNEL, MESSAGE, CHUNK, MESSAGE_INDEX, CHUNK_INDEX = 0x01, 0x02, 0x04, 0x05, 0x06, 0x07, 0x08
STATISTICS, METADATA, METADATA_INDEX, DATA_END = 0x0B, 0x0C, 0x0D, 0x0F
PADDING = 0x80  # first opcode that the format reserves for private use
PROFILE = ENCODING = "shmtree"
KIND = "kind"  # key in the metadata of a channel: its kind, such as "queue"
MISSED = "shmtree.missed"  # name of the metadata with the number of messages of each channel that were missed

ALIGNMENT = 64
_PREFIX = struct.Struct("<BQ")  # beginning of every record: opcode, number of following bytes
_MESSAGE = struct.Struct("<BQHIQQ")  # prefix, channel, sequence, log time, publish time; the frame follows
_CHUNK = struct.Struct("<BQQQQIIQ")  # prefix, first time, last time, size, CRC, compression, size; the records follow
_ENTRY = struct.Struct("<QQ")  # of a message index: time, offset in the chunk
_STATISTICS = struct.Struct("<QHIIIIQQI")  # followed by the number of messages for each channel
_FOOTER = struct.Struct("<BQQQI")
_NO_CRC = 0
_CHUNK_BYTES = 1 << 20  # a chunk ends with the message that makes it as large as this
_PRIVATE = 0o600  # mode of a new file
_MAX_PARTS = 1000  # buffers of one writev; the system's limit is 1,024
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


class _Chunk:
    """A chunk, and where its messages are."""

    def __init__(self, at: int) -> None:
        self.at = at  # offset in the file
        self.first_ns = self.last_ns = 0  # times of its messages
        self.entries: dict[int, list[tuple[int, int]]] = {}  # of each channel: (time, offset in the chunk)

    def add(self, channel: int, time_ns: int, offset: int) -> None:
        self.first_ns = min(self.first_ns, time_ns) if self.entries else time_ns
        self.last_ns = max(self.last_ns, time_ns)
        self.entries.setdefault(channel, []).append((time_ns, offset - self.at - _CHUNK.size))

    def header(self, end: int) -> bytes:
        """Returns the bytes before its records. `end`: offset in the file at which the chunk ends."""
        nbytes = end - self.at - _CHUNK.size
        length = end - self.at - _PREFIX.size
        return _CHUNK.pack(CHUNK, length, self.first_ns, self.last_ns, nbytes, _NO_CRC, 0, nbytes)

    def indexes(self, end: int) -> tuple[list[bytes], bytes]:
        """Returns the message indexes that follow the chunk at `end`, and its entry in the summary."""
        parts, offsets, at = list[bytes](), b"", end
        for channel, entries in self.entries.items():
            packed = b"".join(itertools.starmap(_ENTRY.pack, sorted(entries)))
            parts.append(_record(MESSAGE_INDEX, struct.pack("<HI", channel, len(packed)) + packed))
            offsets += struct.pack("<HQ", channel, at)
            at += len(parts[-1])
        content = struct.pack("<QQQQI", self.first_ns, self.last_ns, self.at, end - self.at, len(offsets)) + offsets
        nbytes = end - self.at - _CHUNK.size
        return parts, _record(CHUNK_INDEX, content + struct.pack("<QIQQ", at - end, 0, nbytes, nbytes))


class Writer:
    """Writes a new recording, which only its user may read.

    It replaces a file of that name, and keeps its mode; readers of the old file keep it.

    `begin` makes the file, with the channels added so far; else the first message does. If the caller fails before
    that, no file was replaced. A system error, such as a full disk, raises OSError; messages that were written earlier
    stay readable. Any number of threads may write, one at a time.
    """

    def __init__(self, path: whole_files.AnyPath) -> None:
        self.path = os.fsdecode(path)
        self.messages = 0
        self.nbytes = 0  #: bytes of the file so far
        self._channels: dict[str, int] = {}  # by name, from 0
        self._counts: list[int] = []
        self._records: list[bytes] = []  # records of the channels
        self._missed: dict[str, int] = {}
        self._chunk: _Chunk | None = None  # the chunk that grows
        self._times: list[int] = []  # of the first and last messages of the chunks
        self._chunk_indexes: list[bytes] = []
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
            self._file = CheckedFd(os.dup(new.fd))  # of the old file, if publish() has copied the bytes into it

    def add_channel(self, name: str, kind: str = "channel") -> int:
        """Returns the number of a channel for `write`. Raises ValueError for more than 65,535 channels."""
        if name in self._channels:
            return self._channels[name]
        number = len(self._channels)
        if number == _MAX_CHANNELS:
            raise ValueError(f"a recording cannot have more than {_MAX_CHANNELS} channels")
        no_schema = 0
        content = struct.pack("<HH", number, no_schema) + _text(name) + _text(ENCODING) + _map({KIND: kind})
        record = _record(CHANNEL, content)
        if self._file is not None:
            self._end_chunk()
            self._append([record])
        self._channels[name] = number
        self._counts.append(0)
        self._records.append(record)
        return number

    def write(self, channel: int, messages: Sequence[tuple[int, int, Any]]) -> None:
        """Appends messages of one channel: (nanoseconds since the epoch, ticket, buffer of the frame) of each.

        After an error, the file has the messages for which there was space.
        """
        some, nbytes = list[tuple[int, int, Any]](), 0
        for number, message in enumerate(messages, 1):
            some.append(message)
            nbytes += memoryview(message[2]).nbytes
            if nbytes < _CHUNK_BYTES and len(some) < _MAX_PARTS // 2 and number < len(messages):
                continue
            try:
                self._write(channel, some)
            except OSError:
                for each in some:
                    self._write(channel, [each])
            some, nbytes = [], 0

    def _write(self, channel: int, messages: Sequence[tuple[int, int, Any]]) -> None:
        if self._file is None:
            self.begin()
        if self._chunk is not None and self.nbytes - self._chunk.at >= _CHUNK_BYTES:
            self._end_chunk()
        chunk, parts, places, offset = self._chunk, list[Any](), list[tuple[int, int]](), self.nbytes
        if chunk is None:
            chunk = _Chunk(offset)
            parts.append(chunk.header(offset + _CHUNK.size))
            offset += _CHUNK.size
        for time_ns, ticket, frame in messages:
            padding = _padding(offset)
            nbytes = memoryview(frame).nbytes
            content = _MESSAGE.size - _PREFIX.size + nbytes
            head = _MESSAGE.pack(MESSAGE, content, channel, ticket & 0xFFFFFFFF, time_ns, time_ns)
            parts += (padding + head, frame)
            places.append((time_ns, offset + len(padding)))
            offset += len(padding) + _MESSAGE.size + nbytes
        self._append(parts)
        self._chunk = chunk
        for time_ns, at in places:
            chunk.add(channel, time_ns, at)
        self.messages += len(messages)
        self._counts[channel] += len(messages)
        with contextlib.suppress(OSError):  # the messages are in the file; the next write tries again
            os.pwrite(self._number(), chunk.header(offset), chunk.at)

    def _end_chunk(self) -> None:
        if self._chunk is not None:
            parts, index = self._chunk.indexes(self.nbytes)
            self._append(parts)
            self._chunk_indexes.append(index)
            self._times += (self._chunk.first_ns, self._chunk.last_ns)
            self._chunk = None

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
        self._end_chunk()
        index = b""
        if any(self._missed.values()):
            missed = {name: str(count) for name, count in self._missed.items() if count}
            metadata = _record(METADATA, _text(MISSED) + _map(missed))
            index = _record(METADATA_INDEX, struct.pack("<QQ", self.nbytes, len(metadata)) + _text(MISSED))
            self._append([metadata])
        self._append([_record(DATA_END, struct.pack("<I", _NO_CRC))])
        counts = b"".join(struct.pack("<HQ", number, count) for number, count in enumerate(self._counts))
        numbers = (self.messages, 0, len(self._counts), 0, 1 if index else 0, len(self._chunk_indexes))
        times = (min(self._times, default=0), max(self._times, default=0))
        statistics = _record(STATISTICS, _STATISTICS.pack(*numbers, *times, len(counts)) + counts)
        summary = b"".join((*self._records, *self._chunk_indexes, statistics, index))
        footer = _FOOTER.pack(FOOTER, _FOOTER.size - _PREFIX.size, self.nbytes, 0, _NO_CRC)
        self._append([summary, footer, MAGIC])

    def _append(self, parts: list[Any]) -> None:
        """Writes all parts. If that fails, truncates the file to its size before."""
        left = [memoryview(part).cast("B") for part in parts if len(part)]
        written = 0
        try:
            while left:
                count = os.writev(self._number(), left[:_MAX_PARTS])
                written += count
                while left and count >= left[0].nbytes:
                    count -= left.pop(0).nbytes
                if count:
                    left[0] = left[0][count:]
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._number(), self.nbytes)
                os.lseek(self._number(), self.nbytes, os.SEEK_SET)
            if isinstance(error, OSError):
                raise OSError(error.errno, error.strerror, self.path) from None
            raise
        self.nbytes += written

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(in_order=kind is None)
