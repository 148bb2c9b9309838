"""Recording without loss: receives from one channel, writes to the file, and puts into another channel."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable

from .._codec.frames import Frame
from .._ipc.pairs import open_receiver
from .._process.names import CHANNEL
from ..errors import ChannelClosed, CorruptMessage, PeerDied
from ._mcap import Writer
from ._playback import Player
from ._tap import Source

_SLICE_S = 0.1  # interval of checks for a stop during waits
_MAX_HELD = 64  # maximum number of frames that are held at once


class Relay(Source):
    """Passes all messages of a named channel to another one. It makes that channel if there is none.

    A message is acked once it is in the file and in the other channel. If this process is killed, its unacked messages
    return to the first channel, and are written again; one message may be in the other channel twice. The stream of the
    other channel ends with that of the first one.

    If it made the other channel, `close` waits until all messages are received, or `should_leave` returns True.
    """

    def __init__(self, writer: Writer, name: str, *, to: str, should_leave: Callable[[], bool]) -> None:
        self._receiver = open_receiver(name, allow_pickle=True)
        self._player = Player(to)
        self._should_leave = should_leave
        self._taken: list[Frame] = []  # written to the file, and not passed on yet
        super().__init__(writer, name, CHANNEL)

    def look(self) -> bool:
        """Passes on messages while there is space; waits only briefly. Returns False if there was nothing to do."""
        if not self._taken:
            self._take()
        while self._taken:
            try:
                self._player.put_frame(self._taken[0])
            except queue.Full:
                return True
            self._taken.pop(0).ack()
            self.messages += 1
        return not self.is_over

    def _take(self) -> None:
        try:
            taken = self._receiver.take_frames(_MAX_HELD, timeout=_SLICE_S)
            now_ns = time.time_ns()
            self._writer.write(self._number, [(now_ns, frame.ticket or 0, frame) for frame in taken])
            self._taken = taken
        except queue.Empty:
            pass
        except CorruptMessage:
            self.missed += 1
        except (ChannelClosed, PeerDied):
            self.is_over = True

    def close(self) -> None:
        for frame in self._taken:
            with contextlib.suppress(ChannelClosed):
                frame.nack()
        self._receiver.close()
        self._player.close(self._should_leave)
        super().close()
