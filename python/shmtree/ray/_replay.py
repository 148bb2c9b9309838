"""Replay buffers with a shard on each node."""

from __future__ import annotations

import dataclasses
import os
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from .. import replay
from .._ipc.arguments import deadline_after, one_of
from .._process import lifetime
from ..errors import ChannelClosed
from ..replay import (
    Batch,
    Episodes,
    Limits,
    Prioritized,
    Sampling,
    Saved,
    SequenceBatch,
    VectorWriter,
    Writer,
    _load_arguments,
)
from ..replay._memory import Size, updates
from ..replay._numbers import not_negative, positive, whole
from ..replay._options import OnPeerDeath, check_classes
from . import _merged, _parts, _prefetch
from ._cluster import Cluster, find
from ._deaths import PeerDied
from ._ends import new_token
from ._shard_files import Loading

_PAUSE_S = 0.05


class _Place(NamedTuple):
    """Data of a buffer that every object of it has."""

    number: int
    home: str  # node id
    plan: _parts.Plan
    on_peer_death: OnPeerDeath
    buffer: int  # number of the first buffer that it was loaded from, or its own


class ReplayBuffer:
    """A `shmtree.replay.ReplayBuffer` for all nodes of a cluster.

    Each node that adds rows has a shard in its shared memory.

    `add` writes to the node's shard at the speed of a local buffer, without using the network. `sample` takes rows of
    each shard in proportion to its weight, so that probabilities and weights are those of one buffer. Only sampled rows
    are transferred. Rows that other nodes added in the last 0.2 s may not be included yet. For a node's
    new shard, this time is one second. A buffer can be pickled as an argument of tasks and actors, and in messages.

    Args:
        capacity: Number of rows of each shard. Give either this or `max_bytes`.
        max_bytes: Size limit of each shard in bytes.
        home: The node that stores the list of shards: the handle of an actor, or the id of a node; None is this node.
        example, columns, episodes: See `shmtree.replay.ReplayBuffer`. All options are checked at once.
        sampling: Samplers of all shards. They must be `Uniform` or `Prioritized` without `max_times`, because the rows
            of all nodes have no common order. `Sampling.seed` is for this object's choices and the shards' samples.
        limits: `Limits.chunk` and `Limits.streams` of each shard; `Limits.rate` is not available. With
            `Limits.on_peer_death` "wait" (default), rows of a lost node are ignored. With "raise", the next sample of
            each object raises `shmtree.ray.PeerDied`, once for each lost node; later ones use the other shards.

    Raises:
        TypeError: An option is missing, or has the wrong type.
        ValueError: A sampler is not available here, `limits` has a `rate`, or an option does not fit the rows.
    """

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
        home: Any = None,
    ) -> None:
        from . import _actors

        check_classes(sampling, episodes, limits)
        own_limits = _limits_of_shards(limits)
        options: dict[str, Any] = {"sampling": sampling, "episodes": episodes, "limits": own_limits}
        with replay.ReplayBuffer(capacity, example=example, columns=columns, max_bytes=max_bytes, **options) as like:
            _parts.check_samplers(like._spec.samplers)
            seeded = None if sampling is None else sampling.seed
            plan = _parts.Plan(like._spec, Size(like.capacity, None, like.chunk, own_limits.streams), seeded)
        node = _actors.node_of(home)
        number = new_token()
        self._begin(_Place(number, node, plan, _on_peer_death(limits), number), seeded)

    def _begin(self, place: _Place, seed: int | None) -> None:
        from . import _actors

        _actors.call(place.home, "replay", "host", place.number)
        self._become(place, seed)

    def _become(self, place: _Place, seed: int | None) -> None:
        self._place = place
        self._spec = place.plan.spec
        self._data = self._spec.data()
        self._random = np.random.default_rng(seed)
        self._choosing = lifetime.lock_in(self, "_choosing")
        self._told: set[str] = set()  # lost nodes that were reported by an error
        self._open_cluster: Cluster | None = Cluster(place.number, place.home, place.plan)

    @property
    def _cluster(self) -> Cluster:
        cluster = self._open_cluster
        if cluster is None:
            raise ChannelClosed("this replay buffer was closed in this process")
        return cluster

    # --- Adding

    def writer(self) -> Writer:
        """Makes a new stream of rows in this node's shard.

        The writer's methods return indices of the shard, not of this buffer.
        """
        return self._cluster.own().buffer.writer()

    def vector_writer(self, n: int, *, autoreset: Any = None) -> VectorWriter:
        """Makes n new streams in this node's shard, and returns a writer that adds to all of them in one call.

        The writer's methods return indices of the shard, not of this buffer.

        Args:
            n: Number of streams.
            autoreset: See `shmtree.replay.ReplayBuffer.vector_writer`.
        """
        return self._cluster.own().buffer.vector_writer(n, autoreset=autoreset)

    def add(self, row: Any, *, final: Any = None, priority: float | None = None, timeout: float | None = None) -> int:
        """Adds a row to this node's shard. See `shmtree.replay.ReplayBuffer.add`.

        Returns:
            The index of the row in this buffer.
        """
        own = self._cluster.own()
        index: int = _merged.global_index(own.id, own.buffer.add(row, final=final, priority=priority, timeout=timeout))
        return index

    def end(self, *, final: Any = None, truncated: bool = False, timeout: float | None = None) -> None:
        """Ends the episode in that stream. See `shmtree.replay.Writer.end`."""
        self._cluster.own().buffer.end(final=final, truncated=truncated, timeout=timeout)

    def extend(self, rows: Any, **terms: Any) -> np.ndarray[Any, Any]:
        """Adds many rows to that stream. See `shmtree.replay.Writer.extend`.

        Returns:
            The indices of the rows in this buffer, an int64 array of shape (n,).
        """
        own = self._cluster.own()
        index: np.ndarray[Any, Any] = _merged.global_index(own.id, own.buffer.extend(rows, **terms))
        return index

    # --- Sampling

    def sample(
        self,
        n: int,
        *,
        sampler: str | None = None,
        replace: bool = True,
        beta: float | None = None,
        weights: Literal["batch", "buffer"] = "batch",
        timeout: float | None = None,
    ) -> Batch:
        """Samples n rows of all shards. Blocks until there is a row.

        With ``replace=False``, a sampler with priorities takes rows of each shard according to the weights before the
        sample.

        Args:
            n: Number of rows.
            sampler: Name of the sampler; None is the first one.
            replace: True if a row may be sampled several times.
            beta: Exponent of the weights, in place of the sampler's.
            weights: Scope in which the largest possible weight is 1; see `shmtree.replay.ReplayBuffer.sample`.
            timeout: Seconds to wait; None waits indefinitely.

        Raises:
            queue.Empty: There was no row for `timeout` seconds.
        """
        return self._sample(positive("n", n), _parts.Terms(sampler, bool(replace)), beta, weights, timeout, None)

    def sample_sequences(
        self,
        n: int,
        length: int,
        *,
        stride: int = 1,
        partial: Literal["pad", "refuse"] = "pad",
        sampler: str | None = None,
        replace: bool = True,
        beta: float | None = None,
        weights: Literal["batch", "buffer"] = "batch",
        timeout: float | None = None,
    ) -> SequenceBatch:
        """Samples n sequences, each from one shard.

        With ``partial="refuse"``, the weight of a shard also counts rows at which no complete sequence begins.

        Args:
            n: Number of sequences.
            length: Number of rows in a sequence.
            stride: Distance between two rows of a sequence: 2 takes every other row.
            partial: "pad" pads sequences with zeros, "refuse" samples only complete ones; see
                `shmtree.replay.ReplayBuffer.sample_sequences`.
            sampler: Name of the sampler of the first rows; None samples all rows with equal probability.
            replace: True if several sequences may begin with the same row.
            beta: Exponent of the weights, in place of the sampler's.
            weights: Scope in which the largest possible weight is 1.
            timeout: Seconds to wait; None waits indefinitely.

        Raises:
            queue.Empty: There was no row for `timeout` seconds.
        """
        stride, length = positive("stride", stride), positive("length", length)
        terms = _parts.Terms(sampler, bool(replace), length, stride, one_of("partial", partial, "pad", "refuse"))
        batch: Any = self._sample(positive("n", n), terms, beta, weights, timeout, None)
        return batch  # type: ignore[no-any-return]

    def batches(
        self,
        n: int,
        *,
        prefetch: int = 0,
        sampler: str | None = None,
        replace: bool = True,
        beta: float | None = None,
        weights: Literal["batch", "buffer"] = "batch",
        timeout: float | None = None,
    ) -> Iterator[Batch]:
        """Yields batches without end; see `sample` for the arguments.

        With `prefetch`, a thread samples that many batches in advance. They do not reflect priorities that are updated
        meanwhile.
        """
        count, terms = positive("n", n), _parts.Terms(sampler, bool(replace))

        def draw(stop: threading.Event) -> Batch:
            return self._sample(count, terms, beta, weights, timeout, stop)

        ahead = whole("prefetch", prefetch)
        yield from _prefetch.ahead(draw, ahead) if ahead else iter(lambda: draw(threading.Event()), None)

    def _sample(
        self,
        n: int,
        terms: _parts.Terms,
        beta: float | None,
        weights: str,
        timeout: float | None,
        stop: threading.Event | None,
    ) -> Batch:
        table = terms.table(self._spec)
        of_buffer = one_of("weights", weights, "batch", "buffer") == "buffer"
        deadline = deadline_after(timeout)
        how = {"beta": self._beta(table, beta), "of_buffer": of_buffer}
        without: set[int] = set()  # shards that had no such rows
        while True:
            known = self._cluster.weights(table, of_buffer, fresh=not terms.replace or bool(without))
            self._tell_of_lost()
            known = {shard: each for shard, each in known.items() if each.total > 0 and shard not in without}
            rows = sum(each.rows for each in known.values())
            if not terms.replace and not without and 0 < rows < n:
                raise ValueError(f"n is {n}, but only {rows} rows can be sampled without replacement")
            if not known or (not terms.replace and rows < n):
                without.clear()
                self._wait(deadline, stop)
                continue
            with self._choosing:
                shards = _merged.choose(self._random, known, n, terms.replace)
            counts = dict(zip(*(each.tolist() for each in np.unique(shards, return_counts=True)), strict=True))
            parts = self._cluster.draw(counts, terms, table)
            if len(parts) == len(counts):
                return _merged.merge(self._spec, self._data, shards, parts, known, **how)
            without |= counts.keys() - parts.keys()

    def _beta(self, table: int, beta: float | None) -> float:
        sampler = list(self._spec.samplers.values())[max(table, 0)]
        if table < 0 or not isinstance(sampler, Prioritized):
            return 0.0  # all rows are equally likely
        return sampler.beta if beta is None else not_negative("beta", beta)

    def _wait(self, deadline: float | None, stop: threading.Event | None) -> None:
        left = _PAUSE_S if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise queue.Empty
        if stop is None:
            time.sleep(min(left, _PAUSE_S))
        elif stop.wait(min(left, _PAUSE_S)):
            raise ChannelClosed("the iterator of these batches was closed")

    def _tell_of_lost(self) -> None:
        if self._place.on_peer_death == "raise" and (news := self._cluster.lost - self._told):
            self._told |= news
            raise PeerDied((node, 0) for node in sorted(news))

    # --- Priorities

    def update_priorities(self, index: Any, priority: Any, *, sampler: str | None = None) -> np.ndarray[Any, Any]:
        """Sets new priorities of rows, with one call per shard.

        Args:
            index: Indices of rows, as an array or tensor.
            priority: Priorities of the same shape.
            sampler: Name of the sampler; None means all of them.

        Returns:
            A bool array of that shape, False for rows that were overwritten meanwhile, and for rows of a lost node.

        Raises:
            ValueError: A priority is negative or not finite. Nothing is changed.
        """
        indices, priorities = updates(index, priority)
        if sampler is not None:
            self._spec.table(sampler)
        flat, given = indices.ravel(), priorities.ravel()
        wrong = ~(np.isfinite(given) & (given >= 0))
        if wrong.any():
            raise ValueError(f"priority has {given[wrong][0]}; it must be finite and not negative")
        shards = _merged.shards_of(flat)
        if (shards == 0).any():
            raise ValueError(f"index has {flat[shards == 0][0]}, which no batch or add() returned")
        mask = np.zeros(flat.shape, np.bool_)
        places = {int(shard): np.flatnonzero(shards == shard) for shard in np.unique(shards)}
        asked = {shard: (_merged.local_index(flat[at]), given[at]) for shard, at in places.items()}
        for shard, applied in self._cluster.update(asked, sampler).items():
            mask[places[shard]] = applied
        shaped: np.ndarray[Any, Any] = mask.reshape(indices.shape)
        return shaped

    # --- All shards

    def __len__(self) -> int:
        """Returns the number of rows in all shards that can be sampled."""
        return sum(each.rows for each in self._cluster.weights(-1, False, fresh=True).values())

    def __bool__(self) -> bool:
        return True

    def stats(self) -> dict[str, Any]:
        """Returns statistics of the buffer.

        Returns:
            A dict with rows, capacity, max_bytes and added, summed over all shards; `shards`, the result of
            `shmtree.replay.ReplayBuffer.stats` by node; and `lost`, the lost nodes that this object has detected.
        """
        shards = self._cluster.ask_all("stats")
        sums = {key: sum(each[key] for each in shards.values()) for key in ("rows", "capacity", "max_bytes", "added")}
        return {**sums, "shards": shards, "lost": sorted(self._cluster.lost)}

    def save(self, path: str | os.PathLike[str]) -> Saved:
        """Saves each shard on its node, for `load`.

        Args:
            path: Folder on each node, below which the shards have folders of their own.

        Returns:
            The sums over all shards, except `save`, which is the largest number of a save.

        Raises:
            OSError: A disk has an error or is full.
        """
        done = self._cluster.save(os.path.abspath(path), self._place.buffer)
        number = max((each.save for each in done), default=0)
        return Saved._make((number, *(sum(each[field] for each in done) for field in (1, 2, 3))))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        capacity: int | None = None,
        *,
        example: Any = None,
        columns: Any = None,
        sampling: Sampling | None = None,
        episodes: Episodes | None = None,
        limits: Limits | None = None,
        home: Any = None,
        missing_ok: bool = False,
    ) -> ReplayBuffer:
        """Makes a buffer from the folder of `save`. Shards keep their numbers, and so all rows keep their indices.

        One node loads each shard; it has to see the shard's folder, on its own disk or on a shared one. There must be
        at least as many such nodes as shards.

        Args:
            path: Folder of `save`.
            capacity: Number of rows of a shard; None takes the saved one.
            example, columns, sampling, episodes: See `shmtree.replay.ReplayBuffer.load`.
            limits, home: See the class. `Limits.chunk` must be at most the saved one.
            missing_ok: True accepts that a shard of the last save is missing.

        Raises:
            FileNotFoundError: No node sees a shard.
            TypeError: `sampling`, `episodes` or `limits` is something else than its class.
            ValueError: There is no node for a shard, or a shard of the last save is missing (unless `missing_ok`). Also
                if the shards belong to different buffers, or a file is not as it was written. Nothing is loaded.
        """
        from . import _actors

        check_classes(sampling, episodes, limits)
        seeded = None if sampling is None else sampling.seed
        how = Loading(capacity, sampling, episodes, None if limits is None else _limits_of_shards(limits))
        node, dies = _actors.node_of(home), _on_peer_death(limits)
        nodes, plan, buffer = find(os.path.abspath(path), how, bool(missing_ok))
        _load_arguments.check(plan.spec, example, columns, episodes)
        _parts.check_samplers(plan.spec.samplers)
        buffer_object = cls.__new__(cls)
        number = new_token()
        buffer_object._begin(_Place(number, node, plan, dies, number if buffer is None else buffer), seeded)
        buffer_object._cluster.load(nodes, os.path.abspath(path), how)
        return buffer_object

    def clear(self) -> None:
        """Drops all rows of all shards. Writers stay open."""
        self._cluster.ask_all("clear")
        self._cluster.forget_weights()

    def shutdown(self) -> None:
        """Ends the buffer: all shards are dropped, and later calls raise ChannelClosed.

        Processes that have the shard of their node open keep its memory until they close it.
        """
        if not self.closed:
            self._cluster.shutdown()
            self.close()

    def close(self) -> None:
        """Closes this object and its writers. The shards stay until `shutdown` or the end of the job. Idempotent."""
        cluster, self._open_cluster = self._open_cluster, None
        if cluster is not None:
            cluster.close()

    @property
    def closed(self) -> bool:
        """True if `close` was called on this object."""
        return self._open_cluster is None

    def __enter__(self) -> ReplayBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self.closed:
            raise ChannelClosed("a closed replay buffer cannot be handed to another process")
        return _arrive, (self._place,)

    def __repr__(self) -> str:
        return "<ReplayBuffer over Ray, closed>" if self.closed else "<ReplayBuffer over Ray>"


def _limits_of_shards(limits: Limits | None) -> Limits:
    """Returns the limits of each shard. Its own peers never wait for each other."""
    if limits is None:
        return Limits()
    if limits.rate is not None:
        raise ValueError(f"limits has rate={limits.rate!r}; a rate limit over several nodes is not available")
    return dataclasses.replace(limits, on_peer_death="wait")


def _on_peer_death(limits: Limits | None) -> OnPeerDeath:
    return "wait" if limits is None else limits.on_peer_death


def _arrive(place: _Place) -> ReplayBuffer:
    buffer = ReplayBuffer.__new__(ReplayBuffer)
    buffer._become(place, None)
    return buffer
