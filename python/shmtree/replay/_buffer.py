"""The class ReplayBuffer."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import numpy as np

from .. import _core
from .._codec.whole_files import AnyPath
from .._ipc.arena import Arena
from .._ipc.arguments import core_of, one_of
from .._process import handles, names
from .._process.names import REPLAY, open_name
from ..errors import ChannelClosed
from . import _endless_waits, _files, _load_arguments, _memory, _options, _rows, _samplers, _sampling, _spec, _writers
from ._batch import Batch, SequenceBatch
from ._files import Saved
from ._hindsight import Hindsight
from ._loader import Loader
from ._numbers import positive
from ._options import Episodes, Limits, Sampling
from ._stats import ReplayStats, Stats
from ._writers import OwnWriter, VectorWriter, Writer

_MAX_STREAMS = 1 << 20  # streams of a vector


class ReplayBuffer:
    """Rows in shared memory that many processes add and sample. When it is full, the oldest rows are dropped.

    You can pass it to other processes as an argument, in messages of channels, and by its name. It lives as long as any
    process has it. A row can be sampled once it is added. If the buffer has `Episodes.next` or `Episodes.n_step`, a row
    can be sampled once the later rows that it needs are added, or its episode has ended.

    Args:
        capacity: Number of rows. Give either this or `max_bytes`.
        example: A row, or one with the same structure: a pytree of dicts, lists and tuples with arrays (NumPy, torch)
            and numbers at the leaves. Python floats become float32, ints int64. Give either this or `columns`.
        columns: A pytree like a row with a ``(shape, dtype)`` at each leaf, or only a dtype for numbers.
        max_bytes: Size limit of the whole buffer in bytes.
        sampling: `Sampling` with the samplers, and the seed of this object. None: the defaults of `Sampling`.
        episodes: `Episodes` with the keys that end episodes, and what a batch has of other rows of an episode
            (successors, summed rewards, stacks). None: the defaults of `Episodes`.
        limits: `Limits` with a rate limit, the size of chunks, the number of writers, and `on_peer_death`. None: the
            defaults of `Limits`.
        arena: Arena for the buffer; None makes a new arena.
        name: Name under which the user's other processes find it with `ReplayBuffer.open`.
        exist_ok: If a buffer has this name already, opens that one with its rows.

    Raises:
        TypeError: Not exactly one of `example` and `columns`, or of `capacity` and `max_bytes`, is given. Also if
            `sampling`, `episodes` or `limits` is something else than its class; the error has the remedy.
        FileExistsError: The name is in use and `exist_ok` is False.
        ValueError: The buffer of that name was made with other arguments (`Sampling.seed` and `Limits.streams` do not
            count); the error has the differences. Also if rows lack a key of `episodes`, or if they have none of the
            keys ``done``, ``terminated`` and ``truncated``, unless ``Episodes(done=None)``, and the buffer has `next`,
            `n_step` or `stack`.

    Example::

        row = {"obs": np.zeros(8, np.float32), "action": 0, "reward": 0.0, "done": False}
        replay = shmtree.replay.ReplayBuffer(100_000, example=row)
        replay.add(row)              # in any number of processes
        batch = replay.sample(256)   # batch.data["obs"] has the shape (256, 8)
    """

    _loaders_made = 0
    _owner: _endless_waits.Owner | None = None  # None unless this object has made the buffer

    def __init__(
        self,
        capacity: int | None = None,
        *,
        example: Any = None,
        columns: Any = None,
        max_bytes: int | None = None,
        sampling: Sampling | None = None,
        episodes: Episodes | None = None,
        limits: Limits | None = None,
        arena: Arena | None = None,
        name: str | None = None,
        exist_ok: bool = False,
    ) -> None:
        if (example is None) == (columns is None):
            raise TypeError("pass either example= or columns=, not both or neither")
        if (capacity is None) == (max_bytes is None):
            raise TypeError("pass either a capacity in rows or max_bytes=, not both or neither")
        if name is not None:
            names.check_name(name)
        _options.check_classes(sampling, episodes, limits)
        sampling, limits = sampling or Sampling(), limits or Limits()
        rows = _rows.from_example(example) if columns is None else _rows.from_columns(columns)
        spec = _spec.make(rows, _samplers.named(sampling.sampler), episodes or Episodes(), limits)
        size = _memory.Size(capacity, max_bytes, limits.chunk, limits.streams)
        self._make(spec, size, arena, name, sampling.seed, exist_ok)

    def _make(
        self,
        spec: _spec.Spec,
        size: _memory.Size,
        arena: Arena | None,
        name: str | None,
        seed: int | None,
        exist_ok: bool = False,
    ) -> None:
        home = core_of(arena)
        core, of_name = _core.Replay.make(spec.core, *size.core(), home, name, exist_ok, spec.nests())
        self._become(spec, core, of_name)
        self._owner = _endless_waits.Owner(is_named=name is not None)
        if seed is not None:
            core.seed = seed

    def _become(self, spec: _spec.Spec, core: _core.Replay, name: _core.Name | None) -> None:
        self._spec = spec
        self._data = spec.data()
        self._open_core: _core.Replay | None = core
        self._name = name
        self._local = OwnWriter()
        self._stats = Stats()
        self._loaders: weakref.WeakSet[Loader] = weakref.WeakSet()

    @property
    def _replay(self) -> _core.Replay:
        core = self._open_core
        if core is None:
            raise ChannelClosed("this replay buffer was closed in this process")
        return core

    @classmethod
    def open(cls, name: str, timeout: float | None = 0.0) -> ReplayBuffer:
        """Opens the buffer of this name.

        Args:
            name: Name of the buffer.
            timeout: Seconds to wait for the name; None waits indefinitely.

        Raises:
            FileNotFoundError: There is no such name and `timeout` is 0.
            TimeoutError: There is still no such name after `timeout` seconds.
        """
        known = open_name(name, REPLAY, timeout)
        return cls._opened(known.arena, known.block, known)

    @classmethod
    def _opened(cls, arena: _core.Arena, block: int, name: _core.Name | None) -> ReplayBuffer:
        core = _core.Replay.open(arena, block, lambda core_spec: _spec.Spec(core_spec).nests())
        self = cls.__new__(cls)
        self._become(_spec.Spec(core.spec), core, name)
        return self

    @classmethod
    def _gone(cls) -> ReplayBuffer:
        """Returns a closed buffer, to represent a buffer that no process has any more."""
        self = cls.__new__(cls)
        self._open_core = self._name = None
        self._local = OwnWriter()
        return self

    @property
    def capacity(self) -> int:
        """Maximum number of rows."""
        return self._replay.capacity

    @property
    def chunk(self) -> int:
        """Number of rows that are dropped together."""
        return self._replay.chunk

    def __len__(self) -> int:
        """Returns the number of rows that can be sampled.

        With `stack`, a row no longer counts once the buffer has dropped earlier frames of its stack.
        """
        return self._replay.size()

    def __bool__(self) -> bool:
        return True

    # --- Adding

    def writer(self) -> Writer:
        """Makes a new stream of rows, such as that of one environment.

        Use it in a ``with`` block, which closes it. Set its `version` to the version of the weights that act.
        """
        writer = Writer._of(self._replay)
        if self.closed:  # closed meanwhile by another thread
            writer.close()
        return writer

    def vector_writer(self, n: int, *, autoreset: _writers.Autoreset | Any = None) -> VectorWriter:
        """Makes n new streams, to which one call adds n rows, such as those of n environments.

        Args:
            n: Number of streams.
            autoreset: When the environments begin a new episode: "next_step", "same_step", or the value that Gymnasium
                has in ``environments.metadata["autoreset_mode"]``. With "next_step", the step after the end of an
                episode is not a real step, and the writer skips its row. None: `reset` of `VectorWriter.add` names the
                rows that are not steps.
        """
        mode = _writers.autoreset_of(autoreset)
        return VectorWriter._of(tuple(self.writer() for _ in range(positive("n", n, _MAX_STREAMS))), mode)

    @property
    def _own_writer(self) -> Writer:
        """The writer of the calling thread."""
        try:
            return self._local.writer
        except AttributeError:
            writer = self._local.writer = self.writer()
            return writer

    def add(self, row: Any, *, final: Any = None, priority: float | None = None, timeout: float | None = None) -> int:
        """Adds a row to the stream of this process and thread, as `Writer.add` does.

        A true leaf `terminated`, `truncated` or `done` ends the episode.

        Args:
            row: A pytree with the structure of the buffer's rows. Each leaf has the shape of its column, and a dtype
                that casts to the column's with 'same_kind'.
            final: Observation after this row, a pytree of the leaves that the buffer has as `next`. It is used only if
                the row ends its episode. With `next`, a truncated row needs it, here or in `end`.
            priority: Priority of the row in all samplers that have priorities; None takes the largest one so far.
            timeout: Seconds to wait for samplers, if the buffer has a `limit`, and for memory; None waits indefinitely.

        Returns:
            The index of the row, an int.

        Raises:
            ValueError: A leaf is missing, unknown or of another shape (the text names it), or the last truncated row
                still needs its `final`. Nothing is added.
            queue.Full: The `limit` does not allow the row, or the arena has no memory, after `timeout` seconds.
            TimeoutError: A stopped process held a lock for `timeout` seconds; the error names it.
            shmtree.PeerDied: The call waits for samplers, some died or failed, none is left, and the buffer was made
                with ``on_peer_death="raise"``.

        Example::

            buffer.add({"obs": obs, "action": action, "reward": reward, "done": done})
        """
        try:
            writer = self._local.writer
        except AttributeError:
            writer = self._own_writer
        return writer.add(row, final=final, priority=priority, timeout=timeout)

    def end(self, *, final: Any = None, truncated: bool = False, timeout: float | None = None) -> None:
        """Ends the episode in that stream. See `Writer.end`."""
        self._own_writer.end(final=final, truncated=truncated, timeout=timeout)

    def extend(
        self, rows: Any, *, ends: Any = None, final: Any = None, priority: Any = None, timeout: float | None = None
    ) -> np.ndarray[Any, Any]:
        """Adds many rows to that stream. See `Writer.extend`.

        Returns:
            The indices of the rows, an int64 array of shape (n,).
        """
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
        hindsight: Hindsight | None = None,
    ) -> Batch:
        """Samples n rows. Blocks until there is a row.

        Args:
            n: Number of rows.
            sampler: Name of the sampler; None is the first one.
            replace: True if a row may be sampled several times.
            out: Contiguous arrays (or tensors) to copy into: a pytree like `Batch.data`, with shape (n, ...) at each
                leaf. Or "arena": new arrays in the buffer's arena, which a channel of that arena sends without a copy.
            threads: Maximum number of threads that copy.
            beta: Exponent of the weights, in place of the sampler's.
            weights: Scope in which the largest possible `Batch.weight` is 1: that of the least likely row of the
                "batch", or of the whole "buffer".
            timeout: Seconds to wait; None waits indefinitely.
            hindsight: `Hindsight` that replaces the goals of some rows; None keeps all of them.

        Returns:
            A Batch. Each leaf of its `data` is an array of shape (n, ...).

        Raises:
            queue.Empty: There was no row for `timeout` seconds.
            shmtree.PeerDied: With ``on_peer_death="raise"``: no writer is left, and some were killed.
            ValueError: With ``replace=False``: `n` is more than the number of rows. With `hindsight`: the buffer lacks
                what it needs (the error says what), or its function did not return one reward per relabelled row.
            RuntimeError: A wait without a timeout could never end, because only the calling thread could add rows. This
                is so if this process made the buffer, without a name, has neither sent it nor forked since, and has no
                other thread.

        Example::

            batch = buffer.sample(256, timeout=60)
            loss = train(batch.data["obs"], batch.data["reward"], batch.weight)
        """
        terms = (replace, out, threads, beta, weights, timeout)
        return _sampling.sample(self, n, sampler, hindsight, terms)

    def batches(self, n: int, **options: Any) -> Iterator[Batch]:
        """Yields batches without end; see `sample` for the arguments."""
        while True:
            yield self.sample(n, **options)

    def sample_sequences(
        self,
        n: int,
        length: int,
        *,
        burn_in: int = 0,
        stored_state: str | Iterable[str] = (),
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
        """Samples n sequences: a row and those after it in its episode, `length` in all.

        Blocks like `sample`, and raises the same errors. Arrays of the batch have the shape (n, burn_in + length, ...).

        Args:
            n: Number of sequences.
            length: Number of rows in a sequence, without the burn-in.
            burn_in: Number of rows before the chosen row, from which a recurrent network computes its state (R2D2). The
                chosen row is at position `burn_in`, and `SequenceBatch.mask` is false before the start of its episode,
                and for earlier rows that were overwritten.
            stored_state: Keys of rows with the state that the network had before the row. `SequenceBatch.stored_state`
                has their values for the first row of each sequence, which is the first one of its burn-in.
            stride: Distance between two rows of a sequence: 2 takes every other row.
            partial: "pad": sequences are shorter, and padded with zeros, where the episode ends or its rows are not
                there yet. "refuse": samples only sequences of `length` rows; their burn-in may be shorter.
            sampler: Name of the sampler that chooses rows; None chooses all rows with equal probability.
            replace: True if several sequences may have the same chosen row.
            out: See `sample`; the shape is (n, burn_in + length, ...).
            threads, beta, weights: See `sample`; all rows of a sequence have the weight of the chosen one.
            timeout: Seconds to wait; None waits indefinitely.

        Raises:
            ValueError: The buffer does not know where episodes end: its rows have no key ``terminated``, ``truncated``
                or ``done``, and it was not made with ``Episodes(done=None)``. Also if rows lack a key of
                `stored_state`.

        Example::

            batch = buffer.sample_sequences(64, 80, burn_in=40, stored_state="hidden", sampler="per")
            buffer.update_priorities(batch.index[:, 40], priorities)
        """
        one_of("partial", partial, "pad", "refuse")
        terms = (replace, out, threads, beta, weights, timeout)
        batch = _sampling.sample_sequences(self, n, length, stride, partial, burn_in, sampler, terms)
        if stored_state:
            _sampling.set_stored_state(batch, stored_state)
        return batch

    def sample_episodes(
        self,
        n: int,
        length: int,
        *,
        replace: bool = True,
        out: Any = None,
        threads: int = 1,
        timeout: float | None = None,
    ) -> SequenceBatch:
        """Samples n whole episodes, which have ended, all with the same probability.

        Blocks until there is such an episode, and raises the errors of `sample_sequences`. It looks at every chunk of
        the buffer, so it takes longer for a buffer with more rows.

        Args:
            n: Number of episodes.
            length: Maximum number of rows of an episode. Longer episodes, and those that have lost their first rows,
                are not sampled. Arrays of the batch have the shape (n, length, ...), with zeros where
                `SequenceBatch.mask` is false.
            replace: True if an episode may be sampled several times.
            out, threads: See `sample_sequences`.
            timeout: Seconds to wait; None waits indefinitely.

        Raises:
            ValueError: With ``replace=False``: `n` is more than the number of such episodes.
            queue.Empty: There was no such episode for `timeout` seconds.
        """
        terms = (replace, out, threads, None, "batch", timeout)
        return _sampling.sample_sequences(self, n, length, 1, "whole", 0, None, terms)

    def loader(
        self,
        batch_size: int,
        *,
        device: Any = None,
        prefetch: int = 2,
        length: int | None = None,
        episodes: bool = False,
        seed: int | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> Loader:
        """Returns an iterator of batches that a thread samples ahead, while your program trains.

        Close it, or use it in a ``with`` block. It also ends with its last reference, this buffer and the process.

        Args:
            batch_size: Number of rows, sequences or episodes of a batch.
            device: A torch device, or its name: each batch is a `TensorBatch`. On the CPU, its tensors share the memory
                of the arrays. With CUDA, the thread copies the batch to pinned memory, and from there to the device in
                a stream of its own. None: each batch is a `Batch`.
            prefetch: Maximum number of batches that are sampled ahead. They count as sampled under `Limits.rate` and
                for `max_times`, and do not see later priorities.
            length: Samples sequences of that length, as `sample_sequences`. None: samples rows, as `sample`.
            episodes: Samples whole episodes of at most `length` rows, as `sample_episodes`.
            seed: Seed of the samples; None derives one from this object's.
            timeout: Seconds that ``next`` waits for a batch; None waits indefinitely.
            options: Other arguments of `sample`, `sample_sequences` or `sample_episodes`.

        Raises:
            TypeError: An option is unknown, or `out` is not "arena": a batch would overwrite earlier ones.
            ValueError: `prefetch` is not positive.

        Example::

            with buffer.loader(256, device="cuda") as batches:
                for batch in batches:
                    errors = train(batch.data, batch.weight)
                    buffer.update_priorities(batch.index, errors)
        """
        if episodes and length is None:
            raise TypeError("episodes=True needs length=, the maximum number of rows of an episode")
        kind = "sample" if length is None else "sample_episodes" if episodes else "sample_sequences"
        front = (batch_size,) if length is None else (batch_size, length)
        return Loader._of(self, kind, front, options, device, positive("prefetch", prefetch), seed, timeout)

    def stats(self) -> ReplayStats:
        """Returns numbers of the buffer, over all processes unless stated otherwise.

        Returns:
            A dict with these keys.

            - Sizes: rows (that can be sampled, as `len`), capacity, chunk (rows), row_bytes, max_bytes (of all rows of
              a full buffer), chunks (that exist now), chunks_opened (so far).
            - added: rows and last observations. A chunk that its writer left incomplete counts as full once it is
              dropped. This and the next two count since the buffer, or the one that it was loaded from, was made.
            - samples: rows or sequences, by the sampler's name.
            - samples_per_insert: all samples / added.
            - With `Limits.rate`: inserted and sampled, the counts of the limit since the last `clear`.
            - waiting: process ids that are blocked now, by "add" (until others sample, because of the limit) and
              "sample" (until others add).
            - added_per_s, sampled_per_s: rates since the last call on this object.
            - drawn: number of rows that this object sampled since the last call. The following values are about these
              rows, and 0.0 if there were none.
            - age_mean, age_max: rows added since, as `Batch.age`.
            - version_lag_mean, version_lag_max: distance of their `Writer.version` from the largest one that this
              object has seen.
        """
        return self._stats.of(self._replay, self._spec)

    # --- Priorities

    def update_priorities(self, index: Any, priority: Any, *, sampler: str | None = None) -> np.ndarray[Any, Any]:
        """Sets new priorities of rows, in all samplers with priorities, or in one.

        Args:
            index: Indices of rows, as an array or tensor, also on a device; -1 stands for no row. If an index is
                repeated, the last one counts.
            priority: Priorities of the same shape.
            sampler: Name of the sampler; None means all of them.

        Returns:
            A bool array of that shape, False for rows that were overwritten meanwhile, and for -1.

        Raises:
            ValueError: A priority is negative, not finite or too large, or an index was never used. Nothing is changed.
        """
        indices, priorities = _memory.updates(index, priority)
        table = -1 if sampler is None else self._spec.table(sampler)
        applied = self._replay.update(table, indices.ravel(), priorities.ravel())
        mask: np.ndarray[Any, Any] = applied.reshape(indices.shape)
        return mask

    @property
    def max_priority(self) -> float:
        """Largest priority so far, 1.0 at first. Rows that are added without a priority get it."""
        samplers = self._spec.samplers.values()
        kinds = (_samplers.Prioritized, _samplers.MaxPriority)
        return self._replay.max_priority(next((i for i, each in enumerate(samplers) if isinstance(each, kinds)), 0))

    # --- Files

    def save(self, path: AnyPath, *, progress: Callable[[int, int], object] | None = None) -> Saved:
        """Writes the rows to a folder, which it makes if necessary.

        Rows that the folder has already are not written again.

        Other processes continue meanwhile; the folder may or may not contain the rows that they add during the save.
        When the call returns, the rows are on the disk. If it raises or the process is killed, the folder has the state
        of the previous save.

        Args:
            path: The folder.
            progress: The calling thread calls ``progress(done_bytes, total_bytes)`` at the start with 0, at most every
                50 ms, and at the end with `done_bytes` equal to `total_bytes`. `total_bytes` is at least 1. It grows if
                rows are overwritten during the save, and others are saved instead. If the function raises, the save
                ends without effect, and `save` raises that exception.

        Returns:
            A `Saved` with the number of the save, and how much it wrote.

        Raises:
            OSError: The disk has an error or is full.
            BlockingIOError: Another process saves or loads there, or all rows were overwritten meanwhile, repeatedly.
            FileExistsError: The folder has other files.
        """
        return _files.save(self._replay, path, progress)

    @classmethod
    def load(
        cls,
        path: AnyPath,
        capacity: int | None = None,
        *,
        example: Any = None,
        columns: Any = None,
        sampling: Sampling | None = None,
        episodes: Episodes | None = None,
        limits: Limits | None = None,
        arena: Arena | None = None,
        name: str | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> ReplayBuffer:
        """Makes a buffer with the saved rows, their indices and their priorities.

        A smaller buffer gets the newest rows. Without arguments, the new buffer has the saved options, but no name.
        `limits` replaces all saved limits: pass those that you want to keep, too.

        Args:
            path: Folder of `save`.
            capacity: Number of rows. Pass it if you expect a large buffer with few rows, see ValueError.
            example, columns: Rows as in the class, to check that the saved ones are the same.
            sampling: Replaces the saved samplers, unless it has none.
            episodes: Has to equal the saved options, except `Episodes.gamma`, which replaces the saved one.
            limits: Replaces the saved limits. With the same `Limits.rate`, its counts continue. With another one, the
                rows count as added, and as sampled as often as that rate requires. `Limits.chunk` must be at most the
                saved one; None chooses it.
            arena, name: See the class.
            progress: A function like that of `save`, with the bytes read and the size of the files. If it raises, the
                new buffer is freed, and `load` raises that exception.

        Raises:
            FileNotFoundError: The folder has no saved buffer.
            FileExistsError: Another object has the name.
            TypeError: `sampling`, `episodes` or `limits` is something else than its class.
            ValueError: A byte of a file is not as it was written (the error has the file and the numbers), or
                `example`, `columns` or `episodes` differs from the saved buffer. Also if an empty buffer of the saved
                capacity takes more than 256 MiB plus 16 times the size of the files.

        Example::

            replay.save("checkpoint")
            replay = shmtree.replay.ReplayBuffer.load("checkpoint")
        """
        if name is not None:
            names.check_free(name)
        _files.check_progress(progress)
        _options.check_classes(sampling, episodes, limits)
        files = _files.open_files(path)
        spec = _files.spec_of(files, path)
        _load_arguments.check(spec, example, columns, episodes)
        spec = spec.changed(sampling, episodes, limits)
        self = cls.__new__(cls)
        with _files.naming(path):
            asked = _files.size_of(capacity, limits)
            self._become(spec, files.make(spec.core, *asked, core_of(arena), spec.nests()), None)
        self._owner = _endless_waits.Owner(is_named=False)
        if sampling is not None and sampling.seed is not None:
            self._replay.seed = sampling.seed
        try:
            files.load_into(self._replay, progress)
            if name is not None:
                self._note_given()
                self._name = names.create_name(name, REPLAY, self._replay.arena, self._replay.block)
        except BaseException:
            self.close()
            del files  # the traceback would keep the lock of the folder
            raise
        return self

    # --- Ends

    def clear(self) -> None:
        """Drops all rows.

        Their indices are never used again. Writers stay open, and rows that they add later are stored.
        """
        self._replay.clear()

    def close(self) -> None:
        """Closes this object, its writers and loaders; waits of other threads raise ChannelClosed. Idempotent."""
        core, self._open_core = self._open_core, None
        self._name, self._local = None, OwnWriter()
        if core is not None:
            core.close()
            _writers.close_all_of(core)
            for loader in tuple(self._loaders):
                loader._fail(ChannelClosed("this replay buffer was closed in this process"))
        _core.sweep_transfers()

    @property
    def closed(self) -> bool:
        """True if `close` was called on this object."""
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
        raise TypeError(
            "a replay buffer cannot be copied; pass the buffer itself, or make another one by save() and load()"
        )

    __copy__ = __deepcopy__

    def __repr__(self) -> str:
        core = self._open_core
        return "<ReplayBuffer, closed>" if core is None else f"<ReplayBuffer, {core.size()} of {core.capacity} rows>"


def _open_buffer(cls: type[ReplayBuffer], handle: bytes, inheritance: Any) -> ReplayBuffer:
    return handles.open_memory(handle, inheritance, cls._opened)
