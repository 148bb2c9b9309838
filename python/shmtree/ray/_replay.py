"""Replay buffers with a shard on each node."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from .. import replay
from .._ipc.arguments import one_of, seconds
from .._process import lifetime
from ..errors import ChannelClosed
from ..replay import Batch, Prioritized, Sampler, Saved, SequenceBatch, VectorWriter, Writer, _fixed
from ..replay._numbers import not_negative, positive, seed_of, whole
from ..replay._places import Room, updates
from ..replay._spec import OnPeerDeath, Padding, peer_death
from . import _merged, _parts, _prefetch
from ._cluster import Cluster, find
from ._deaths import PeerDied
from ._ends import new_token
from ._shard_files import Loading

_PAUSE_S = 0.05


class _Place(NamedTuple):
    """What every object of one buffer knows of it."""

    number: int
    home: str  # node
    plan: _parts.Plan
    on_peer_death: OnPeerDeath
    buffer: int  # the number of the first that it was loaded from, or its own


class ReplayBuffer:
    """`shmtree.replay.ReplayBuffer` for all nodes of a cluster: each node that adds has a shard in its shared memory.

    Rows are added to the shard of the node, at the speed of a buffer there: nobody waits for the network. A draw takes
    of each shard as many rows as its weight in all says, so that probabilities and weights are those of one buffer;
    only the rows that were drawn travel. Rows that were added elsewhere in the last 0.2 s, or to the first shard of a
    node in the last second, may not be weighed yet. It pickles: as an argument of tasks and actors, and in messages.

    Args:
        capacity: rows of each shard. Or, in place of it, `max_bytes`: of each shard.
        home: the node that knows which nodes have shards: the handle of an actor, or the id of a node; None is this.
        on_peer_death: "wait": rows of a node that is gone are missed by nobody. "raise": the next draw of each object
            raises `shmtree.ray.PeerDied`, once for each such node; those after it draw from the others.
        seed: of this object's choices, and of the shards' draws; None for other ones each time.
        example, columns, next, n_step, gamma, stack, stack_padding, reward, done, sampler, samplers, chunk, streams: as
            of `shmtree.replay.ReplayBuffer`; it is checked here that such a shard can be. Samplers are `Uniform` and
            `Prioritized`, without `max_times`: nobody knows an order of the rows of all nodes. Nor is there a `limit`.
    """

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
        stack_padding: Padding = "zeros",
        reward: str | None = "reward",
        done: str | None = "done",
        sampler: Sampler | None = None,
        samplers: Mapping[str, Sampler] | None = None,
        chunk: int | None = None,
        streams: int = 1,
        on_peer_death: OnPeerDeath = "wait",
        home: Any = None,
        seed: int | None = None,
    ) -> None:
        from . import _actors

        rows: dict[str, Any] = {"example": example, "columns": columns, "reward": reward, "done": done}
        drawn: dict[str, Any] = {
            "next": next,
            "n_step": n_step,
            "gamma": gamma,
            "stack": stack,
            "stack_padding": stack_padding,
        }
        room: dict[str, Any] = {"max_bytes": max_bytes, "chunk": chunk, "streams": streams}
        with replay.ReplayBuffer(capacity, sampler=sampler, samplers=samplers, **rows, **drawn, **room) as like:
            _parts.check_samplers(like._spec.samplers)
            seeded = None if seed is None else seed_of(seed)
            plan = _parts.Plan(like._spec, Room(like.capacity, None, like.chunk, streams), seeded)
        node = _actors.node_of(home)
        number = new_token()
        self._begin(_Place(number, node, plan, peer_death(on_peer_death), number), seeded)

    def _begin(self, place: _Place, seed: int | None) -> None:
        from . import _shard_actors

        _shard_actors.call(place.home, "host", place.number)
        self._become(place, seed)

    def _become(self, place: _Place, seed: int | None) -> None:
        self._place = place
        self._spec = place.plan.spec
        self._data = self._spec.data()
        self._random = np.random.default_rng(seed)
        self._choosing = lifetime.lock_in(self, "_choosing")
        self._told: set[str] = set()  # nodes whose loss was raised
        self._open_cluster: Cluster | None = Cluster(place.number, place.home, place.plan)

    @property
    def _cluster(self) -> Cluster:
        cluster = self._open_cluster
        if cluster is None:
            raise ChannelClosed("this replay buffer was closed in this process")
        return cluster

    # --- Adding

    def writer(self) -> Writer:
        """A new stream of rows in this node's shard. What its methods return are indices there, not of this buffer."""
        return self._cluster.own().buffer.writer()

    def vector_writer(self, n: int, *, autoreset: Any = None) -> VectorWriter:
        """n new streams of rows in this node's shard, which are added to at once. Its indices are those there."""
        return self._cluster.own().buffer.vector_writer(n, autoreset=autoreset)

    def add(self, row: Any, *, final: Any = None, priority: float | None = None, timeout: float | None = None) -> int:
        """Adds a row to this node's shard, and returns its index. As `shmtree.replay.ReplayBuffer.add`."""
        own = self._cluster.own()
        index: int = _merged.global_index(own.id, own.buffer.add(row, final=final, priority=priority, timeout=timeout))
        return index

    def end(self, *, final: Any = None, truncated: bool = False, timeout: float | None = None) -> None:
        """Ends the episode in that stream. As `shmtree.replay.Writer.end`."""
        self._cluster.own().buffer.end(final=final, truncated=truncated, timeout=timeout)

    def extend(self, rows: Any, **terms: Any) -> np.ndarray[Any, Any]:
        """Adds many rows, in that stream, and returns their indices. As `shmtree.replay.Writer.extend`."""
        own = self._cluster.own()
        index: np.ndarray[Any, Any] = _merged.global_index(own.id, own.buffer.extend(rows, **terms))
        return index

    # --- Drawing

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
        """Draws n rows of all shards. Waits for the first one: ``queue.Empty`` after `timeout` seconds (None: never).

        The arguments are those of `shmtree.replay.ReplayBuffer.sample`. Without `replace`, a sampler with priorities
        takes of each shard by the weights before the draw.
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
        """Draws n sequences, each of one shard. As `sample`, with the arguments of the same of
        `shmtree.replay.ReplayBuffer`; with ``partial="refuse"`` shards count by their rows, also by those that begin
        none that is as long.
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
        """Draws again and again; as `sample`. With `prefetch` so many draws are made ahead, by a thread: they do not
        have priorities that are updated meanwhile.
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
        deadline = None if timeout is None else time.monotonic() + seconds("timeout", timeout)
        how = {"beta": self._beta(table, beta), "of_buffer": of_buffer}
        without: set[int] = set()  # shards that had no such rows
        while True:
            known = self._cluster.weights(table, of_buffer, fresh=not terms.replace or bool(without))
            self._tell_of_lost()
            known = {shard: each for shard, each in known.items() if each.total > 0 and shard not in without}
            rows = sum(each.rows for each in known.values())
            if not terms.replace and not without and 0 < rows < n:
                raise ValueError(f"n is {n}, and there are {rows} rows to draw without repetition")
            if not known or (not terms.replace and rows < n):
                without.clear()
                self._wait(deadline, stop)
                continue
            with self._choosing:
                who = _merged.choose(self._random, known, n, terms.replace)
            counts = dict(zip(*(each.tolist() for each in np.unique(who, return_counts=True)), strict=True))
            parts = self._cluster.draw(counts, terms, table)
            if len(parts) == len(counts):
                return _merged.merge(self._spec, self._data, who, parts, known, **how)
            without |= counts.keys() - parts.keys()

    def _beta(self, table: int, beta: float | None) -> float:
        sampler = list(self._spec.samplers.values())[max(table, 0)]
        if table < 0 or not isinstance(sampler, Prioritized):
            return 0.0  # every row is as likely
        return sampler.beta if beta is None else not_negative("beta", beta)

    def _wait(self, deadline: float | None, stop: threading.Event | None) -> None:
        left = _PAUSE_S if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise queue.Empty
        if stop is None:
            time.sleep(min(left, _PAUSE_S))
        elif stop.wait(min(left, _PAUSE_S)):
            raise ChannelClosed("nobody wants these batches any more")

    def _tell_of_lost(self) -> None:
        if self._place.on_peer_death == "raise" and (news := self._cluster.lost - self._told):
            self._told |= news
            raise PeerDied((node, 0) for node in sorted(news))

    # --- Priorities

    def update_priorities(self, index: Any, priority: Any, *, sampler: str | None = None) -> np.ndarray[Any, Any]:
        """Gives rows new priorities by their indices, each in its shard, by one call a shard.

        As of `shmtree.replay.ReplayBuffer`: the mask is False where the row was overwritten meanwhile, or its node is
        gone. ValueError, and nothing is changed, for a priority that is negative or not finite.
        """
        indices, priorities = updates(index, priority)
        if sampler is not None:
            self._spec.table(sampler)
        flat, given = indices.ravel(), priorities.ravel()
        wrong = ~(np.isfinite(given) & (given >= 0))
        if wrong.any():
            raise ValueError(f"priority has {given[wrong][0]}; priorities are finite and not negative")
        shards = _merged.shards_of(flat)
        if (shards == 0).any():
            raise ValueError(f"index has {flat[shards == 0][0]}, which was never given")
        mask = np.zeros(flat.shape, np.bool_)
        places = {int(shard): np.flatnonzero(shards == shard) for shard in np.unique(shards)}
        asked = {shard: (_merged.local_index(flat[at]), given[at]) for shard, at in places.items()}
        for shard, applied in self._cluster.update(asked, sampler).items():
            mask[places[shard]] = applied
        shaped: np.ndarray[Any, Any] = mask.reshape(indices.shape)
        return shaped

    # --- All shards

    def __len__(self) -> int:
        """Rows that can be drawn, of all shards."""
        return sum(each.rows for each in self._cluster.weights(-1, False, fresh=True).values())

    def __bool__(self) -> bool:
        return True

    def stats(self) -> dict[str, Any]:
        """rows, capacity, max_bytes and added, of all shards together; shards: by node, all that
        `shmtree.replay.ReplayBuffer.stats` says of each; lost: the nodes that are gone, as far as this object met them.
        """
        shards = self._cluster.ask_all("stats")
        sums = {key: sum(each[key] for each in shards.values()) for key in ("rows", "capacity", "max_bytes", "added")}
        return {**sums, "shards": shards, "lost": sorted(self._cluster.lost)}

    def save(self, path: str | os.PathLike[str]) -> Saved:
        """Saves each shard on its node, below this folder; `load` reads them. Sums of what each says; `save` is the
        largest number. OSError where a disk refuses.
        """
        done = self._cluster.save(os.path.abspath(path), self._place.buffer)
        number = max((each.save for each in done), default=0)
        return Saved(number, *(sum(each[field] for each in done) for field in (1, 2, 3)))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        capacity: int | None = None,
        *,
        sampler: Sampler | None = None,
        samplers: Mapping[str, Sampler] | None = None,
        gamma: float | None = None,
        chunk: int | None = None,
        streams: int = 1,
        on_peer_death: OnPeerDeath = "wait",
        home: Any = None,
        seed: int | None = None,
        missing_ok: bool = False,
        **fixed: Any,
    ) -> ReplayBuffer:
        """A new buffer of what `save` wrote, whose shards keep their numbers, and so all rows their indices.

        Each shard is loaded by one node that sees its folder, on a disk of its own or one that nodes share; there must
        be as many such nodes as shards. The arguments are those of `shmtree.replay.ReplayBuffer.load`, of each shard,
        and of this class. FileNotFoundError when no node sees a shard; ValueError when there is no node for one, when
        one of the last save is on none (unless `missing_ok`), when they are of different buffers, or when a file is not
        as it was written: nothing is loaded then.
        """
        from . import _actors

        seeded = None if seed is None else seed_of(seed)
        how = Loading(capacity, sampler, samplers, gamma, chunk, positive("streams", streams), seeded)
        node, dies = _actors.node_of(home), peer_death(on_peer_death)
        nodes, plan, buffer = find(os.path.abspath(path), how, bool(missing_ok))
        _fixed.check(plan.spec, fixed)
        _parts.check_samplers(plan.spec.samplers)
        made = cls.__new__(cls)
        number = new_token()
        made._begin(_Place(number, node, plan, dies, number if buffer is None else buffer), seeded)
        made._cluster.load(nodes, os.path.abspath(path), how)
        return made

    def clear(self) -> None:
        """All rows go, of all shards. Writers go on."""
        self._cluster.ask_all("clear")
        self._cluster.forget_weights()

    def shutdown(self) -> None:
        """The end of the buffer: all shards go, and who uses it afterwards gets ChannelClosed.

        Processes that have the shard of their node open keep its memory until they close it.
        """
        if not self.closed:
            self._cluster.shutdown()
            self.close()

    def close(self) -> None:
        """Ends this object's part, and its writers. The shards stay, until `shutdown` or the job's end. May be called
        again.
        """
        cluster, self._open_cluster = self._open_cluster, None
        if cluster is not None:
            cluster.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called on this object."""
        return self._open_cluster is None

    def __enter__(self) -> ReplayBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self.closed:
            raise ChannelClosed("a replay buffer that was closed cannot be handed to another process")
        return _arrive, (self._place,)

    def __repr__(self) -> str:
        return "<ReplayBuffer over Ray, closed>" if self.closed else "<ReplayBuffer over Ray>"


def _arrive(place: _Place) -> ReplayBuffer:
    made = ReplayBuffer.__new__(ReplayBuffer)
    made._become(place, None)
    return made
