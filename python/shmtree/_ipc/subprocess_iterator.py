"""Iteration over the items that another process produces."""

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

from .._public import made_by
from ..errors import AT_A_PROMPT, ChannelClosed, PeerDied
from .arena import Arena
from .channel import Receiver, Sender
from .pairs import create_pair

T = TypeVar("T")

# Time that a worker has to exit: after its last item, and again between SIGTERM and SIGKILL.
_LAST_STEPS_S = 5.0


def iterate_in_subprocess(
    fn: Callable[..., Iterable[T]],
    *args: Any,
    capacity: int | None = 8,
    context: str | BaseContext = "spawn",
    arena: Arena | None = None,
) -> SubprocessIterator[T]:
    """Calls ``fn(*args)`` in a new process, iterates over it there, and returns an iterator over the items here.

    Items arrive as from `Receiver.get`: large arrays are views. The iterator raises the exceptions of the process, with
    its traceback as the cause. The process ends when all items are made, when the iterator is closed or dropped (for
    example because you leave the loop), and when this process dies.

    Args:
        fn: Function that returns an iterable. With spawn and forkserver it has to be picklable, as for
            `multiprocessing.Process`.
        args: Arguments of `fn`.
        capacity: Number of unreceived items at which the process blocks; None or 0 means no limit.
        context: Start method, or a context of multiprocessing.
        arena: Arena for the items; see `create_pair`.

    Returns:
        An iterator that is also a context manager. It raises PeerDied if the process was killed.

    Raises:
        TypeError: `fn` is not callable.

    Example::

        for batch in shmtree.iterate_in_subprocess(load_batches, "train", capacity=4):
            ...
    """
    if not callable(fn):
        raise TypeError(f"fn is {fn!r}; it must be a function that makes an iterable, such as a generator function")
    if isinstance(context, str):
        context = multiprocessing.get_context(context)
    return SubprocessIterator._of(fn, args, capacity, context, arena)


@made_by("shmtree.iterate_in_subprocess()")
class SubprocessIterator(Generic[T]):
    """The result of `iterate_in_subprocess`: an iterator, and a context manager that closes it."""

    _receiver: Receiver[Any]
    _process: Any
    _end: Any

    @classmethod
    def _of(
        cls,
        fn: Callable[..., Iterable[T]],
        args: tuple[Any, ...],
        capacity: int | None,
        context: BaseContext,
        arena: Arena | None,
    ) -> SubprocessIterator[T]:
        self = cls.__new__(cls)
        sender, self._receiver = create_pair(capacity, arena=arena)
        self._process = context.Process(target=_produce, args=(sender, _Call(fn, args)))  # type: ignore[attr-defined]
        self._process.start()
        sender.close()
        # This priority makes the finalizer run before multiprocessing joins its children at exit.
        self._end = util.Finalize(self, _end_process, (self._receiver, self._process), exitpriority=10)
        return self

    @property
    def pid(self) -> int:
        """Process id of the worker, which may have exited."""
        pid: int = self._process.pid
        return pid

    def __repr__(self) -> str:
        state = "closed"
        with contextlib.suppress(ChannelClosed):  # another thread may close it meanwhile
            if not self._receiver.closed:
                state = f"{self._receiver.qsize()} queued"
        return f"<SubprocessIterator of process {self.pid}, {state}>"

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._receiver.closed:
            raise StopIteration
        try:
            item = self._receiver.get()
        except (ChannelClosed, PeerDied) as error:
            if self._receiver.closed:  # closed by another thread
                raise StopIteration from None
            self._raise_if_it_never_began(error)
            self.close()
            raise
        if type(item) is not Over:
            found: T = item
            return found
        self._process.join(_LAST_STEPS_S)
        self.close()
        item.raise_error()
        raise StopIteration

    def _raise_if_it_never_began(self, error: Exception) -> None:
        """Raises RuntimeError if code other than shmtree's ended the process, such as the import of the main module."""
        if self._receiver.stats()["put"] > 0:
            return
        self._process.join(_LAST_STEPS_S)
        status = self._process.exitcode
        if status is None or status <= 0:  # it lives, or was killed
            return
        self.close()
        raise RuntimeError(
            f"the subprocess exited with code {status} before it yielded an item; see its output. Unless it is forked, "
            "it imports the main module, so code that starts processes belongs under `if __name__ == '__main__':`"
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
    """The call to iterate over. Errors while it is unpickled in the worker are reported like errors of `fn`."""

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
class Over:
    """The last message: there are no more items, perhaps because of an error."""

    error: bytes | None = None  # pickled
    name: str = ""
    trace: str = ""

    @classmethod
    def because_of(cls, error: BaseException) -> Over:
        trace = "".join(traceback.format_exception(error))
        name = _describe(error)
        if not isinstance(error, Exception) or isinstance(error, StopIteration):  # they would end the loop or program
            error = RuntimeError(f"the subprocess ended with {name}")
        try:
            return cls(pickle.dumps(error), name, trace)
        except Exception:  # pickling may run code of the user's class
            return cls(pickle.dumps(RuntimeError(name)), name, trace)

    def raise_error(self) -> None:
        if self.error is None:
            return
        error: Any = None
        with contextlib.suppress(Exception, SystemExit):  # unpickling may, too
            error = pickle.loads(self.error)
        if not isinstance(error, Exception):
            error = RuntimeError(f"the subprocess raised an exception that cannot be unpickled here: {self.name}")
        raise error from RemoteTraceback(self.trace)


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__qualname__}: {error}"
    except Exception:  # `__str__` may raise, too
        return type(error).__qualname__


class RemoteTraceback(Exception):
    """The traceback of an exception in another process, as text."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class _Terminated(BaseException):
    """Raised on SIGTERM, so that ``finally`` clauses run."""


def _produce(sender: Sender, call: Callable[[], Iterable[Any]]) -> None:
    """Main function of the subprocess."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the loop; its end stops this process
    try:
        signal.signal(signal.SIGTERM, _raise_terminated)
        threading.Thread(target=end_with_parent, daemon=True).start()
        with contextlib.suppress(_ReaderGone):
            _put_all(sender, call)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # at most a thread that does not end is left
    except _Terminated:  # no last message, so that receivers see a killed process
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


class _ReaderGone(Exception):
    """No receiver is left."""


def _put_all(sender: Sender, call: Callable[[], Iterable[Any]]) -> None:
    try:
        for item in call():
            _put(sender, item)
        over = Over()
    except (_ReaderGone, _Terminated):
        raise
    except BaseException as error:
        over = Over.because_of(error)
    _put(sender, over)


def _put(sender: Sender, item: Any) -> None:
    try:
        sender.put(item)
    except (ChannelClosed, PeerDied):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _ReaderGone from None


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # do not interrupt the cleanup that now runs
    raise _Terminated


def end_with_parent() -> None:
    """Waits for the end of the parent, and ends this process."""
    parent = multiprocessing.parent_process()
    assert parent is not None and parent.pid is not None
    ends = [parent.sentinel]
    with contextlib.suppress(OSError):  # other children of the parent may keep the sentinel open
        ends.append(os.pidfd_open(parent.pid))
    connection.wait(ends)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_LAST_STEPS_S)
    os.kill(os.getpid(), signal.SIGKILL)
