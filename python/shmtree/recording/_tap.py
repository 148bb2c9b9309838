"""Taps, which observe channels and write down the messages that are put."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from .. import _core
from .._process.names import CHANNEL, QUEUE, in_sentence, open_name
from ._mcap import Writer

_PAUSE_S = 0.001  # interval of checks of a tap that finds nothing
_MAX_HELD = 64  # frames that are held at once


class Recorded(NamedTuple):
    """Result of the recording of one channel."""

    name: str
    messages: int
    missed: int  #: messages that were put meanwhile and are not in the recording


class Source(Protocol):
    """An object that writes down the messages of one channel."""

    @property
    def is_over(self) -> bool: ...
    def look(self) -> bool:
        """Writes down messages. Returns False if there were none. Sets `is_over` at the end of the stream."""

    def stop(self) -> None:
        """Ignores messages that are put from now on. Earlier ones will still be written down."""

    def close(self) -> Recorded: ...


class Tap:
    """Observes a named channel or queue. It takes no messages, and no process waits for it.

    Each put leaves a note of its message for the tap while there is space for notes; without space, the message is
    missed.
    """

    def __init__(self, writer: Writer, name: str) -> None:
        self._known = open_name(name)  # holds the name, and is attached to no end
        if self._known.kind not in (CHANNEL, QUEUE):
            raise ValueError(f'"{name}" is the name of {in_sentence(self._known.kind)}, not of a channel')
        self._tap = _core.Tap(_core.Channel.open(self._known.arena, self._known.block))
        self._writer = writer
        self._name = name
        self._number = writer.add_channel(name)
        self._since_epoch_ns = time.time_ns() - time.monotonic_ns()
        self._messages = 0
        self.is_over = False

    def look(self) -> bool:
        seen = self._tap.take(_MAX_HELD)
        count = len(seen)
        try:
            since = self._since_epoch_ns
            self._writer.write(self._number, [(since + at, ticket, frame) for at, ticket, frame in seen])
            self._messages += count
        finally:
            del seen
            self._tap.release()
        self.is_over = self._tap.is_over
        return count != 0

    def stop(self) -> None:
        self._tap.stop()

    def close(self) -> Recorded:
        self._tap.close()
        recorded = Recorded(self._name, self._messages, self._tap.missed)
        self._writer.note_missed(self._name, recorded.missed)
        return recorded


def record(
    writer: Writer,
    names: Sequence[str],
    ready: Callable[[], None],
    should_stop: Callable[[], bool],
    source: Callable[[Writer, str], Source] = Tap,
) -> list[Recorded]:
    """Records until each channel has ended, or `should_stop` returns True.

    Messages put before that are still written.

    Calls `ready` once all channels are observed.
    """
    taps: list[Source] = []
    try:
        for name in names:
            taps.append(source(writer, name))
        writer.begin()
        ready()
        stopped = False
        while not all(tap.is_over for tap in taps):
            if not stopped and should_stop():
                stopped = True
                for tap in taps:
                    tap.stop()
            any_seen = [tap.look() for tap in taps if not tap.is_over]
            if not any(any_seen):
                time.sleep(_PAUSE_S)
    finally:
        recorded = [tap.close() for tap in taps]
    return recorded
