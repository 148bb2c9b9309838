"""Processes that step several environments each, and write the results as rows of one batch in shared memory.

For one step of all its environments, a worker gets one small message, and returns one on a channel of its own. Steps of
single environments are answered on one queue of all workers, so that the main process receives results in the order in
which environments finish.

The class of another library sends its other commands, such as `reset`, through a `Remote` for each environment, which
has the methods of a pipe. The first `recv` sends the commands of all environments, again in one message per worker.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import cloudpickle

from .._ipc.channel import Receiver, Sender
from .._ipc.queue import Queue
from .._ipc.subprocess_iterator import Over, end_with_parent
from ..errors import PeerDied
from .rows import Rows


class Slot:
    """One environment in a worker."""

    __slots__ = ("ended", "env", "number", "objects", "reset_info", "restarted", "rows")

    def __init__(self, env: Any, number: int, restarted: bool) -> None:
        self.env, self.number = env, number
        self.restarted = restarted  # this process replaces a lost one, and the environment has not been reset yet
        self.ended = False  # the last step has ended an episode
        self.rows: Rows | None = None
        self.reset_info: dict[str, Any] = {}  # of the last reset, for Stable-Baselines3
        self.objects: list[Any] = []  # the parts of the last observation that have no row

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Resets the environment. The first info after a restart has the key ``restarted``."""
        observation, info = self.env.reset(**options)
        self.ended = False
        if self.restarted:
            self.restarted, info = False, {"restarted": True, **info}
        return observation, info

    def write(self, observation: Any) -> None:
        """Writes an observation to the row of this environment."""
        assert self.rows is not None
        self.objects = self.rows.write(self.number, observation)

    def clear(self) -> None:
        """Marks the row of this environment as that of a reset."""
        assert self.rows is not None
        self.rows.rewards[self.number] = 0.0
        self.rows.terminations[self.number] = self.rows.truncations[self.number] = False


class Interface(NamedTuple):
    """What a worker does in place of the other library's worker. The functions run in the workers."""

    #: Returns the environment to use for one that was made.
    prepare: Callable[[Any], Any]
    #: Executes an action, and resets the environment as its mode says. Returns the five values of a step.
    step: Callable[[Slot, Any], tuple[Any, ...]]
    #: Resets an environment that was restarted, in place of a step. Returns the five values of a step.
    restart: Callable[[Slot], tuple[Any, ...]]
    #: Executes a command: a pair of its name and its data. Returns the answer.
    command: Callable[[Slot, tuple[str, Any]], Any]


class Makers(tuple[Callable[[], Any], ...]):
    """Functions that make environments. They may be closures also if they are pickled."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_makers, (cloudpickle.dumps(tuple(self)),)


def _load_makers(pickled: bytes) -> Makers:
    return Makers(cloudpickle.loads(pickled))


class Task(NamedTuple):
    """What one worker is started with."""

    interface: Interface
    makers: Makers
    numbers: range  #: of its environments
    serial: int  #: of the process, with which each answer begins
    rows: Rows | None
    is_restart: bool


class Sync(NamedTuple):
    """A command without an effect. The worker returns it, when it has executed all earlier ones."""

    number: int


def resets(commands: object) -> bool:
    """Returns True if these are commands that reset environments."""
    return isinstance(commands, list) and all(each is not None and each[0].startswith("reset") for each in commands)


class _Worker:
    """The environments of one process.

    Its commands are:

    - a number: steps all environments, with the actions in the rows. The number is the half of the rows to write.
    - the half, numbers of environments or None for all, and actions or None for those in the rows: steps these.
    - a list with a command of the library for each environment.
    - the rows to use from now on.
    - a `Sync`.
    """

    def __init__(self, task: Task, answers: Sender[Any], done: Queue[Any]) -> None:
        self._interface, self._first, self._serial = task.interface, task.numbers.start, task.serial
        self._answers, self._done = answers, done
        self._slots: list[Slot] = []
        for number, make in zip(task.numbers, task.makers, strict=True):
            self._slots.append(Slot(self._interface.prepare(make()), number, task.is_restart))
        if task.rows is not None:
            self._use(task.rows)

    def _use(self, rows: Rows) -> None:
        self._rows = rows
        for slot in self._slots:
            slot.rows = rows

    def execute(self, command: Any) -> None:
        if type(command) is int:
            self._step(command, None, None)
        elif isinstance(command, Sync):
            self._answers.put(command)
        elif isinstance(command, list):
            self._answers.put(self._results(command))
        elif isinstance(command, Rows):
            self._use(command)
        else:
            self._step(*command)

    def _results(self, commands: list[tuple[str, Any] | None]) -> list[tuple[Any, Any]]:
        execute, pairs = self._interface.command, zip(self._slots, commands, strict=True)
        if resets(commands):
            return [(execute(slot, command), slot.objects) for slot, command in pairs if command]
        try:
            return [(execute(slot, command) if command else None, None) for slot, command in pairs]
        except Exception as error:  # the environments are as before, unlike after an error of a step or reset
            return [(Over.because_of(error), None)] * len(commands)

    def _step(self, half: int, chosen: list[int] | None, actions: Iterable[Any] | None) -> None:
        rows, first = self._rows, self._first
        rows.half = half
        if actions is None:
            actions = rows.actions(slice(first, first + len(self._slots)) if chosen is None else chosen)
        if chosen is None:
            infos, objects = self._step_some(self._slots, actions)
            self._answers.put((infos, objects) if infos or objects else None)
            return
        for number, action in zip(chosen, actions, strict=True):
            self._done.put((self._serial, number, *self._step_some([self._slots[number - first]], [action])))

    def _step_some(self, slots: list[Slot], actions: Iterable[Any]) -> tuple[Any, Any]:
        """Steps environments and writes their rows. Returns what has no rows: infos and objects, or None and None."""
        rows, step, restart = self._rows, self._interface.step, self._interface.restart
        rewards, terminations, truncations = rows.rewards, rows.terminations, rows.truncations
        infos = []
        for slot, action in zip(slots, actions, strict=True):
            number = slot.number
            observation, rewards[number], terminations[number], truncations[number], info = (
                restart(slot) if slot.restarted else step(slot, action)
            )
            slot.write(observation)
            infos.append(info)
        return (infos if any(infos) else None), ([slot.objects for slot in slots] if rows.has_objects else None)

    def close(self) -> None:
        for slot in self._slots:
            slot.env.close()


def serve(task: Task, commands: Receiver[Any], answers: Sender[Any], done: Queue[Any]) -> None:
    """Main function of a worker. It ends when the main process closes the commands, or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the main process
    threading.Thread(target=end_with_parent, daemon=True).start()
    with contextlib.ExitStack() as stack:
        try:
            worker = _Worker(task, answers, done)
            stack.callback(worker.close)
            for command in commands:
                worker.execute(command)
        except PeerDied:
            pass
        except Exception as error:
            failure = Over.because_of(error)
            answers.put(failure)
            done.put((task.serial, failure, None, None))
