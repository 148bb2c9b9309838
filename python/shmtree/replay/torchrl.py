"""A storage and samplers for `torchrl.data.ReplayBuffer`, with the rows in shared memory.

from shmtree.replay.torchrl import PrioritizedSampler, SharedStorage
buffer = torchrl.data.ReplayBuffer(storage=SharedStorage(100_000), sampler=PrioritizedSampler(), batch_size=256)

The first rows that are added say what rows are. Any number of processes may have the storage once there are some, and
add, draw and update priorities. `storage.shared` is the `shmtree.replay.ReplayBuffer` in which the rows are. Indices
are those of its rows: none is given again, so that a late priority hits no other row. Only samplers of this module
draw.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import LazyTensorStorage

from . import _samplers
from ._buffer import ReplayBuffer

__all__ = ["PrioritizedSampler", "SharedStorage", "UniformSampler"]


def _arrays(data: Any) -> Any:
    """Nested arrays of a tensordict."""
    if isinstance(data, TensorDictBase):
        return {key: _arrays(data.get(key)) for key in list(data.keys())}
    return data.detach().cpu().numpy()


def _tensors(data: Any, size: int) -> TensorDict:
    tensors = {
        key: _tensors(part, size) if isinstance(part, dict) else torch.from_numpy(part) for key, part in data.items()
    }
    return TensorDict(tensors, [size])


def _columns(data: Any, skip: int) -> Any:
    if isinstance(data, dict):
        return {key: _columns(part, skip) for key, part in data.items()}
    return data.shape[skip:], data.dtype


class SharedStorage(LazyTensorStorage):
    """Rows of tensordicts, as they come; the oldest go first.

    A LazyTensorStorage for TorchRL, which then takes what get() gives as it is. `max_size` is in rows. `prioritized`
    says whether rows have priorities: (alpha, beta, eps) of `shmtree.replay.Prioritized`, which a `PrioritizedSampler`
    needs.
    """

    def __init__(self, max_size: int, *, prioritized: tuple[float, float, float] | None = (0.6, 0.4, 1e-8)) -> None:
        super().__init__(max_size)
        self._prioritized = prioritized
        self.shared: Any = None
        self._drawn = threading.local()

    def _make(self, columns: Any) -> None:
        samplers: dict[str, _samplers.Sampler] = {"uniform": _samplers.Uniform()}
        if self._prioritized is not None:
            samplers["prioritized"] = _samplers.Prioritized(*self._prioritized)
        self.shared = ReplayBuffer(self.max_size, columns=columns, samplers=samplers, chunk=1, done=None, reward=None)

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Adds rows; what TorchRL's writer says of their places is not needed."""
        arrays = _arrays(data)
        is_one = isinstance(cursor, int) or (isinstance(cursor, torch.Tensor) and cursor.ndim == 0)
        if self.shared is None:
            self._make(_columns(arrays, 0 if is_one else 1))
        if is_one:
            self.shared.add(arrays)
        else:
            self.shared.extend(arrays)
        self._bump_mutation_revision()

    def draw(self, size: int, sampler: str, beta: float | None = None) -> Any:
        """Of samplers: rows that the next get() of this thread gives."""
        batch = self.shared.sample(size, sampler=sampler, beta=beta)
        index = torch.from_numpy(np.array(batch.index))
        self._drawn.batch = (index, _tensors(batch.data, size))
        return index, batch

    def get(self, index: Any) -> Any:
        drawn, data = getattr(self._drawn, "batch", (None, None))
        if drawn is None or not isinstance(index, torch.Tensor) or not torch.equal(index, drawn):
            raise NotImplementedError("rows of a SharedStorage are drawn by a sampler of shmtree.replay.torchrl")
        return data

    def __len__(self) -> int:
        return 0 if self.shared is None else len(self.shared)

    def contains(self, item: Any) -> bool:
        return True

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {key: value for key, value in state.items() if key != "_drawn"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._drawn = threading.local()

    def dumps(self, path: Any) -> None:
        self.shared.save(path)

    def loads(self, path: Any) -> None:
        self.shared = ReplayBuffer.load(path, self.max_size)

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError("save a SharedStorage with dumps(path)")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise NotImplementedError("load a SharedStorage with loads(path)")

    def _empty(self) -> None:
        if self.shared is not None:
            self.shared.clear()


class UniformSampler(Sampler):
    """Each row is as likely."""

    def sample(self, storage: SharedStorage, batch_size: int) -> tuple[Any, dict[str, Any]]:
        return storage.draw(batch_size, "uniform")[0], {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass

    def _empty(self) -> None:
        pass

    def dumps(self, path: Any) -> None:
        pass

    def loads(self, path: Any) -> None:
        pass


class PrioritizedSampler(UniformSampler):
    """By the priorities that the storage was made for; `beta` may be changed at any time, None is the storage's."""

    def __init__(self, beta: float | None = None) -> None:
        self.beta = beta

    def sample(self, storage: SharedStorage, batch_size: int) -> tuple[Any, dict[str, Any]]:
        index, batch = storage.draw(batch_size, "prioritized", self.beta)
        return index, {"priority_weight": torch.from_numpy(np.array(batch.weight)), "index": index}

    def update_priority(self, index: Any, priority: Any, *, storage: SharedStorage | None = None) -> None:
        if storage is None:
            raise ValueError("update_priority is called by the replay buffer, which gives its storage")
        indices = torch.as_tensor(index).reshape(-1)
        storage.shared.update_priorities(indices, torch.as_tensor(priority).expand(indices.shape))
