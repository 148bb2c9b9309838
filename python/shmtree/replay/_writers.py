"""Streams of rows."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from .. import _core
from .._process import lifetime
from .._public import made_by

if TYPE_CHECKING:
    from typing_extensions import Self


Autoreset = Literal["next_step", "same_step"]

_writers: dict[int, weakref.ref[Writer]] = {}  # the writers of this process


def _all_writers() -> Iterator[Writer]:
    for known in tuple(_writers.values()):
        if (writer := known()) is not None:
            yield writer


def _leave() -> None:
    for writer in _all_writers():
        writer._leave()


def close_all_of(replay: _core.Replay) -> None:
    """Closes the writers that were made for this object of a buffer."""
    for writer in _all_writers():
        if writer._replay is replay:
            writer.close()


lifetime.before_leaving(_leave)


@made_by("ReplayBuffer.writer()")
class Writer(_core.ReplayWriter):
    """One stream of rows, such as those of one environment; made by `ReplayBuffer.writer`.

    It belongs to one process: a forked child that uses it begins a new stream. Threads may share it.
    """

    _replay: _core.Replay

    @classmethod
    def _of(cls, replay: _core.Replay) -> Writer:
        self = _core.ReplayWriter.__new__(cls, replay)  # type: ignore[call-arg]
        self._replay = replay
        key = id(self)

        # The default argument keeps the dict, because globals of the module may be gone when the interpreter exits.
        def forget(_: weakref.ref[Writer], known: dict[int, weakref.ref[Writer]] = _writers) -> None:
            known.pop(key, None)

        _writers[key] = weakref.ref(self, forget)
        return self

    def __repr__(self) -> str:
        added = f"{self.added} row{'' if self.added == 1 else 's'} added"
        return f"<Writer, {'closed' if self.closed else added}>"


@made_by("ReplayBuffer.vector_writer()")
class VectorWriter:
    """Several streams to which one call adds, such as a vector of environments; see `ReplayBuffer.vector_writer`."""

    _writers: tuple[Writer, ...]
    _version: int
    _resets_in_next_step: bool

    @classmethod
    def _of(cls, writers: tuple[Writer, ...], autoreset: Autoreset | None) -> VectorWriter:
        self = cls.__new__(cls)
        self._writers = writers
        self._version = 0
        self._resets_in_next_step = autoreset == "next_step"
        return self

    @property
    def writers(self) -> tuple[Writer, ...]:
        """The writers of the single streams."""
        return self._writers

    @property
    def version(self) -> int:
        """`Writer.version` of all streams."""
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        for writer in self._writers:
            writer.version = version
        self._version = version

    def add(
        self,
        rows: Any,
        *,
        end: Any = None,
        final: Any = None,
        priority: Any = None,
        reset: Any = None,
        timeout: float | None = None,
    ) -> np.ndarray[Any, Any]:
        """Adds a row to each stream.

        Args:
            rows: A pytree like that of a row, of arrays with the number of streams as first dimension.
            end: A mask of the streams in which the episode was cut off after this row, in addition to those with a true
                leaf ``terminated``, ``truncated`` or ``done``. If no leaf ends episodes, these episodes terminated.
            final: Last observations, a pytree of arrays for all streams, or for those that end.
            priority: One for each stream.
            reset: A mask of the streams in which this row is not a step; `add` skips it, and its index is -1. With
                ``autoreset="next_step"`` the writer also skips the row after each row that ended an episode.
            timeout: Seconds to wait, for all rows together, as in `Writer.add`; None waits indefinitely.

        Returns:
            The indices of the rows, an int64 array with one item for each stream.

        Raises:
            ValueError: The rows do not fit; nothing was added.
            queue.Full: Not all rows were added within `timeout` seconds.
            TimeoutError: As in `Writer.add`.

        An error other than ValueError, such as ``queue.Full``, may come in the middle. Its `sent` is the number of
        streams, from the first on, that have stored or skipped their row. If it is 0, nothing has changed, and you can
        repeat the call. Otherwise, add the rows of the other streams with their `writers`, except rows that are to be
        skipped.
        """
        given = (rows, end, final, priority, reset, timeout, self._resets_in_next_step)
        indices: np.ndarray[Any, Any] = _core.replay_add_to_each(self._writers, *given)
        return indices

    def close(self) -> None:
        """Closes the streams. Rows that were added stay. Idempotent."""
        for writer in self._writers:
            writer.close()

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        return all(writer.closed for writer in self._writers)

    def __len__(self) -> int:
        return len(self._writers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'VectorWriter' object: its streams belong to one process")

    def __repr__(self) -> str:
        return f"<VectorWriter of {len(self)}, closed>" if self.closed else f"<VectorWriter of {len(self)}>"


def autoreset_of(given: Any) -> Autoreset | None:
    """Returns the reset mode for a name or for Gymnasium's ``AutoresetMode``. None: not specified, or no resets."""
    modes: dict[Any, Autoreset | None] = {
        None: None,
        "next_step": "next_step",
        "same_step": "same_step",
        "NextStep": "next_step",
        "SameStep": "same_step",
        "Disabled": None,
    }
    value = getattr(given, "value", given)
    if not isinstance(value, str | None) or value not in modes:
        raise ValueError(f"autoreset is {given!r}; it must be 'next_step', 'same_step', None or an AutoresetMode")
    return modes[value]


class OwnWriter(threading.local):
    """A thread's own writer, which ends with the thread."""

    writer: Writer
