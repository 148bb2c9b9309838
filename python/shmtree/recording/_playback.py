"""Playback of recordings into a channel."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterable
from typing import Any

from .. import _core
from .._ipc.broadcast import Broadcast
from .._ipc.latest import Latest
from .._ipc.pairs import create_pair, open_sender
from .._ipc.queue import Queue
from .._process.names import BROADCAST, CHANNEL, KINDS, LATEST, QUEUE, open_name
from ..recording import RecordedMessage, Recording

_SLICE_S = 0.1  # interval of checks for a stop during waits
_CAPACITY = 8
_CLASSES: dict[int, Any] = {QUEUE: Queue, BROADCAST: Broadcast, LATEST: Latest}

Stop = Callable[[], bool]


def messages_of(recording: Recording, channel: str | None) -> list[RecordedMessage]:
    """Returns the messages of one channel, or of all, in the order of their puts. ValueError: no such channel."""
    if channel is not None and channel not in recording.channels:
        known = ", ".join(map(repr, recording.channels)) or "none"
        raise ValueError(f"{recording.path!r} has no channel {channel!r}; it has {known}")
    return sorted((each for each in recording if channel in (None, each.channel)), key=lambda each: each.time_ns)


def kind_of(recording: Recording, channel: str | None) -> int:
    """Returns the kind of that channel, or the common kind of all channels.

    Returns CHANNEL if the kinds differ, or if an older version wrote the recording.
    """
    kinds = {recording._file.kind(each) for each in ([channel] if channel is not None else recording.channels)}
    return next((kind for kind in _CLASSES if kinds == {KINDS[kind]}), CHANNEL)


class Player:
    """Puts messages into a named pair, queue, Broadcast or Latest. If there is no object of that name, makes one of the
    given kind.

    If it makes a pair or a queue, this process stays attached until the last message was received, so a receiver may
    come at any time. If it makes a Broadcast, it waits for a subscriber before it puts the first message.
    """

    def __init__(self, name: str, kind: int = CHANNEL) -> None:
        self.put = 0  # number of messages put so far
        self._end: Any
        self._receiver: Any = None  # end of a pair or queue that this object made
        self._waits_for_subscriber = False
        try:
            kind, exists = open_name(name).kind, True
        except FileNotFoundError:
            exists = False
        cls = _CLASSES.get(kind)
        if exists:
            self._end = cls.open(name, allow_pickle=True) if cls else open_sender(name, allow_pickle=True)
        elif cls is None:
            self._end, self._receiver = create_pair(_CAPACITY, name=name, allow_pickle=True)
        else:
            self._end = cls(*(() if kind == LATEST else (_CAPACITY,)), name=name, allow_pickle=True)
            self._receiver = self._end if kind == QUEUE else None
            self._waits_for_subscriber = kind == BROADCAST

    def play(self, messages: Iterable[RecordedMessage], rate: float, should_stop: Stop) -> None:
        """Puts the messages with the recorded pauses divided by `rate`; 0: without pauses."""
        while self._waits_for_subscriber and not self._end.stats()["subscribers"] and not should_stop():
            time.sleep(_SLICE_S / 10)
        self._waits_for_subscriber = False
        begin, first = time.monotonic(), 0
        for message in messages:
            first = first or message.time_ns
            due = begin + (message.time_ns - first) / 1e9 / rate if rate else 0.0
            while (left := due - time.monotonic()) > 0 and not should_stop():
                time.sleep(min(left, _SLICE_S))
            if not self._put(message, should_stop):
                return
            self.put += 1

    def _put(self, message: RecordedMessage, should_stop: Stop) -> bool:
        while not should_stop():
            with contextlib.suppress(queue.Full):
                self.put_frame(message.frame)
                return True
        return False

    def put_frame(self, frame: Any) -> None:
        """Puts a frame. Waits only briefly, and then raises queue.Full."""
        if isinstance(self._end, Broadcast | Latest):
            put = self._end.publish if isinstance(self._end, Latest) else self._end.put
            put(_core._load_frame(frame, False, True), timeout=_SLICE_S)
        else:
            self._end.put_frame(frame, timeout=_SLICE_S)

    def close(self, should_stop: Stop) -> None:
        """Closes the channel. If this object made a pair or queue, first waits until all messages are received."""
        while self._receiver is not None and self._receiver.qsize() and not should_stop():
            time.sleep(_SLICE_S / 10)
        for end in (self._end, self._receiver):
            if end is not None:
                end.close()
