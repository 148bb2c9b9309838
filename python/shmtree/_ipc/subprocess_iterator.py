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
from functools import partial
from multiprocessing import connection, util
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from types import FrameType
from typing import Any, Generic, TypeVar

from ..errors import AT_A_PROMPT, ChannelClosed, PeerDied
from .arena import Arena
from .channel import Receiver, Sender
from .pairs import create_pair

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
    if not callable(fn):
        raise TypeError(f"fn is {fn!r}; it must be a function that makes an iterable, such as a generator function")
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
        self._process: Any = context.Process(target=_produce, args=(sender, _Call(fn, args)))  # type: ignore[attr-defined]
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
        except (ChannelClosed, PeerDied) as error:
            if self._receiver.closed:  # by another thread
                raise StopIteration from None
            self._raise_if_it_never_began(error)
            self.close()
            raise
        if type(item) is not _Over:
            found: T = item
            return found
        self._process.join(_LAST_STEPS_S)
        self.close()
        item.raise_error()
        raise StopIteration

    def _raise_if_it_never_began(self, error: Exception) -> None:
        """An exception that ended the process in code that is not ours, such as the import of the main module."""
        if self._receiver.stats()["put"] > 0:
            return
        self._process.join(_LAST_STEPS_S)
        status = self._process.exitcode
        if status is None or status <= 0:  # it lives, or was killed
            return
        self.close()
        raise RuntimeError(
            f"the subprocess ended with exit code {status} before it made an item; what it printed says why. It "
            "imports the main module, unless it was forked: what that runs has to be under `if __name__ == '__main__':`"
        ) from error

    def close(self) -> None:
        """Ends the process. Items that were received stay valid."""
        self._end()

    def __enter__(self) -> SubprocessIterator[T]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _end_process(receiver: Receiver, process: Any) -> None:
    receiver.close()
    for ask in (process.terminate, process.kill):
        if process.is_alive():
            ask()
            process.join(_LAST_STEPS_S)


class _Call:
    """What is iterated over. What goes wrong as it is loaded in the process is reported like what goes wrong in it."""

    def __init__(self, fn: Callable[..., Iterable[Any]], args: tuple[Any, ...]) -> None:
        self._fn = fn
        self._args = args

    def __call__(self) -> Iterable[Any]:
        return self._fn(*self._args)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (_load_and_call, bytes(ForkingPickler.dumps((self._fn, self._args))))


def _load_and_call(pickled: bytes) -> Any:
    try:
        fn, args = pickle.loads(pickled)
    except AttributeError as error:
        if "'__main__'" not in str(error):
            raise
        raise AttributeError(f"{error}. {AT_A_PROMPT}") from error
    return fn(*args)


@dataclass
class _Over:
    """The last message: there are no more items, perhaps because of an error."""

    error: bytes | None = None  # pickled
    name: str = ""
    trace: str = ""

    @classmethod
    def because_of(cls, error: BaseException) -> _Over:
        trace = "".join(traceback.format_exception(error))
        name = _describe(error)
        if not isinstance(error, Exception) or isinstance(error, StopIteration):  # those would end the loop or program
            error = RuntimeError(f"the subprocess ended with {name}")
        try:
            return cls(pickle.dumps(error), name, trace)
        except Exception:  # whatever a class of the user's raises
            return cls(pickle.dumps(RuntimeError(name)), name, trace)

    def raise_error(self) -> None:
        if self.error is None:
            return
        error: Any = None
        with contextlib.suppress(Exception, SystemExit):  # the same
            error = pickle.loads(self.error)
        if not isinstance(error, Exception):
            error = RuntimeError(f"the subprocess raised something that does not load here, {self.name}")
        raise error from RemoteTraceback(self.trace)


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__qualname__}: {error}"
    except Exception:  # the same
        return type(error).__qualname__


class RemoteTraceback(Exception):
    """The traceback of an exception in another process, as text."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class _Terminated(BaseException):
    """SIGTERM, so that ``finally`` clauses run."""


def _produce(sender: Sender, call: Callable[[], Iterable[Any]]) -> None:
    """All that the subprocess does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the loop, with which this process ends
    try:
        signal.signal(signal.SIGTERM, _raise_terminated)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        with contextlib.suppress(_Nobody):
            _put_all(sender, call)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # all that may be left is a thread that does not end
    except _Terminated:  # without a goodbye: for whoever receives, this process was killed
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


class _Nobody(Exception):
    """Nobody is left who receives."""


def _put_all(sender: Sender, call: Callable[[], Iterable[Any]]) -> None:
    try:
        for item in call():
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
