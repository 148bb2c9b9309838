"""cpprb's replay buffers in shared memory; to use them, change one import.

::

    from shmtree.replay.cpprb import MPPrioritizedReplayBuffer

Calls and results are those of cpprb 11. For a given seed of NumPy, the uniform buffers also draw the same rows. Any
number of processes may add to, sample and update each of the classes. `buffer.shared` is the
`shmtree.replay.ReplayBuffer` with the rows.

`next_of` and `stack_compress` save no memory here: rows are stored as you pass them. `Nstep` needs cpprb installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from .._public import claim_names
from ._cpprb_rows import PlacedPriorities, PlacedRows
from ._ring import Array

__all__ = [
    "HindsightReplayBuffer",
    "MPPrioritizedReplayBuffer",
    "MPReplayBuffer",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "create_buffer",
]

_BACKENDS = ("sharedctypes", "SharedMemory")
_FORMAT_VERSION = 1  # version of cpprb's file format


def _names(given: str | Iterable[str] | None) -> list[str]:
    return [given] if isinstance(given, str) else list(given or ())


class ReplayBuffer(PlacedRows):
    """`cpprb.ReplayBuffer`."""

    _nstep: Any = None  # cpprb's own NstepBuffer, of this process

    def __init__(
        self,
        size: int,
        env_dict: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        next_of: str | Iterable[str] | None = None,
        stack_compress: str | Iterable[str] | None = None,
        default_dtype: Any = None,
        Nstep: Any = None,
        mmap_prefix: str | None = None,
        **kwargs: Any,
    ) -> None:
        if mmap_prefix is not None:
            raise NotImplementedError(
                "mmap_prefix is not supported: rows are in shared memory; use save_transitions() to write a file"
            )
        env = {name: dict(spec) for name, spec in (env_dict or {}).items()}
        following = _names(next_of)
        if Nstep:
            self._nstep = _nstep_buffer(env, Nstep, default_dtype or np.single, following)
            following = []
        super().__init__(size, {**env, **{f"next_{name}": env[name] for name in following}}, default_dtype)
        self._counted = next(reversed(env), "")
        self._episode_steps = 0  # of this process

    def add(self, **kwargs: Any) -> int | None:
        rows = kwargs if self._nstep is None else self._nstep.add(**_own(kwargs))
        return None if rows is None else self._add(self._rows(rows), None)

    def _add(self, rows: dict[str, Array], priorities: Array | None) -> int:
        place = super()._add(rows, priorities)
        self._episode_steps += len(next(iter(rows.values())))
        return place

    def clear(self) -> None:
        super().clear()
        self._episode_steps = 0
        if self._nstep is not None:
            self._nstep.clear()

    def is_Nstep(self) -> bool:
        return self._nstep is not None

    def get_current_episode_len(self) -> int:
        """Number of steps that this process has added since its last `on_episode_end`."""
        return self._episode_steps

    def on_episode_end(self) -> None:
        if self._nstep is not None:
            self._add_rest(self._nstep.on_episode_end())
        self._episode_steps = 0

    def _add_rest(self, rest: Mapping[str, Any]) -> None:
        self._add(self._rows(rest), None)

    # --- Files

    def save_transitions(self, file: Any, *, safe: bool = True) -> None:
        """Writes all rows to a file in cpprb's format, which cpprb can read. `safe` has no effect."""
        about: dict[str, Any] = {"safe": True, "version": _FORMAT_VERSION, "Nstep": self.is_Nstep()}
        np.savez_compressed(file, **about, data=self.get_all_transitions(), cache=None, next_of=None)  # type: ignore[arg-type]

    def load_transitions(self, file: Any) -> None:
        """Adds the rows of a file that cpprb or `save_transitions` wrote.

        The file has pickles: load only files that you trust. Raises ValueError for a file of another version, and if
        only one of file and buffer has Nstep.
        """
        with np.load(file, allow_pickle=True) as saved:
            if bool(saved["Nstep"]) != self.is_Nstep():
                raise ValueError("Stored data and Buffer mismatch for Nstep")
            if saved["version"] != _FORMAT_VERSION:
                raise ValueError(f"Unknown Format Version: {saved['version']}")
            data = saved["data"][()]
            if not saved["safe"]:
                data = _decompressed(data, saved["cache"][()] or {}, _names(saved["next_of"][()]))
        self._add(self._rows(data), None)


class PrioritizedReplayBuffer(PlacedPriorities, ReplayBuffer):
    """`cpprb.PrioritizedReplayBuffer`."""

    def __init__(
        self,
        size: int,
        env_dict: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        alpha: float = 0.6,
        Nstep: Any = None,
        eps: float = 1e-4,
        check_for_update: bool = False,
        **kwargs: Any,
    ) -> None:
        self._alpha, self._eps, self._ignores_late = alpha, eps, check_for_update
        super().__init__(size, env_dict, Nstep=Nstep, **kwargs)
        self._nstep_priorities: Any = (
            _nstep_buffer({"priorities": {"dtype": np.single}, "done": {}}, {"size": Nstep["size"]}, np.single, [])
            if Nstep
            else None
        )

    def add(self, *, priorities: Any = None, **kwargs: Any) -> int | None:
        if self._nstep is None:
            return super().add(priorities=priorities, **kwargs)
        given = self._checked_priorities(priorities, kwargs)
        if given is None:
            given = np.full(len(self._steps_of(self._counted, kwargs)), self.get_max_priority(), np.single)
        summed = self._nstep_priorities.add(priorities=given, done=np.array(kwargs["done"], copy=True))
        rows = self._nstep.add(**_own(kwargs))
        return None if rows is None else self._add(self._rows(rows), np.ravel(summed["priorities"]))

    def _add_rest(self, rest: Mapping[str, Any]) -> None:
        priorities = np.ravel(self._nstep_priorities.on_episode_end()["priorities"])
        self._add(self._rows(rest), priorities)

    def clear(self) -> None:
        super().clear()
        if self._nstep_priorities is not None:
            self._nstep_priorities.clear()


class MPReplayBuffer(PlacedRows):
    """`cpprb.MPReplayBuffer`. Like the original, it ignores the options that only `ReplayBuffer` has."""

    def __init__(
        self,
        size: int,
        env_dict: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        default_dtype: Any = None,
        logger: Any = None,
        ctx: Any = None,
        backend: str = "sharedctypes",
        **kwargs: Any,
    ) -> None:
        if backend not in _BACKENDS:
            raise ValueError(f"Unknown backend: {backend}")
        super().__init__(size, env_dict or {}, default_dtype, ctx)


class MPPrioritizedReplayBuffer(PlacedPriorities, MPReplayBuffer):
    """`cpprb.MPPrioritizedReplayBuffer`. Ignores updates of rows that were added since the last `sample`."""

    def __init__(
        self,
        size: int,
        env_dict: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        alpha: float = 0.6,
        eps: float = 1e-4,
        ctx: Any = None,
        **kwargs: Any,
    ) -> None:
        self._alpha, self._eps = alpha, eps
        super().__init__(size, env_dict, ctx=ctx, **kwargs)


def create_buffer(
    size: int, env_dict: Mapping[str, Mapping[str, Any]] | None = None, *, prioritized: bool = False, **kwargs: Any
) -> ReplayBuffer:
    """Returns a `ReplayBuffer` or a `PrioritizedReplayBuffer`, like `cpprb.create_buffer`."""
    return (PrioritizedReplayBuffer if prioritized else ReplayBuffer)(size, env_dict, **kwargs)


class HindsightReplayBuffer:
    """`cpprb.HindsightReplayBuffer`. Any number of processes may add: each has an episode of its own.

    Like the original, it stores a copy of an episode for each additional goal. `rb.shared` is the
    `shmtree.replay.ReplayBuffer` with the rows.
    """

    def __init__(
        self,
        size: int,
        env_dict: Mapping[str, Mapping[str, Any]],
        max_episode_len: int,
        reward_func: Callable[[Any, Any, Any], Any],
        *,
        goal_func: Callable[[Any], Any] | None = None,
        goal_shape: Any = None,
        state: str = "obs",
        action: str = "act",
        next_state: str = "next_obs",
        strategy: str = "future",
        additional_goals: int = 4,
        prioritized: bool = True,
        **kwargs: Any,
    ) -> None:
        if strategy not in (known := ["future", "episode", "random", "final"]):
            raise ValueError(f"Unknown Strategy: {strategy}. Known Strategies: {known}")
        self.max_episode_len, self.reward_func, self.goal_func = max_episode_len, reward_func, goal_func
        self.state, self.action, self.next_state = state, action, next_state
        self.strategy, self.prioritized = strategy, prioritized
        self.additional_goals = 1 if strategy == "final" else additional_goals
        goal = {**env_dict[state], "shape": goal_shape or env_dict[state].get("shape", 1)}
        self.goal_shape = np.array(goal["shape"], ndmin=1)
        self.rb = create_buffer(size, {**env_dict, "rew": {}, "goal": goal}, prioritized=prioritized, **kwargs)
        self._columns = {name: self.rb._columns[name] for name in env_dict}
        self._episode: list[dict[str, Array]] = []  # the steps of this process, in the order of the calls
        self.rng = np.random.default_rng()

    def add(self, **kwargs: Any) -> None:
        if sum(len(steps[self.state]) for steps in self._episode) >= self.max_episode_len:
            raise ValueError("Exceed Max Episode Length")
        columns = self._columns.items()
        self._episode.append(
            {name: np.array(kwargs[name], dtype).reshape(-1, *shape) for name, (shape, dtype) in columns}
        )

    def on_episode_end(self, goal: Any) -> None:
        """Stores the episode, with its own goal and with the additional goals."""
        if not self._episode:
            return
        steps = {name: np.concatenate([part[name] for part in self._episode]) for name in self._columns}
        count = len(steps[self.state])
        for goals in self._goals(np.broadcast_to(np.asarray(goal), (count, *self.goal_shape)), steps[self.next_state]):
            self.rb.add(**steps, goal=goals, rew=self.reward_func(steps[self.next_state], steps[self.action], goals))
        self._episode.clear()
        self.rb.on_episode_end()

    def _goals(self, own: Array, reached: Array) -> Iterator[Array]:
        """Yields the goals of all steps, once for each copy of the episode."""
        yield own
        count, copies = len(own), self.additional_goals
        of = self.goal_func or (lambda states: states)
        if self.strategy == "final":
            yield of(np.broadcast_to(reached[-1], reached.shape))
        elif self.strategy == "random":
            places = self.rng.integers(0, self.rb.get_stored_size(), size=copies * count)
            goals = of(self.rb._encode_sample(places)[self.next_state])
            yield from goals.reshape((copies, count, *goals.shape[1:]))
        elif self.strategy == "episode":
            yield from (of(reached[chosen]) for chosen in self.rng.integers(0, count, size=(copies, count)))
        else:
            chosen = np.stack([self.rng.integers(step, count, size=copies) for step in range(count)], axis=1)
            yield from (of(reached[each]) for each in chosen)

    def sample(self, batch_size: int, **kwargs: Any) -> dict[str, Array]:
        return self.rb.sample(batch_size, **kwargs)

    def clear(self) -> None:
        self.rb.clear()
        self._episode.clear()

    def get_stored_size(self) -> int:
        return self.rb.get_stored_size()

    def get_buffer_size(self) -> int:
        return self.rb.get_buffer_size()

    def get_all_transitions(self, shuffle: bool = False) -> dict[str, Array]:
        return self.rb.get_all_transitions(shuffle)

    def _prioritized(self) -> PrioritizedReplayBuffer:
        if not isinstance(self.rb, PrioritizedReplayBuffer):
            raise ValueError("Buffer is constructed without PER")
        return self.rb

    def update_priorities(self, indexes: Any, priorities: Any) -> None:
        self._prioritized().update_priorities(indexes, priorities)

    def get_max_priority(self) -> float:
        return self._prioritized().get_max_priority()

    def __repr__(self) -> str:
        return f"<HindsightReplayBuffer of {self.rb!r}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_episode": []}  # another process begins an episode of its own


def _own(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns copies, since cpprb's NstepBuffer may change its arguments."""
    return {name: np.array(value) for name, value in given.items()}


def _nstep_buffer(env: Mapping[str, Any], Nstep: Any, default_dtype: Any, next_of: list[str]) -> Any:
    try:
        from cpprb.PyReplayBuffer import NstepBuffer
    except ImportError as error:
        text = "Nstep needs cpprb installed; without it, use shmtree.replay.Episodes with n_step=, gamma= and next="
        raise NotImplementedError(text) from error
    parts = {name: dict(spec) for name, spec in env.items()}
    return NstepBuffer(parts, dict(Nstep), default_dtype=default_dtype, next_of=next_of or None)


def _decompressed(data: Mapping[str, Array], cache: Mapping[int, Any], next_of: list[str]) -> dict[str, Array]:
    """Returns the rows of a file saved with safe=False.

    Adds the successors, and the values that such a file stores separately.
    """
    rows = {name: np.array(column) for name, column in data.items()}
    rows.update({f"next_{name}": np.roll(column, -1, axis=0) for name, column in rows.items() if name in next_of})
    for place, parts in cache.items():
        for name, value in parts.items():
            rows[name][place] = value
    return rows


__dir__ = claim_names(globals())
