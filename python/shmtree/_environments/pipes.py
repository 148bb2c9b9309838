"""Workers of vector environments: how another library's class starts them, waits for them and ends them with our pipes.

The constructors of Gymnasium and Stable-Baselines3 start their workers with the functions of a module,
`multiprocessing`. `Workers` has these functions, and `start_with` runs a constructor with a `Workers` in place of that
module. Nothing in the other library changes, and its own code does everything else.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Collection, Iterable, Iterator
from types import FunctionType
from typing import Any

from .. import multiprocessing
from .._ipc.arguments import deadline_after, left
from .._ipc.pipe import Connection
from ..errors import ChannelClosed, ConnectionLost

#: Interval at which a wait for one worker checks the others.
_SLICE_S = 0.25
#: Time that the other workers have to end by themselves after one has died.
_END_S = 5.0
#: Time that a worker has to end after SIGTERM.
_SIGTERM_S = 5.0


class Remote(Connection):
    """The connection of the main process to one worker.

    A wait for the answer of this worker also ends if another worker dies before it has answered. Otherwise it could
    wait forever, for example for a worker that waits for a semaphore which the dead one holds.
    """

    __slots__ = ("_number", "_unanswered", "_workers")

    _workers: Workers
    _number: int
    _unanswered: int

    @classmethod
    def _to_worker(cls, connection: Connection, workers: Workers) -> Remote:
        self = cls._of(connection._receiver, connection._sender)
        assert isinstance(self, Remote)
        self._workers = workers
        self._number = len(workers.remotes)
        self._unanswered = 0
        return self

    def send(self, obj: object) -> None:
        """Sends a command to the worker."""
        with self._noting_loss():
            super().send(obj)
        self._unanswered += 1

    def recv(self) -> Any:
        """Returns the answer of the worker."""
        while True:
            with contextlib.suppress(queue.Empty):
                return self._answer(_SLICE_S)
            self._workers.check(self)

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Returns True if there is an answer, or the end of the stream, in time."""
        deadline = deadline_after(timeout)
        while True:
            rest = left(deadline)
            if super().poll(_SLICE_S if rest is None else min(rest, _SLICE_S)):
                return True
            if rest is not None and rest < _SLICE_S:
                return False
            self._workers.check(self)

    def raise_if_lost(self) -> None:
        """Raises the error of `recv` if the worker has ended and left a command without an answer."""
        if self._unanswered <= 0 or self.closed:
            return
        receiver = self._reading()
        # Only this process receives here. So a stream that is ready and then has no message has ended.
        if super().poll(0) and receiver.empty():
            with contextlib.suppress(queue.Empty):
                self._answer(0)

    def _answer(self, timeout: float) -> Any:
        with self._noting_loss():
            answer = self._recv(timeout)
        self._unanswered -= 1
        return answer

    @contextlib.contextmanager
    def _noting_loss(self) -> Iterator[None]:
        try:
            yield
        except ConnectionLost as error:
            self._workers.has_lost_one = True
            text = f"the process of environment {self._number} died: {error.args[0]}"
            raise ConnectionLost._of(error, text) from None
        except ChannelClosed:
            self._workers.has_lost_one = self._workers.has_lost_one or not self.closed
            raise


class _Context:
    """A context of `shmtree.multiprocessing` for the workers of one vector environment."""

    def __init__(self, workers: Workers, context: Any) -> None:
        self._workers = workers
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def Pipe(self, duplex: bool = True) -> tuple[Connection, Connection]:
        here, there = self._context.Pipe(duplex)
        remote = Remote._to_worker(here, self._workers)
        self._workers.remotes.append(remote)
        return remote, there

    def Process(self, *arguments: Any, args: Iterable[Any] = (), **options: Any) -> Any:
        # A forked worker is attached to every end that its arguments reach, so it must not reach the other remotes.
        plain = (Connection._of(arg._receiver, arg._sender) if isinstance(arg, Remote) else arg for arg in args)
        return self._context.Process(*arguments, args=tuple(plain), **options)


class Workers:
    """The workers of one vector environment. Its attributes are those of `shmtree.multiprocessing`."""

    def __init__(self) -> None:
        self.remotes: list[Remote] = []
        #: True once a call has reported that a worker has ended without an answer.
        self.has_lost_one = False

    def __getattr__(self, name: str) -> Any:
        return getattr(multiprocessing, name)

    def get_context(self, method: str | None = None) -> _Context:
        return _Context(self, multiprocessing.get_context(method))

    def check(self, waiting_for: Remote) -> None:
        """Raises the error of another worker than this one that has ended without an answer."""
        for remote in self.remotes:
            if remote is not waiting_for:
                remote.raise_if_lost()

    def end(self, processes: Collection[Any], timeout: float | None) -> None:
        """Ends all workers. Those that do not end by themselves within `timeout` seconds are terminated or killed."""
        for remote in self.remotes:
            if not remote.closed:
                with contextlib.suppress(ChannelClosed, ConnectionLost):
                    remote.send(("close", None))
        end_processes(processes, _END_S if timeout is None else timeout)
        for remote in self.remotes:
            remote.close()


def end_processes(processes: Collection[Any], timeout: float | None) -> None:
    """Waits for the processes to end. Terminates or kills those that do not end by themselves in time."""
    for seconds, ask in ((timeout, "terminate"), (_SIGTERM_S, "kill"), (None, "")):
        deadline = deadline_after(seconds)
        for process in processes:
            process.join(left(deadline))
        if ask:
            for process in processes:
                if process.is_alive():  # before SIGKILL: it is stopped, or ignores SIGTERM
                    getattr(process, ask)()


def start_with(workers: Workers | IdleModule, constructor: Callable[..., None], module: str) -> Callable[..., None]:
    """Returns a copy of a constructor that finds `workers` where it looks for the global name `module`."""
    assert isinstance(constructor, FunctionType)
    scope = {**constructor.__globals__, module: workers}
    copy = FunctionType(
        constructor.__code__, scope, constructor.__name__, constructor.__defaults__, constructor.__closure__
    )
    copy.__kwdefaults__ = constructor.__kwdefaults__
    return copy


class IdleModule:
    """Stands for `multiprocessing`, and for all that it makes, in a constructor: a pool has started the workers."""

    def __init__(self, remotes: Iterable[Any]) -> None:
        self._remotes = iter(remotes)

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self

    def Pipe(self) -> tuple[Any, Any]:
        return next(self._remotes), self


def check_constructor(cls: type, module: str, package: str, version: str) -> None:
    """Raises ImportError if the constructor of another library's class does not look for the global name `module`."""
    constructor = cls.__init__  # type: ignore[misc]
    if not isinstance(constructor, FunctionType) or module not in constructor.__code__.co_names:
        raise ImportError(
            f"{package} {version} does not start the processes of {cls.__name__} as this version of shmtree expects; "
            f"install another version of {package}, or use its own {cls.__name__}"
        )


def missing(package: str, module: str) -> ModuleNotFoundError:
    """Returns the error of a module that needs a package which is not installed."""
    return ModuleNotFoundError(f"{module} needs {package.replace('_', '-')}, which is not installed", name=package)
