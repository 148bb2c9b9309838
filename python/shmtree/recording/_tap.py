"""Sources of a recording, which observe channels and write down the messages that are put."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence

from .. import _core
from .._ipc.broadcast import Broadcast, Subscriber
from .._ipc.latest import Latest
from .._process.names import BROADCAST, CHANNEL, KINDS, LATEST, QUEUE, open_name
from ..errors import ChannelClosed, CorruptMessage, OutOfSharedMemory, PeerDied
from ._mcap import Writer

_PAUSE_S = 0.001  # interval of checks that find nothing
_SUBSCRIBE_S = 2.0  # limit of the wait for memory, or for the lock of a stopped process
_MAX_HELD, _MAX_BYTES = 64, 1 << 20  # maximum number of frames that are held at once, and of their bytes


class Watched:
    """Base of the classes that observe a channel."""

    name: str
    missed = 0  #: number of messages that were put and that it has missed
    is_over = False

    def look(self) -> bool:
        """Reads new messages. Returns False if there were none. Sets `is_over` at the end of the stream."""
        raise NotImplementedError

    def stop(self) -> None:
        """Ignores messages that are put from now on. Earlier ones will still be read."""
        self.is_over = True

    def close(self) -> None: ...


class Source(Watched):
    """Base of objects that write down the messages of one channel."""

    def __init__(self, writer: Writer, name: str, kind: int) -> None:
        self.name = name
        self.messages = 0  #: number of messages in the recording
        self._writer = writer
        self._number = writer.add_channel(name, KINDS[kind])

    def close(self) -> None:
        self._writer.note_missed(self.name, self.missed)


class Tap(Source):
    """Observes a pair or a queue. It takes no messages, and no process waits for it.

    Each put leaves a note of its message for the tap while there is space for notes; without space, the message is
    missed.
    """

    def __init__(self, writer: Writer, name: str, known: _core.Name) -> None:
        self._tap = _core.Tap(_core.Channel.open(known.arena, known.block))
        self._since_epoch_ns = time.time_ns() - time.monotonic_ns()
        super().__init__(writer, name, known.kind)

    def look(self) -> bool:
        seen = self._tap.take(_MAX_HELD)
        count = len(seen)
        try:
            since = self._since_epoch_ns
            self._writer.write(self._number, [(since + at, ticket, frame) for at, ticket, frame in seen])
            self.messages += count
        finally:
            del seen
            self._tap.release()
        self.is_over = self._tap.is_over
        return count != 0

    def stop(self) -> None:
        self._tap.stop()

    def close(self) -> None:
        self._tap.close()
        self.missed = self._tap.missed
        super().close()


class Reader(Source):
    """Reads a Latest, or a Broadcast as a subscriber that no put waits for.

    It begins with the next message of a Broadcast, or with the newest version of a Latest. The time of a message is the
    time at which it was read.
    """

    def __init__(self, writer: Writer, name: str, known: _core.Name) -> None:
        self._left: int | None = None  # number of messages to read after `stop`
        self._last = 0  # version that was read last
        self._end: Latest | Subscriber
        if known.kind == LATEST:
            self._end = Latest._opened(known.arena, known.block, known, True)
            self._last = max(self._end.version - 1, 0)
        else:
            with Broadcast._opened(known.arena, known.block, known, True) as broadcast:
                self._end = broadcast.subscribe(on_lag="skip", timeout=_SUBSCRIBE_S)
        super().__init__(writer, name, known.kind)

    def _get(self) -> tuple[int, bytes]:
        if not isinstance(self._end, Latest):
            return self._end._get_frame()
        version, frame = self._end._get_frame(self._last)
        self.missed += version - self._last - 1
        self._last = version
        return version, frame

    def look(self) -> bool:
        got, nbytes = list[tuple[int, int, bytes]](), 0
        try:
            while len(got) < (_MAX_HELD if self._left is None else self._left) and nbytes < _MAX_BYTES:
                number, frame = self._get()
                got.append((time.time_ns(), number, frame))
                nbytes += len(frame)
        except queue.Empty:
            self.is_over = self._left is not None
        except CorruptMessage:
            self.missed += 1
            self._last = self._end.version if isinstance(self._end, Latest) else 0
        except (ChannelClosed, PeerDied):
            self.is_over = True
        self._writer.write(self._number, got)
        self.messages += len(got)
        if self._left is not None:
            self._left -= len(got)
            self.is_over = self.is_over or self._left <= 0
        return bool(got)

    def stop(self) -> None:
        self._left = self._end.version - self._last if isinstance(self._end, Latest) else self._end.qsize()

    def close(self) -> None:
        if not isinstance(self._end, Latest):
            self.missed += self._end.missed
        self._end.close()
        super().close()


def open_source(writer: Writer, name: str) -> Source:
    """Returns a source for the channel of that name. Raises ValueError if the name belongs to anything else."""
    known = open_name(name)
    if known.kind not in (CHANNEL, QUEUE, BROADCAST, LATEST):
        raise ValueError(f'"{name}" is the name of {known.kind_in_sentence}, not of a channel')
    return (Tap if known.kind in (CHANNEL, QUEUE) else Reader)(writer, name, known)


def watch(channels: Sequence[Watched], should_stop: Callable[[], bool]) -> None:
    """Polls the channels until each has ended, or until `should_stop` returns True and all earlier messages are
    read."""
    stopped = False
    while not all(each.is_over for each in channels):
        if not stopped and should_stop():
            stopped = True
            for each in channels:
                each.stop()
        any_seen = [each.look() for each in channels if not each.is_over]
        if not any(any_seen):
            time.sleep(_PAUSE_S)


def record(
    writer: Writer,
    names: Sequence[str],
    ready: Callable[[], None],
    should_stop: Callable[[], bool],
    source: Callable[[Writer, str], Source] = open_source,
    skip: Callable[[str, Exception], None] | None = None,
) -> list[Source]:
    """Records until each channel has ended, or `should_stop` returns True. Returns the sources, which are closed.

    Messages put before that are still written. Calls `ready` once all channels are observed. If the arena of a channel
    has no memory for the recording, calls `skip` with the channel's name and the error, and records the others.
    """
    sources: list[Source] = []
    try:
        for name in names:
            try:
                sources.append(source(writer, name))
            except (OutOfSharedMemory, queue.Full) as error:
                if skip is None or (not sources and name == names[-1]):
                    raise
                skip(name, error)
        writer.begin()
        ready()
        watch(sources, should_stop)
    finally:
        for each in sources:
            each.close()
    return sources
