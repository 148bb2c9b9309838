"""Playback of recordings into a channel, and export for other tools."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import queue
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, TextIO

import numpy as np

from .._ipc.channel import Sender
from .._ipc.pairs import create_pair, open_sender
from ..errors import Error
from ..recording import RecordedMessage, Recording

_SLICE_S = 0.1  # interval of checks for a stop during waits
_CAPACITY = 8
_LEVELS = 200  # nesting limit of an exported value
_GROUP = 1024  # rows of a Parquet file that are converted at once

Stop = Callable[[], bool]


def messages_of(recording: Recording, channel: str | None) -> list[RecordedMessage]:
    """Returns the messages of one channel, or of all, in the order of their puts. ValueError: no such channel."""
    if channel is not None and channel not in recording.channels:
        known = ", ".join(map(repr, recording.channels)) or "none"
        raise ValueError(f"{recording.path!r} has no channel {channel!r}; it has {known}")
    return sorted((each for each in recording if channel in (None, each.channel)), key=lambda each: each.time_ns)


class Player:
    """Puts recorded messages into a named channel, which it makes if there is none.

    If it makes the channel, this process stays attached as a receiver until the last message was received, so a
    receiver may come at any time.
    """

    def __init__(self, name: str) -> None:
        self.put = 0  # number of messages put so far
        self._receiver: Any = None
        try:
            self.sender: Sender = open_sender(name, allow_pickle=True)
        except FileNotFoundError:
            self.sender, self._receiver = create_pair(_CAPACITY, name=name, allow_pickle=True)

    def play(self, messages: Iterable[RecordedMessage], rate: float, should_stop: Stop) -> None:
        """Puts the messages with the recorded pauses divided by `rate`; 0: without pauses."""
        begin, first = time.monotonic(), 0
        for message in messages:
            first = first or message.time_ns
            due = begin + (message.time_ns - first) / 1e9 / rate if rate else 0.0
            while (left := due - time.monotonic()) > 0 and not should_stop():
                time.sleep(min(left, _SLICE_S))
            if not self._put(message, should_stop):
                break
            self.put += 1

    def _put(self, message: RecordedMessage, should_stop: Stop) -> bool:
        while not should_stop():
            with contextlib.suppress(queue.Full):
                self.sender.put_frame(message.frame, timeout=_SLICE_S)
                return True
        return False

    def close(self, should_stop: Stop) -> None:
        """Closes the sender. If this object made the channel, first waits until all messages are received."""
        while self._receiver is not None and self._receiver.qsize() and not should_stop():
            time.sleep(_SLICE_S / 10)
        self.sender.close()
        if self._receiver is not None:
            self._receiver.close()


# --- For other tools


def plain(value: Any, levels: int = _LEVELS) -> Any:
    """Returns the value in types that JSON and Parquet have: arrays as nested lists, unknown types as texts.

    Raises ValueError for a value that is nested over more than `levels` levels, so also for one that contains itself.
    """
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if levels == 0:
        raise ValueError(f"the value contains itself, or is nested deeper than {_LEVELS} levels")
    if isinstance(value, dict):
        return {str(key): plain(each, levels - 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, levels - 1) for each in value]
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufUS":
        return value.tolist()
    if hasattr(value, "detach") and hasattr(value, "tolist"):  # a tensor
        return value.detach().tolist()
    return str(value)


def _for_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _for_json(each) for key, each in value.items()}
    return [_for_json(each) for each in value] if isinstance(value, list) else value


def to_jsonl(messages: Iterable[RecordedMessage], out: TextIO, allow_pickle: bool) -> None:
    """Writes one JSON object per line: channel, time_ns, sequence, value.

    Bytes are base64; NaN and infinity are null.
    """
    for message in messages:
        with _naming(message):
            value = _for_json(plain(message.load(copy=False, allow_pickle=allow_pickle)))
            row = {"channel": message.channel, "time_ns": message.time_ns, "sequence": message.sequence, "value": value}
            line = json.dumps(row, allow_nan=False)
        out.write(line + "\n")


@contextlib.contextmanager
def _naming(message: RecordedMessage) -> Iterator[None]:
    """Adds the message to the text of an error about its value."""
    try:
        yield
    except (RecursionError, OverflowError, TypeError, ValueError) as error:
        if isinstance(error, Error):
            raise
        raise ValueError(f"message {message.sequence} of channel {message.channel!r}: {error}") from error


def _columns(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from _columns(each, f"{name}.{key}")
    else:
        yield name, value


def _row(message: RecordedMessage, allow_pickle: bool) -> dict[str, Any]:
    row = {"channel": message.channel, "time_ns": message.time_ns, "sequence": message.sequence}
    with _naming(message):
        row.update(_columns(plain(message.load(copy=False, allow_pickle=allow_pickle)), "value"))
    return row


def to_parquet(
    messages: list[RecordedMessage],
    out: BinaryIO,
    allow_pickle: bool,
    advance: Callable[[int], None] = lambda count: None,
) -> None:
    """Writes one row per message, and one column per leaf of a dict, by its path. A missing value is null.

    Reads each message twice, and calls `advance` with the number of messages after each part of them. Raises
    ValueError if the leaves of a path have no common type, or a type that Parquet lacks. Needs pyarrow.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    def groups() -> Iterator[list[dict[str, Any]]]:
        for first in range(0, len(messages), _GROUP):
            group = messages[first : first + _GROUP]
            yield [_row(message, allow_pickle) for message in group]
            advance(len(group))

    def schema_of(rows: list[dict[str, Any]]) -> Any:
        names = dict.fromkeys(name for row in rows for name in row)
        return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names}).schema

    try:
        schema = pa.unify_schemas(
            [schema_of(rows) for rows in groups()] or [pa.schema([])], promote_options="permissive"
        )
        with pq.ParquetWriter(out, schema) as writer:
            for rows in groups():
                writer.write_table(pa.Table.from_pylist(rows, schema))
    except (pa.ArrowException, OverflowError, RecursionError) as error:
        raise ValueError(f"the messages do not have the same columns: {error}") from error
