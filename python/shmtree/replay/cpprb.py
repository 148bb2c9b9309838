"""cpprb's replay buffers on shared memory: one changed import.

from shmtree.replay.cpprb import MPPrioritizedReplayBuffer

Signatures and results are those of cpprb. Each of the four may be used by any number of processes, also those that
sample and update. `buffer.shared` is the `shmtree.replay.ReplayBuffer` in which the rows are.

Indices begin at 0 and count rows, not places: none is given again, so that a late update of a priority hits no other
row. A row that was never drawn takes one as well. `next_of` and `stack_compress` are taken, and change what is stored
in no way; `Nstep` is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .. import _core
from ._buffer import ReplayBuffer as _Shared
from ._samplers import Prioritized, Sampler, Uniform

__all__ = ["MPPrioritizedReplayBuffer", "MPReplayBuffer", "PrioritizedReplayBuffer", "ReplayBuffer"]

Array = np.ndarray[Any, Any]

_FIRST = 1  # index of the first row of a shared buffer with chunk=1


def _shape(spec: Mapping[str, Any]) -> tuple[int, ...]:
    shape = spec.get("shape", 1)
    return tuple(shape) if isinstance(shape, Iterable) else (int(shape),)


class ReplayBuffer:
    """`cpprb.ReplayBuffer`."""

    def __init__(
        self,
        size: int,
        env_dict: Mapping[str, Mapping[str, Any]] | None = None,
        next_of: str | Iterable[str] | None = None,
        *,
        stack_compress: str | Iterable[str] | None = None,
        default_dtype: Any = None,
        Nstep: Any = None,
        **options: Any,
    ) -> None:
        if Nstep:
            raise NotImplementedError("Nstep is n_step=, gamma= and next= of shmtree.replay.ReplayBuffer")
        if options.get("backend", "sharedctypes") not in ("sharedctypes", "SharedMemory"):
            raise ValueError(f"Unknown backend: {options['backend']}")
        env = {name: dict(spec) for name, spec in (env_dict or {}).items()}
        for name in [next_of] if isinstance(next_of, str) else next_of or ():
            env[f"next_{name}"] = env[name]
        dtype = default_dtype or np.single
        self._columns = {name: (_shape(spec), np.dtype(spec.get("dtype") or dtype)) for name, spec in env.items()}
        self.shared = _Shared(
            int(size), columns=self._columns, sampler=self._sampler(), chunk=1, done=None, reward=None
        )
        self._cleared_at = 0  # by this process

    def _sampler(self) -> Sampler:
        return Uniform()

    def _rows(self, given: Mapping[str, Any]) -> tuple[dict[str, Array], int]:
        """Columns, and how many rows they are."""
        rows, count = {}, None
        for name, (shape, dtype) in self._columns.items():
            column = np.asarray(given[name], dtype)  # KeyError, as cpprb's
            rows[name] = column.reshape(-1, *shape)
            if count is not None and len(rows[name]) != count:
                raise ValueError(f"{name} has {len(rows[name])} steps, and others have {count}")
            count = len(rows[name])
        return rows, count or 0

    def add(self, **kwargs: Any) -> int:
        return self._added(kwargs, None)

    def _added(self, given: Mapping[str, Any], priorities: Any) -> int:
        rows, count = self._rows(given)
        first = self.get_next_index()
        for number in range(count):
            row = {name: column[number] for name, column in rows.items()}
            self.shared.add(row, priority=None if priorities is None else float(priorities[number]))
        return first

    def sample(self, batch_size: int) -> dict[str, Array]:
        data: dict[str, Array] = self.shared.sample(batch_size).data
        return data

    def get_all_transitions(self, shuffle: bool = False) -> dict[str, Array]:
        """Those that there are, the oldest first."""
        count = len(self.shared)
        if count == 0:
            return {name: np.empty((0, *shape), dtype) for name, (shape, dtype) in self._columns.items()}
        batch = self.shared.sample(count, replace=False)
        order = np.random.permutation(count) if shuffle else np.argsort(batch.index)
        return {name: column[order] for name, column in batch.data.items()}

    def get_buffer_size(self) -> int:
        return self.shared.capacity

    def get_stored_size(self) -> int:
        return len(self.shared)

    def get_next_index(self) -> int:
        """Where the next row would be in a buffer of cpprb."""
        return (_core.replay_tickets(self.shared._replay) - self._cleared_at) % self.shared.capacity

    def clear(self) -> None:
        shared: Any = self.shared
        shared.clear()
        self._cleared_at = _core.replay_tickets(self.shared._replay)

    def is_Nstep(self) -> bool:
        return False

    def on_episode_end(self) -> None:
        pass


class PrioritizedReplayBuffer(ReplayBuffer):
    """`cpprb.PrioritizedReplayBuffer`."""

    def __init__(
        self,
        size: int,
        env_dict: Mapping[str, Mapping[str, Any]] | None = None,
        alpha: float = 0.6,
        *,
        eps: float = 1e-4,
        check_for_update: bool = False,
        **options: Any,
    ) -> None:
        self._alpha, self._eps = alpha, eps
        super().__init__(size, env_dict, **options)

    def _sampler(self) -> Sampler:
        return Prioritized(alpha=self._alpha, eps=self._eps)

    def add(self, *, priorities: Any = None, **kwargs: Any) -> int:
        return self._added(kwargs, None if priorities is None else np.ravel(priorities))

    def sample(self, batch_size: int, beta: float = 0.4) -> dict[str, Array]:
        batch = self.shared.sample(batch_size, beta=beta, weights="buffer")
        return {**batch.data, "weights": batch.weight, "indexes": batch.index - _FIRST}

    def update_priorities(self, indexes: Any, priorities: Any) -> None:
        if indexes is None or priorities is None:
            raise TypeError("indexes and priorities are needed")
        self.shared.update_priorities(np.ravel(indexes) + _FIRST, np.ravel(priorities))

    def get_max_priority(self) -> float:
        return self.shared.max_priority


class MPReplayBuffer(ReplayBuffer):
    """`cpprb.MPReplayBuffer`: `ctx` and `backend` are taken, and not needed."""


class MPPrioritizedReplayBuffer(PrioritizedReplayBuffer):
    """`cpprb.MPPrioritizedReplayBuffer`."""
