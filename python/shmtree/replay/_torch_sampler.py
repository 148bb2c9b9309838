"""A sampler of TorchRL with the priorities in the `ReplayBuffer` of the rows."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import torch
from torchrl.data.replay_buffers.samplers import PrioritizedSampler as _Standard
from torchrl.data.replay_buffers.samplers import Sampler

from ._torch_storage import DEFAULT_PRIORITIES, SharedStorage


class PrioritizedSampler(_Standard):
    """TorchRL's `PrioritizedSampler` with the priorities in shared memory, in the buffer of the rows.

    Buffers of several processes share the priorities. A buffer that is made on a storage with rows keeps the priorities
    of the rows.

    Args:
        max_capacity: Ignored. The storage sets the size.
        alpha, eps: Exponent of the priorities, and the value that is added to them. If None, the sampler uses the
            storage's values.
        beta: Exponent of the weights, which you may change at any time. If None, the sampler uses the storage's value.
        reduction: The function that combines several values of a row into one priority.
        dtype, max_priority_within_buffer, device: Must be torch.float, False and None.

    Raises:
        ValueError: `alpha` or `beta` is negative.
        NotImplementedError: `dtype`, `max_priority_within_buffer` or `device` has another value.
    """

    def __init__(
        self,
        max_capacity: int | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        eps: float | None = None,
        dtype: torch.dtype = torch.float,
        reduction: str = "max",
        max_priority_within_buffer: bool = False,
        device: Any = None,
    ) -> None:
        for name, value in (("alpha", alpha), ("beta", beta)):
            if value is not None and value < 0:
                raise ValueError(f"{name} must be greater or equal to 0, got {name}={value}")
        if max_priority_within_buffer:
            raise NotImplementedError(
                "max_priority_within_buffer=True is not supported: new rows get the largest priority so far"
            )
        if dtype != torch.float:
            raise NotImplementedError(f"dtype is {dtype}; priorities in shared memory must be torch.float")
        if device is not None and torch.device(device).type != "cpu":
            raise NotImplementedError(f"device is {device!r}; priorities are in host memory, so it must be the CPU")
        self._max_capacity, self.reduction, self.dtype = max_capacity, reduction, dtype
        self._given_alpha, self._given_eps, self._beta = alpha, eps, beta
        self._max_priority_within_buffer, self._device = False, None
        self._storage: SharedStorage | None = None
        self._keeps = 0  # number of rows with priorities that survive the reset by a new buffer

    def terms(self) -> tuple[float, float, float]:
        """Returns alpha, beta and eps for a storage that is made for this sampler."""
        given = (self._given_alpha, self._beta, self._given_eps)
        alpha, beta, eps = (
            mine if mine is not None else default for mine, default in zip(given, DEFAULT_PRIORITIES, strict=True)
        )
        return float(alpha), float(beta), float(eps)

    def join_storage(self, storage: SharedStorage, is_new: bool = False) -> None:
        """Uses the storage of a buffer. `is_new`: the buffer is being made now.

        Raises ValueError if the priorities of the storage were made with other parameters.
        """
        if storage is self._storage:
            return
        if not isinstance(storage, SharedStorage):
            raise TypeError(f"a PrioritizedSampler of shmtree needs a SharedStorage, not a {type(storage).__name__}")
        if storage.shared is not None:
            self._check(storage)
        self._storage, self._keeps = storage, len(storage) if is_new else 0

    def _check(self, storage: SharedStorage) -> None:
        prioritized = storage.shared._spec.samplers.get("prioritized")
        if prioritized is None:
            raise ValueError("the storage was made with prioritized=None: its rows have no priorities")
        for name, mine, its in (
            ("alpha", self._given_alpha, prioritized.alpha),
            ("eps", self._given_eps, prioritized.eps),
        ):
            if mine is not None and mine != its:
                raise ValueError(f"{name} is {mine}, but the priorities of the storage were made with {its}")

    def _joined(self, storage: Any) -> SharedStorage:
        if storage is not None and storage is not self._storage:
            self.join_storage(storage)
        if self._storage is None:
            raise RuntimeError("the sampler has no storage yet: pass it to a replay buffer")
        return self._storage

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def _made(self) -> Any:
        """The sampler of the shared buffer, or None."""
        storage = self._storage
        return None if storage is None or storage.shared is None else storage.shared._spec.samplers["prioritized"]

    @property
    def alpha(self) -> float:
        return self._made.alpha if self._made is not None else self.terms()[0]

    @alpha.setter
    def alpha(self, alpha: float) -> None:
        if alpha != self.alpha:
            raise NotImplementedError(f"alpha is {self.alpha} for all processes; it cannot change to {alpha}")

    @property
    def beta(self) -> float:
        if self._beta is not None:
            return self._beta
        return self._made.beta if self._made is not None else self.terms()[1]

    @beta.setter
    def beta(self, beta: float | None) -> None:
        self._beta = beta

    @property
    def default_priority(self) -> float:
        storage = self._storage
        return 1.0 if storage is None or storage.shared is None else storage.shared.max_priority

    def sample(self, storage: Any, batch_size: int) -> tuple[Any, dict[str, Any]]:
        index, batch = self._joined(storage).draw(batch_size, "prioritized", self.beta)
        return index, {"priority_weight": torch.from_numpy(np.array(batch.weight))}

    def add(self, index: Any) -> None:
        pass

    def extend(self, index: Any) -> None:
        pass

    def update_priority(self, index: Any, priority: Any, *, storage: Any = None) -> None:
        """Sets the priorities of the rows at these indices of the storage. Ignores negative indices."""
        shared, keeps = self._joined(storage), self._keeps
        self._keeps = 0
        places = torch.as_tensor(index, dtype=torch.long).reshape(-1)
        values = torch.as_tensor(priority).detach().cpu()
        if shared.shared is None or (keeps and keeps == len(places) and bool((values == self.default_priority).all())):
            return
        if values.numel() > 1 and values.numel() != len(places):
            text = f"Got priority of shape {values.shape} and index {tuple(torch.as_tensor(index).shape)}."
            raise RuntimeError(f"priority should be a number or an iterable of the same length as index. {text}")
        values = values.reshape(-1).expand(len(places))
        chosen = places >= 0
        shared._ring.update_priorities(places[chosen].numpy(), values[chosen].numpy())

    def mark_update(self, index: Any, *, storage: Any = None) -> None:
        """Sets the priority of these rows to the default, which new rows also get."""
        self._keeps = 0
        self.update_priority(index, self.default_priority, storage=storage)

    # --- State

    def _empty(self) -> None:
        if self._storage is not None and self._storage.shared is not None:
            self._storage.shared._replay.reset_max_priority(self._storage.shared._spec.table("prioritized"))

    def state_dict(self) -> dict[str, Any]:
        """Returns the parameters, and the priorities of all rows in the order of the storage."""
        state: dict[str, Any] = {"_alpha": self.alpha, "_beta": self.beta, "_eps": self._eps, "_priorities": None}
        storage = self._storage
        if storage is not None and len(storage):
            batch = storage.shared.sample(len(storage.shared), sampler="prioritized", replace=False, timeout=0)
            priorities = torch.ones(len(storage))
            priorities[torch.from_numpy(storage._ring.place_of(batch.index))] = torch.from_numpy(batch.priority)
            state["_priorities"] = priorities
        return {**state, "_max_priority": self.default_priority}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Sets the parameters and the rows' priorities to those of a state.

        Load the storage first, as a replay buffer does.
        """
        self._beta = state_dict["_beta"]
        if self._storage is None or self._storage.shared is None:
            self._given_alpha, self._given_eps = state_dict["_alpha"], state_dict["_eps"]
        elif (state_dict["_alpha"], state_dict["_eps"]) != (self.alpha, self._eps):
            raise ValueError(
                f"the state has alpha {state_dict['_alpha']}, eps {state_dict['_eps']}; the storage has "
                f"{self.alpha}, {self._eps}"
            )
        if (priorities := state_dict["_priorities"]) is not None:
            self.update_priority(torch.arange(len(priorities)), priorities)
            shared = self._joined(None).shared
            shared._replay.raise_max_priority(shared._spec.table("prioritized"), float(state_dict["_max_priority"]))

    @property
    def _eps(self) -> float:
        return self._made.eps if self._made is not None else self.terms()[2]

    def dumps(self, path: Any) -> None:
        folder = pathlib.Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(self.state_dict(), folder / "sampler.pt")

    def loads(self, path: Any) -> None:
        self.load_state_dict(torch.load(pathlib.Path(path) / "sampler.pt"))

    def __getstate__(self) -> dict[str, Any]:
        return Sampler.__getstate__(self)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"PrioritizedSampler(alpha={self.alpha}, beta={self.beta}, eps={self._eps}, reduction={self.reduction})"
