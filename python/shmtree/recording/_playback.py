"""Playback of recordings into a channel."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterable
from typing import Any

from .._ipc.channel import Sender
from .._ipc.pairs import create_pair, open_sender
from ..recording import RecordedMessage, Recording

_SLICE_S = 0.1  # interval of checks for a stop during waits
_CAPACITY = 8

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
