"""The buffer itself."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import numpy as np

from .. import _core
from .._ipc.arena import Arena
from .._process import handles, names
from .._process.names import REPLAY, open_known
from ..errors import ChannelClosed
from . import _drawing, _files, _fixed, _lone, _places, _rows, _samplers, _spec, _writers
from ._batch import Batch, SequenceBatch
from ._files import Saved
from ._numbers import positive, seed_of
from ._stats import Stats
from ._writers import OwnWriter, VectorWriter, Writer

_MOST_STREAMS = 1 << 20  # of a vector


class ReplayBuffer:
    """Rows that many processes add and many draw, in shared memory; the oldest go first.

    Args:
        capacity: rows. Or, in place of it, `max_bytes`: what all of it may take.
        example: a row, or one like it: a nest of dicts, lists and tuples, whose leaves are arrays (NumPy, torch) and
            numbers. Python's floats are float32, ints int64. Or, in place of it, `columns`: such a nest with a
            ``(shape, dtype)`` in the place of each leaf, or a dtype alone for numbers.
        next: keys of a row whose leaves are wanted of the following row, too. They are stored once, and a batch has
            them in ``data["next"]``: of the row `n_step` on; at an episode's end of the `final` that `Writer.end` was
            given, or of the last row itself where there was none (`Batch.discount` is 0 then).
        n_step: how many rewards are summed in a batch, those further on times `gamma`, `gamma` squared, and so on, up
            to the episode's end.
        stack: how many frames, by the key of a row, a batch has of a leaf: the row's own last, before it those of the
            rows before it in its episode. `stack_padding` is what stands before an episode's first frame: "zeros", or
            the "first" frame.
        reward: key of a row, whose values `n_step` sums.
        done: key of a row that ends episodes, in addition to Gymnasium's ``"terminated"`` and ``"truncated"``. A true
            ``terminated`` ends the episode, and its `Batch.discount` is 0. A true ``truncated`` ends it as well; with
            `next`, the row needs the observation after it (`final`), whose value counts. `done` is the union; if
            it is not, `add` raises a ValueError with the row and the values. If rows lack one of the two, `done` stands
            for it; if they lack both, for ``terminated``. None: no key ends an episode, only calls do, such as
            `Writer.end`. Rows with none of the three keys are a ValueError if there is `next`, `n_step` or `stack`, and
            in `sample_sequences`.
        sampler: `Uniform`, `Prioritized`, `Fifo`, `Lifo` or `MaxPriority`; None is the first. Or, in place of it,
            `samplers`: several by their names.
        limit: a `RateLimit`, by which those who add wait for those who draw, and these for rows.
        chunk: rows that are let go of at once, a power of two up to 64; None takes what suits the capacity. With 1
            there are exactly `capacity` rows once it was full.
        streams: how many writers there are, about; more work.
        on_peer_death: "wait": who waits for rows, or for room under a `limit`, waits for those who come when all others
            were killed. "raise": it gets PeerDied then, with their `pids`, until somebody comes.
        arena: where it lies; None is an arena of its own.
        name: makes it known to the user's other processes, for `ReplayBuffer.open`; FileExistsError when it is in use.
        seed: of this object's draws; None for other ones each time.
        exist_ok: with a name that a buffer has already, opens that one, with its rows; ValueError, with what differs,
            when it was made with other arguments (`seed` and `streams` apart).

    It goes to other processes as an argument of theirs, in messages of channels and by its name, and lives as long as
    any of them has it. A row can be drawn when it was added; where the buffer has `next` or `n_step`, when the rows
    that it needs were added, or its episode has ended.
    """

    _owner: _lone.Owner | None = None  # of one that this object has made

    def __init__(
        self,
        capacity: int | None = None,
        *,
        example: Any = None,
        columns: Any = None,
        max_bytes: int | None = None,
        next: str | Iterable[str] = (),
        n_step: int = 1,
        gamma: float = 0.99,
        stack: Mapping[str, int] | None = None,
        stack_padding: _spec.Padding = "zeros",
        reward: str | None = "reward",
        done: str | None = "done",
        sampler: _samplers.Sampler | None = None,
        samplers: Mapping[str, _samplers.Sampler] | None = None,
        limit: _samplers.RateLimit | None = None,
        chunk: int | None = None,
        streams: int = 1,
        on_peer_death: _spec.OnPeerDeath = "wait",
        arena: Arena | None = None,
        name: str | None = None,
        seed: int | None = None,
        exist_ok: bool = False,
    ) -> None:
        if (example is None) == (columns is None):
            raise TypeError("a replay buffer is made with either example= or columns=")
        if (capacity is None) == (max_bytes is None):
            raise TypeError("a replay buffer is made with either a capacity of rows or max_bytes=")
        if name is not None:
            names.check_name(name)
        rows = _rows.from_example(example) if columns is None else _rows.from_columns(columns)
        chosen = _samplers.named(sampler, samplers)
        _samplers.check_limit(limit)
        ends = (reward, done, limit, on_peer_death)
        spec = _spec.make(rows, chosen, next, n_step, gamma, stack, stack_padding, *ends)
        self._make(spec, _places.Room(capacity, max_bytes, chunk, streams), arena, name, seed, exist_ok)

    def _make(
        self,
        spec: _spec.Spec,
        room: _places.Room,
        arena: Arena | None,
        name: str | None,
        seed: Any,
        exist_ok: bool = False,
    ) -> None:
        seeded = None if seed is None else seed_of(seed)

        def make() -> tuple[_core.Replay, _core.Name | None]:
            core = _places.make(spec, room, arena)
            return core, names.create_name(name, REPLAY, core.arena, core.block) if name is not None else None

        def known(name: str) -> tuple[_core.Replay, _core.Name | None]:
            found = open_known(name, REPLAY)
            core = _core.Replay.open(found.arena, found.block, lambda made: _spec.Spec.of(made).nests())
            given = arena._open() if arena is not None else None
            names.check_known(name, found.arena, given, lambda: _places.check(core, spec, room, arena))
            return core, found

        core, of_name = names.open_or_make(name, exist_ok, known, make)
        self._become(spec, core, of_name)
        self._owner = _lone.Owner(is_named=name is not None)
        if seeded is not None:
            core.seed = seeded

    def _become(self, spec: _spec.Spec, core: _core.Replay, name: _core.Name | None) -> None:
        self._spec = spec
        self._data = spec.data()
        self._open_core: _core.Replay | None = core
        self._name = name
        self._local = OwnWriter()
        self._stats = Stats()

    @property
    def _replay(self) -> _core.Replay:
        core = self._open_core
        if core is None:
            raise ChannelClosed("this replay buffer was closed in this process")
        return core

    @classmethod
    def open(cls, name: str, timeout: float | None = 0.0) -> ReplayBuffer:
        """The buffer of that name; FileNotFoundError when there is none. TimeoutError when there is still none after
        `timeout` seconds, if that is more than 0 (None waits indefinitely).
        """
        known = open_known(name, REPLAY, timeout)
        return cls._opened(known.arena, known.block, known)

    @classmethod
    def _opened(cls, arena: _core.Arena, block: int, name: _core.Name | None) -> ReplayBuffer:
        core = _core.Replay.open(arena, block, lambda made: _spec.Spec.of(made).nests())
        self = cls.__new__(cls)
        self._become(_spec.Spec.of(core.spec), core, name)
        return self

    @classmethod
    def _gone(cls) -> ReplayBuffer:
        """One that no process has any more: closed."""
        self = cls.__new__(cls)
        self._open_core = self._name = None
        self._local = OwnWriter()
        return self

    @property
    def capacity(self) -> int:
        """Rows that there may be."""
        return self._replay.capacity

    @property
    def chunk(self) -> int:
        """Rows that are let go of at once."""
        return self._replay.chunk

    def __len__(self) -> int:
        """Rows that can be drawn.

        With `stack`, a row stops counting once the buffer has dropped earlier frames of its stack.
        """
        return self._replay.size()

    def __bool__(self) -> bool:
        return True

    # --- Adding

    def writer(self) -> Writer:
        """A new stream of rows."""
        writer = Writer(self._replay)
        if self.closed:  # meanwhile, by another thread
            writer.close()
        return writer

    def vector_writer(self, n: int, *, autoreset: _writers.Autoreset | Any = None) -> VectorWriter:
        """Returns n new streams, to which one call adds n rows, such as those of n environments.

        Args:
            autoreset: when the environments begin a new episode: "next_step", "same_step", or the value that Gymnasium
                has in ``environments.metadata["autoreset_mode"]``. With "next_step", the step after the end of an
                episode is not a real step, and the writer skips its row. None: `reset` of `VectorWriter.add` names the
                rows that are not steps.
        """
        mode = _writers.autoreset_of(autoreset)
        return VectorWriter(tuple(self.writer() for _ in range(positive("n", n, _MOST_STREAMS))), mode)

    @property
    def _own_writer(self) -> Writer:
        """The calling thread's."""
        try:
            return self._local.writer
        except AttributeError:
            writer = self._local.writer = self.writer()
            return writer

    def add(self, row: Any, *, final: Any = None, priority: float | None = None, timeout: float | None = None) -> int:
        """Adds a row, in a stream of this process's and thread's own, and returns its index. As `Writer.add`."""
        try:
            writer = self._local.writer
        except AttributeError:
            writer = self._own_writer
        return writer.add(row, final=final, priority=priority, timeout=timeout)

    def end(self, *, final: Any = None, truncated: bool = False, timeout: float | None = None) -> None:
        """Ends the episode in that stream. As `Writer.end`."""
        self._own_writer.end(final=final, truncated=truncated, timeout=timeout)

    def extend(
        self, rows: Any, *, ends: Any = None, final: Any = None, priority: Any = None, timeout: float | None = None
    ) -> np.ndarray[Any, Any]:
        """Adds many rows, in that stream, and returns their indices. As `Writer.extend`."""
        terms = {"ends": ends, "final": final, "priority": priority, "timeout": timeout}
        added: np.ndarray[Any, Any] = self._own_writer.extend(rows, **terms)
        return added

    # --- Drawing

    def sample(
        self,
        n: int,
        *,
        sampler: str | None = None,
        replace: bool = True,
        out: Any = None,
        threads: int = 1,
        beta: float | None = None,
        weights: Literal["batch", "buffer"] = "batch",
        timeout: float | None = None,
    ) -> Batch:
        """Draws n rows. Waits until there is a row: ``queue.Empty`` after `timeout` seconds (None: never), and PeerDied
        (``on_peer_death="raise"``) if some of those who added were killed, and none is left. A wait without a timeout
        raises RuntimeError at once if only the calling thread could add rows: this process made the buffer, without a
        name, has neither sent it nor forked since, and has no other thread.

        Args:
            sampler: which one, by its name; None is the first.
            replace: whether a row may be drawn several times; where it may not, ValueError for more than there are.
            out: arrays (or tensors) to draw into: a nest as `Batch.data` is, each of shape (n, ...), contiguous. Or
                "arena": new ones in the buffer's arena, which a channel of that arena sends without a copy.
            threads: how many may copy.
            beta: in place of that of the sampler.
            weights: whether the largest `Batch.weight` possible, 1, is that of the least likely row of the batch, or of
                the whole buffer.
        """
        given = (n, sampler, replace, out, threads, beta, weights, timeout, self._owner)
        return _drawing.sample(self._replay, self._spec, self._data, *given)

    def batches(self, n: int, **options: Any) -> Iterator[Batch]:
        """Draws again and again; as `sample`."""
        while True:
            yield self.sample(n, **options)

    def sample_sequences(
        self,
        n: int,
        length: int,
        *,
        stride: int = 1,
        partial: Literal["pad", "refuse"] = "pad",
        sampler: str | None = None,
        replace: bool = True,
        out: Any = None,
        threads: int = 1,
        beta: float | None = None,
        weights: Literal["batch", "buffer"] = "batch",
        timeout: float | None = None,
    ) -> SequenceBatch:
        """Draws n sequences: a row, and those after it in its episode, `length` in all.

        Waits like `sample`. Arrays of the batch have the shape (n, length, ...). Raises ValueError if the buffer does
        not know where episodes end: its rows have no key ``terminated``, ``truncated`` or ``done``, and it was not made
        with ``done=None``.

        Args:
            stride: from one row of a sequence to the next: 2 is every other one.
            partial: "pad" gives shorter ones, with zeros behind, where the episode ends or its rows are not there yet;
                "refuse" draws those only that are as long.
            sampler: which one draws the first rows, by its name; None takes any row, each as likely.
            replace: whether several sequences may begin with the same row.
            out: as in `sample`, of the shape (n, length, ...).
            threads, beta, weights: as in `sample`; all rows of a sequence have the weight of the first one.
        """
        given = (n, length, stride, partial, sampler, replace, out, threads, beta, weights, timeout, self._owner)
        return _drawing.sample_sequences(self._replay, self._spec, self._data, *given)

    def stats(self) -> dict[str, Any]:
        """Numbers of the buffer, by all processes together where nothing else is said.

        Sizes: rows (that can be drawn, as `len`), capacity, chunk (rows), row_bytes, max_bytes (of all rows, when the
        buffer is full); chunks (that exist now) and chunks_opened (so far).
        Counts since the buffer was made, or the one that it was loaded from: added (rows and last observations; a chunk
        that its writer left part-full counts as full once it is dropped), samples (by the sampler's name: rows, or
        sequences), samples_per_insert (all samples / added). With a limit, inserted and sampled are the counts of the
        limit since the last `clear`. waiting: process ids that are blocked now, by "add" (until others draw, as
        the limit requires) and "sample" (until others add).

        Since the last call on this object: added_per_s and sampled_per_s; and of the rows that this object drew, whose
        number is drawn: age_mean and age_max (rows added since, as `Batch.age`), version_lag_mean and version_lag_max
        (how far their `Writer.version` was behind the largest that this object had met). All 0.0 when there was none.
        """
        return self._stats.of(self._replay, self._spec)

    # --- Priorities

    def update_priorities(self, index: Any, priority: Any, *, sampler: str | None = None) -> np.ndarray[Any, Any]:
        """Gives rows new priorities by their indices, for all samplers that have any, or for that one.

        Both are arrays or tensors, also of a device, of one shape; the last of a repeated index counts. Returns such a
        mask of bool: False where the row was overwritten meanwhile, and for -1, which is no row. ValueError, and
        nothing is changed, for a priority that is negative, not finite or too large, and for an index that was never
        given.
        """
        indices, priorities = _places.updates(index, priority)
        table = -1 if sampler is None else self._spec.table(sampler)
        applied = self._replay.update(table, indices.ravel(), priorities.ravel())
        mask: np.ndarray[Any, Any] = applied.reshape(indices.shape)
        return mask

    @property
    def max_priority(self) -> float:
        """The largest priority that was given, 1.0 at first: that of rows which are added without one."""
        samplers = self._spec.samplers.values()
        kinds = (_samplers.Prioritized, _samplers.MaxPriority)
        return self._replay.max_priority(next((i for i, each in enumerate(samplers) if isinstance(each, kinds)), 0))

    # --- Files

    def save(self, path: str | os.PathLike[str]) -> Saved:
        """Brings the folder up to date, and makes it where there is none: what it has already is not written again.

        Others go on meanwhile, and rows that they add during the save may be in it or not. When the call returns, the
        rows are on the disk; when it raises, or the process is killed, the folder has what the last save left. OSError
        where the disk refuses, BlockingIOError while somebody else saves or loads there, or when all rows were
        overwritten meanwhile, again and again; FileExistsError for a folder of other files.
        """
        return _files.save(self._replay, path)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        capacity: int | None = None,
        *,
        sampler: _samplers.Sampler | None = None,
        samplers: Mapping[str, _samplers.Sampler] | None = None,
        limit: _samplers.RateLimit | Literal["saved"] | None = "saved",
        gamma: float | None = None,
        on_peer_death: Literal["saved"] | _spec.OnPeerDeath = "saved",
        chunk: int | None = None,
        streams: int = 1,
        arena: Arena | None = None,
        name: str | None = None,
        seed: int | None = None,
        **fixed: Any,
    ) -> ReplayBuffer:
        """A new buffer with the rows that were saved, their indices and their priorities.

        The newest where it is smaller. What is not given is as it was, but for the name: it has none. A `chunk` cannot
        be larger than it was; what rows are, `next`, `n_step` and `stack` stay: ValueError where they are given and
        differ. A `limit` goes on with its counts; for another one the rows count as added, and as drawn as often as
        they should; None is none. FileNotFoundError where nothing was saved; ValueError, with the file and the numbers,
        where any byte of a file is not as it was written. ValueError, too, if an empty buffer of the saved capacity
        takes more than 256 MiB plus 16 times the size of the files: pass `capacity` if you expect one so large.
        """
        if name is not None:
            names.check_name(name)
        files, streams = _files.open_files(path), positive("streams", streams)
        spec = _files.spec_of(files, path)
        _fixed.check(spec, fixed)
        spec = _files.changed(spec, sampler, samplers, limit, gamma, on_peer_death, fixed)
        room = _files.room_for(files, capacity, chunk, streams)
        self = cls.__new__(cls)
        with _files.naming(path):
            if capacity is None:
                _files.check_overhead(files, spec, room)
            self._make(spec, room, arena, None, seed)
        files.load_into(self._replay)
        if name is not None:
            self._note_given()
            self._name = names.create_name(name, REPLAY, self._replay.arena, self._replay.block)
        return self

    # --- Ends

    def clear(self) -> None:
        """All rows go. Their indices are never given again; writers go on, and what they add from then on is there."""
        self._replay.clear()

    def close(self) -> None:
        """Ends this object's part, its writers, and waits of other threads: ChannelClosed. May be called again."""
        core, self._open_core = self._open_core, None
        self._name, self._local = None, OwnWriter()
        if core is not None:
            core.close()
            _writers.close_all_of(core)
        _core.sweep_transfers()

    @property
    def closed(self) -> bool:
        """Whether `close` was called on this object."""
        return self._open_core is None

    def __enter__(self) -> ReplayBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _note_given(self) -> None:
        """Records that another process may have the buffer from now on."""
        if self._owner is not None:
            self._owner.give()

    def __reduce__(self) -> tuple[Any, ...]:
        core = self._replay
        self._note_given()
        return _open_buffer, (type(self), *handles.reduce_memory(core.arena, core.block, self._name))

    def __deepcopy__(self, _: object = None) -> ReplayBuffer:
        raise TypeError("a replay buffer is not copied: others get the same one, save() and load() make another")

    __copy__ = __deepcopy__

    def __repr__(self) -> str:
        if self._open_core is None:
            return "<ReplayBuffer, closed>"
        return f"<ReplayBuffer of {self.capacity} rows>"


def _open_buffer(cls: type[ReplayBuffer], handle: bytes, inheritance: Any) -> ReplayBuffer:
    return handles.open_memory(handle, inheritance, cls._opened)
