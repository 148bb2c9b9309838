"""Iteration over what another process makes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import connection, util
from multiprocessing.context import BaseContext
from types import FrameType, TracebackType
from typing import Any, Generic, TypeVar

from ._arena import Arena, create_pair
from ._channel import Receiver, Sender
from .errors import ChannelClosed, PeerDied

T = TypeVar("T")

# Given to a worker that has made its last item, and to one that was told to end, before it is made to.
_LAST_STEPS_S = 5.0


def iterate_in_subprocess(
    fn: Callable[..., Iterable[T]],
    *args: Any,
    capacity: int | None = 8,
    context: str | BaseContext = "spawn",
    arena: Arena | None = None,
) -> SubprocessIterator[T]:
    """Iterates over ``fn(*args)``, which is called, and iterated over, in a new process.

        for batch in shmtree.iterate_in_subprocess(load_batches, "train", capacity=4):
            ...

    Items come as from `Receiver.get`: large arrays are views. What the process raises is raised here, with its
    traceback as the cause; PeerDied when it was killed. The process ends with the loop: when all was made, and when
    the iterator is closed or dropped, as a loop does that is left. It ends when this process dies, too.

    Args:
        fn: for spawn and forkserver something that can be pickled, as for `multiprocessing.Process`.
        args: what it is called with.
        capacity: items made and not yet received before the process waits; None or 0 is unlimited.
        context: start method or context of multiprocessing.
        arena: where the items lie, as for `create_pair`.
    """
    if isinstance(context, str):
        context = multiprocessing.get_context(context)
    return SubprocessIterator(fn, args, capacity, context, arena)


class SubprocessIterator(Generic[T]):
    """What `iterate_in_subprocess` returns: an iterator, and a context manager that closes it."""

    def __init__(
        self,
        fn: Callable[..., Iterable[T]],
        args: tuple[Any, ...],
        capacity: int | None,
        context: BaseContext,
        arena: Arena | None,
    ) -> None:
        sender, self._receiver = create_pair(capacity, arena=arena)
        self._process: Any = context.Process(target=_produce, args=(sender, fn, args))  # type: ignore[attr-defined]
        self._process.start()
        sender.close()
        # Also before multiprocessing waits for its children at this process's exit.
        self._end = util.Finalize(self, _end_process, (self._receiver, self._process), exitpriority=10)

    @property
    def pid(self) -> int:
        """Of the process; it may have ended."""
        pid: int = self._process.pid
        return pid

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._receiver.closed:
            raise StopIteration
        try:
            item = self._receiver.get()
        except (ChannelClosed, PeerDied):
            was_closed = self._receiver.closed  # by another thread
            self.close()
            if was_closed:
                raise StopIteration from None
            raise
        if type(item) is not _Over:
            found: T = item
            return found
        self._process.join(_LAST_STEPS_S)
        self.close()
        item.raise_error()
        raise StopIteration

    def close(self) -> None:
        """Ends the process. Items that were received stay valid."""
        self._end()

    def __enter__(self) -> SubprocessIterator[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _end_process(receiver: Receiver, process: Any) -> None:
    receiver.close()
    for ask in (process.terminate, process.kill):
        if process.is_alive():
            ask()
            process.join(_LAST_STEPS_S)


@dataclass
class _Over:
    """The last message: there are no more items, perhaps because of an error."""

    error: bytes | None = None  # pickled
    trace: str = ""

    @classmethod
    def because_of(cls, error: BaseException) -> _Over:
        trace = "".join(traceback.format_exception(error))
        if not isinstance(error, Exception) or isinstance(error, StopIteration):  # those would end the loop or program
            error = RuntimeError(f"the subprocess ended with {error!r}")
        try:
            return cls(pickle.dumps(error), trace)
        except Exception:  # whatever a class of the user's raises
            return cls(pickle.dumps(RuntimeError(f"{type(error).__qualname__}: {error}")), trace)

    def raise_error(self) -> None:
        if self.error is None:
            return
        error: Any = None
        with contextlib.suppress(Exception, SystemExit):  # the same
            error = pickle.loads(self.error)
        if not isinstance(error, Exception):
            error = RuntimeError(f"the subprocess raised something that does not load here:\n{self.trace}")
        raise error from RemoteTraceback(self.trace)


class RemoteTraceback(Exception):
    """The traceback of an exception in another process, as text."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class _Terminated(BaseException):
    """SIGTERM, so that ``finally`` clauses run."""


def _produce(sender: Sender, fn: Callable[..., Iterable[Any]], args: tuple[Any, ...]) -> None:
    """All that the subprocess does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the loop, with which this process ends
    try:
        signal.signal(signal.SIGTERM, _raise_terminated)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        with contextlib.suppress(_Nobody):
            _put_all(sender, fn, args)
    except _Terminated:  # without a goodbye: for whoever receives, this process was killed
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


class _Nobody(Exception):
    """Nobody is left who receives."""


def _put_all(sender: Sender, fn: Callable[..., Iterable[Any]], args: tuple[Any, ...]) -> None:
    try:
        for item in fn(*args):
            _put(sender, item)
        over = _Over()
    except (_Nobody, _Terminated):
        raise
    except BaseException as error:
        over = _Over.because_of(error)
    _put(sender, over)


def _put(sender: Sender, item: Any) -> None:
    try:
        sender.put(item)
    except (ChannelClosed, PeerDied):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Nobody from None


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is cleaning up now is not to be interrupted
    raise _Terminated


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_LAST_STEPS_S)
    os.kill(os.getpid(), signal.SIGKILL)
