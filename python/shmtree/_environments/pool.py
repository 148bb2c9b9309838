"""The main process's side of the workers of a vector environment: commands, answers, deaths, restarts, the end."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import queue
import signal
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from .._ipc.arguments import deadline_after, left, whole
from .._ipc.channel import Receiver, Sender
from .._ipc.pairs import create_pair
from .._ipc.queue import Queue
from .._ipc.subprocess_iterator import Over
from ..errors import ChannelClosed, ConnectionLost, PeerDied
from .pipes import end_processes
from .rows import Rows
from .workers import Interface, Makers, Sync, Task, resets, serve

P = ParamSpec("P")
R = TypeVar("R")

#: Interval at which a wait for answers checks for deaths.
_SLICE_S = 0.25
#: Time that workers have to end by themselves after a call that failed.
_END_S = 5.0


def class_to_make(cls: type, plain: type, pooled: type, workers: int | None) -> type:
    """Returns the class of which `cls` makes an object: `pooled` if `plain` is called with `workers`."""
    if workers is None or issubclass(cls, pooled):
        return cls
    if cls is not plain:
        raise TypeError(f"{cls.__name__} has no workers=; derive it from {pooled.__module__}.{pooled.__name__}")
    return pooled


class _Member:
    """One worker, as the main process knows it."""

    def __init__(
        self, numbers: range, serial: int, process: Any, commands: Sender[Any], answers: Receiver[Any]
    ) -> None:
        self.numbers, self.serial, self.process = numbers, serial, process
        self.commands, self.answers = commands, answers
        self.command: Any = None  # the last one
        #: Environments with results to come. `numbers` itself: one answer for all of them; a set: one for each.
        self.pending: range | set[int] = set()
        self.has_answered = False
        self.synced = 0  # number of the last `Sync` that was answered
        self.failure: Over | None = None

    def describe(self, what: str) -> str:
        return f"the worker with pid {self.process.pid}, of {_named(self.numbers)}, {what}"

    def fate(self) -> str:
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"exited with code {code}"

    def lateness(self) -> str:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt":
                return "did not answer in time, because it is stopped"
        return "did not answer in time"


def _named(numbers: Sequence[int]) -> str:
    text = f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 2 else ", ".join(map(str, numbers))
    return f"environment{'s' * (len(numbers) > 1)} {text}"


class Remote:
    """The pipe to one environment, as another library's class uses it."""

    closed = False

    def __init__(self, pool: Pool, number: int) -> None:
        self._pool, self._number = pool, number

    def send(self, command: tuple[str, Any]) -> None:
        self._pool.requests[self._number] = command

    def recv(self) -> Any:
        return self._pool.result(self._number)

    def close(self) -> None:
        """Does nothing: `Pool.end` closes all."""


def _noting_interrupts(call: Callable[Concatenate[Pool, P], R]) -> Callable[Concatenate[Pool, P], R]:
    """Makes the next call after an interrupted one, for example by Ctrl-C, ask the workers how far they are."""

    @functools.wraps(call)
    def noting(self: Pool, /, *args: P.args, **options: P.kwargs) -> R:
        try:
            return call(self, *args, **options)
        except Exception:
            raise
        except BaseException:
            self._is_interrupted = True
            raise

    return noting


class Pool:
    """The workers of one vector environment.

    One thread at a time may use it, except that any thread may call `end`. After a call has raised ConnectionLost or
    the error of an environment, every call raises ConnectionLost, unless `restarts` is True. After a TimeoutError, the
    pool is usable again once the late workers have answered.
    """

    def __init__(
        self,
        interface: Interface,
        makers: Sequence[Callable[[], Any]],
        workers: int,
        start: Callable[[Any, tuple[Any, ...], range], Any],
        restarts: bool,
    ) -> None:
        """`start` starts a process with a target, its arguments, and the numbers of its environments for its name."""
        count = len(makers)
        if not 1 <= whole("workers", workers) <= count:
            raise ValueError(f"workers is {workers}; it must be from 1 to {count}, the number of environments")
        self.count, self._pid = count, os.getpid()
        self._interface, self._makers, self._start, self._restarts = interface, makers, start, restarts
        # A queue, since its stream does not end while this process can still start workers.
        self._done: Queue[Any] = Queue()
        self.rows: Rows | None = None
        self.remotes = [Remote(self, number) for number in range(count)]
        self.requests: dict[int, tuple[str, Any]] = {}
        self._results: dict[int, Any] = {}
        self.sent: set[int] = set()  #: environments of `send` with results to come
        self._arrived: deque[tuple[int, Any]] = deque()  # steps of `send` that are done, and other infos
        self._next_check = 0.0
        self._timeout: float | None = None
        self._deadline: float | None = None
        self._is_late = self._is_interrupted = False
        self._syncs = 0
        self._lost: ConnectionLost | None = None
        self._serials = 0
        self._members: list[_Member] = []
        self.processes: list[Any] = []
        try:
            for at in range(workers):
                self._members.append(self._member(range(count * at // workers, count * (at + 1) // workers)))
                self.processes.append(self._members[-1].process)
        except BaseException:
            self.end(0)
            raise
        self._owners = [member for member in range(workers) for _ in self._members[member].numbers]

    def _member(self, numbers: range, is_restart: bool = False) -> _Member:
        self._serials += 1
        sender, receiver = create_pair(None)
        answering, answers = create_pair(None)
        makers = Makers(self._makers[numbers.start : numbers.stop])
        task = Task(self._interface, makers, numbers, self._serials, self.rows, is_restart)
        process = self._start(serve, (task, receiver, answering, self._done), numbers)
        receiver.close()
        answering.close()
        return _Member(numbers, self._serials, process, sender, answers)

    def share(self, observation_space: Any, action_space: Any, halves: int) -> Rows:
        """Makes the rows, and gives them to the workers."""
        self.rows = Rows(observation_space, action_space, self.count, halves)
        for member in self._members:
            self._put(member, self.rows)
        return self.rows

    # --- Steps

    @_noting_interrupts
    def step(self, actions: Sequence[Any] | None) -> None:
        """Begins a step of all environments, with the actions in the rows, or with these. Call `settle` first."""
        assert self.rows is not None
        half = self.rows.half = (self.rows.half + 1) % self.rows.halves
        for member in self._members:
            numbers = member.pending = member.numbers
            self._put(member, half if actions is None else (half, None, actions[numbers.start : numbers.stop]))

    @_noting_interrupts
    def collect(self, timeout: float | None) -> list[tuple[int, Any]]:
        """Waits until all environments are done. Returns the infos with the numbers of their environments, in order."""
        self._wait_for_all(timeout)
        if not self._arrived:
            return []
        found = sorted(self._arrived, key=itemgetter(0))
        self._arrived.clear()
        return found

    @_noting_interrupts
    def send(self, numbers: Sequence[int], actions: Sequence[Any] | None) -> None:
        """Begins a step of some environments, with the actions in the rows, or with these."""
        assert self.rows is not None
        places: dict[int, list[int]] = {}
        for at, number in enumerate(numbers):
            places.setdefault(self._owners[number], []).append(at)
        self.sent.update(numbers)
        for owner, chosen in places.items():
            member, mine = self._members[owner], [numbers[at] for at in chosen]
            member.pending = {*member.pending, *mine}
            self._put(member, (self.rows.half, mine, None if actions is None else [actions[at] for at in chosen]))

    @_noting_interrupts
    def receive(self, n: int, timeout: float | None) -> list[tuple[int, Any]]:
        """Waits until `n` environments of `send` are done. Returns the numbers and infos of the first ones."""
        self._begin_wait(timeout)
        if self._is_interrupted:
            self._sync()
            self._check_received()
        if time.monotonic() >= self._next_check:
            self._check()
        while len(self._arrived) < n:
            self._wait(None)
        found = [self._arrived.popleft() for _ in range(n)]
        self.sent.difference_update(number for number, _ in found)
        return found

    # --- Commands of the library

    @_noting_interrupts
    def post(self) -> None:
        """Sends the requests of all remotes."""
        requests, self.requests = self.requests, {}
        if not requests:
            return
        self.settle()
        for member in self._members:
            if any(number in requests for number in member.numbers):
                member.pending = member.numbers
                self._put(member, [requests.get(number) for number in member.numbers])

    @_noting_interrupts
    def exchange(self, timeout: float | None = None) -> None:
        """Sends the requests of all remotes if there are any, and waits for the answers."""
        self.post()
        self._wait_for_all(timeout)

        for result in self._results.values():
            if isinstance(result, Over):
                result.raise_error()

    def result(self, number: int) -> Any:
        """Returns the answer to the request of one remote."""
        self.exchange()
        return self._results[number]

    # --- Waits

    @_noting_interrupts
    def settle(self) -> None:
        """Drops answers to earlier calls that have failed. Raises the error of such a call if it still holds."""
        if self._lost is not None:
            raise ConnectionLost(*self._lost.args, pids=self._lost.pids)
        timeout = 0 if self._is_late else None
        if self._is_interrupted:
            self._begin_wait(timeout)
            self._sync()
        self._wait_for_all(timeout)
        self._is_late = False
        self._arrived.clear()
        self._results.clear()
        self.sent.clear()

    def _sync(self) -> None:
        """Waits until all workers have executed their commands. An interrupt may have lost commands and answers."""
        self._syncs += 1
        for member in self._members:
            self._put(member, Sync(self._syncs))
        for at in range(len(self._members)):
            while (member := self._members[at]).synced != self._syncs:  # a restart replaces the member
                member.pending = member.numbers
                self._wait(member)
            member.pending = set()
        while self._read(None, 0):
            pass
        self._is_interrupted = False

    def _check_received(self) -> None:
        """Raises RuntimeError if an interrupt has lost results of `send`."""
        if missing := sorted(self.sent.difference(number for number, _ in self._arrived)):
            self.sent.clear()
            raise RuntimeError(f"an interrupted call lost the results of {_named(missing)}; reset the environments")

    def _put(self, member: _Member, command: Any) -> None:
        member.command = command
        with contextlib.suppress(PeerDied, ChannelClosed):  # the wait for the answer reports the death
            member.commands.put(command)

    def _begin_wait(self, timeout: float | None) -> None:
        self._timeout, self._deadline = timeout, None if timeout is None else deadline_after(timeout)

    def _wait_for_all(self, timeout: float | None) -> None:
        self._begin_wait(timeout)
        # The last one began last. If it also ends last, one wake-up is enough.
        for at in range(len(self._members) - 1, -1, -1):
            while (member := self._members[at]).pending:  # a restart replaces the member
                self._wait(member if member.pending is member.numbers else None)

    def _wait(self, member: _Member | None) -> None:
        """Waits for an answer of one worker, or for one environment of `send`. Also returns at times without one."""
        rest = left(self._deadline)
        if self._read(member, _SLICE_S if rest is None else min(rest, _SLICE_S)):
            return
        self._check()
        if left(self._deadline) == 0 and any(each.pending for each in self._members):
            self._time_out()

    def _read(self, member: _Member | None, timeout: float) -> bool:
        """Processes an answer if there is one in time."""
        try:
            answer = (self._done if member is None else member.answers).get(timeout=timeout)
        except (queue.Empty, PeerDied, ChannelClosed):
            return False
        if member is None:
            serial, number, infos, objects = answer
            for member in self._members:
                if member.serial == serial:  # else it comes from a worker that was replaced
                    self._take_step(member, number, infos, objects)
        elif isinstance(answer, Sync):
            member.synced = answer.number
        elif answer is None:
            member.pending, member.has_answered = set(), True
        elif isinstance(answer, Over):
            self._fail(member, answer)
        else:
            self._take_all(member, answer)
        return True

    def _take_step(self, member: _Member, number: Any, infos: Any, objects: Any) -> None:
        if isinstance(number, Over):
            self._fail(member, number)
            return
        assert isinstance(member.pending, set)
        member.pending.discard(number)
        member.has_answered = True
        self._arrived.append((number, infos[0] if infos else {}))
        self._keep([number], objects or ())

    def _take_all(self, member: _Member, answer: Any) -> None:
        """Processes the results of commands, or the infos and objects of steps."""
        member.pending, member.has_answered = set(), True
        numbers = member.numbers
        if isinstance(answer, list):
            self._results.update((number, result) for number, (result, _) in zip(numbers, answer, strict=True))
            self._keep(numbers, [objects for _, objects in answer])
            return
        infos, objects = answer
        self._arrived.extend((number, info) for number, info in zip(numbers, infos or (), strict=False) if info)
        self._keep(numbers, objects or ())

    def _keep(self, numbers: Sequence[int], objects: Sequence[Any]) -> None:
        for number, each in zip(numbers, objects, strict=False):
            if each and self.rows is not None:
                self.rows.keep_objects(number, each)

    # --- Lost workers

    def _check(self) -> None:
        """Restarts each worker that has exited, or raises its error."""
        self._next_check = time.monotonic() + _SLICE_S
        for member in [each for each in self._members if not each.process.is_alive()]:
            while self._read(member, 0) or self._read(None, 0):  # an answer may say why
                pass
            if member in self._members:
                self._lose(member, member.fate())

    def _fail(self, member: _Member, failure: Over) -> None:
        member.failure = failure
        self._lose(member, f"ended after {failure.name}")

    def _time_out(self) -> None:
        late = [member for member in self._members if member.pending]
        if not self._restarts:
            self._is_late = True
            text = "; ".join(member.describe(member.lateness()) for member in late)
            raise multiprocessing.TimeoutError(f"{text} (timeout: {self._timeout} s)")
        for member in late:
            self._lose(member, member.lateness())
        self._begin_wait(self._timeout)

    def _lose(self, member: _Member, what: str) -> None:
        """Restarts a worker, or raises the error that says why it is lost."""
        text = member.describe(what)
        lost = ConnectionLost(text, pids=(member.process.pid,))
        if not (self._restarts and member.has_answered):
            self._lost = lost
            self.sent.clear()
            if member.failure is not None:
                dataclasses.replace(member.failure, trace=f"{text}\n{member.failure.trace}").raise_error()
            raise lost
        member.process.kill()
        member.process.join()
        member.commands.close()
        warnings.warn(f"{text}; its environments start anew in another worker", RuntimeWarning, stacklevel=2)
        at = self._members.index(member)
        new = self._members[at] = self._member(member.numbers, True)
        self.processes[at] = new.process
        command, new.pending = member.command, member.pending
        if not member.pending:
            return
        if isinstance(command, list) and not resets(command):
            new.pending = set()
            raise lost
        if member.pending is not member.numbers:
            assert self.rows is not None
            mine = sorted(member.pending)
            command = self.rows.half, mine, mine  # restarted environments ignore their actions
        self._put(new, command)

    def end(self, timeout: float | None, terminate: bool = False) -> None:
        """Ends the workers; later calls raise ConnectionLost. The timeout is 5 s if it is None and a call has failed.

        Does nothing in a forked child, which collects its copies of vector environments: they are the parent's.
        """
        if os.getpid() != self._pid:
            return
        failed = self._lost is not None or self._is_late
        self._restarts, self._lost = False, ConnectionLost("this vector environment is closed")
        for member in self._members:
            member.commands.close()
        end_processes(self.processes, 0.0 if terminate else _END_S if timeout is None and failed else timeout)
        self._done.close()
