"""Batches of sampled rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from .._public import made_by
from ._rows import map_nest

if TYPE_CHECKING:
    from typing_extensions import Self

Array = np.ndarray[Any, Any]


@made_by("ReplayBuffer.sample()")
class Batch:
    """n rows that were sampled from a `ReplayBuffer`.

    The batch belongs to the caller. Its memory is reused once no array of it is left.

    Attributes:
        data: A pytree like that of a row, with an array of shape (n, ...) at each leaf, and ``next`` with the columns
            that have successors. If `out` was passed to `ReplayBuffer.sample`, it is that.
        index: int64 (n,), the indices of the rows for `ReplayBuffer.update_priorities`. An index is never used again.
    """

    __slots__ = ("_has_discount", "_sampled", "data", "index")

    data: Any
    index: Array
    _sampled: _core.ReplayBatch
    _has_discount: bool

    @classmethod
    def _of(cls, data: Any, drawn: _core.ReplayBatch, has_discount: bool) -> Self:
        self = cls.__new__(cls)
        self.data = data
        self.index = drawn.index()
        self._sampled = drawn
        self._has_discount = has_discount
        return self

    @property
    def weight(self) -> Array:
        """float32 (n,): importance weights of the rows, at most 1. Ones if all rows are equally likely."""
        weight: Array = self._sampled.weight()
        return weight

    @property
    def probability(self) -> Array:
        """float64 (n,): probability of each draw."""
        probability: Array = self._sampled.probability()
        return probability

    @property
    def priority(self) -> Array:
        """float32 (n,): priority that each row had. Ones if the sampler has no priorities."""
        priority: Array = self._sampled.priority()
        return priority

    @property
    def goal_index(self) -> Array:
        """int64 (n,): index of the row that achieved each row's desired goal; -1 for rows with their own goal.

        Raises:
            AttributeError: The batch was sampled without `hindsight`.
        """
        goals: Array | None = self._sampled.goals()
        if goals is None:
            raise AttributeError("the batch has no goal_index, because it was sampled without hindsight=")
        return goals

    @property
    def age(self) -> Array:
        """int64 (n,): number of rows that were added after each row, at the time of sampling.

        It is exact while one process writes. With several, it may be off by the rows that their open chunks do not have
        yet.
        """
        age: Array = np.maximum(self._sampled.newest - self.index, 0)
        return age

    @property
    def version(self) -> Array:
        """int64 (n,): value of `Writer.version` when the row was added."""
        version: Array = self._sampled.version()
        return version

    @property
    def step(self) -> Array:
        """int64 (n,): number of rows that were in the stream before it."""
        step: Array = self._sampled.step()
        return step

    @property
    def writer(self) -> Array:
        """int64 (n,): number of the row's stream, as `Writer.stream`."""
        writer: Array = self._sampled.writer()
        return writer

    @property
    def discount(self) -> Array:
        """float32 (n,): factor for the value of the successor.

        It is gamma to the power of the number of summed rewards, and 0 if the episode terminated.

        Raises:
            AttributeError: The buffer has neither ``next=`` nor ``n_step=``.
        """
        if not self._has_discount:
            raise AttributeError("batches have no discount, because the buffer was made without next= and n_step=")
        discount: Array = self._sampled.discount()
        return discount

    def to(self, device: Any, non_blocking: bool = True) -> TensorBatch:
        """Returns the same batch as torch tensors.

        Args:
            device: A torch device, or its name.
            non_blocking: As in `torch.Tensor.to`.
        """
        return TensorBatch._of(self, device, non_blocking)

    def __len__(self) -> int:
        """Number of rows, n."""
        return len(self.index)

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} row{'' if len(self) == 1 else 's'}>"


@made_by("Batch.to()")
class TensorBatch:
    """A batch on a device: it has the attributes of the `Batch` (or `SequenceBatch`), as torch tensors.

    Attributes:
        data: All columns. The other attributes are moved when they are first used.
    """

    data: Any
    _batch: Batch
    _where: dict[str, Any]
    _pins: bool  # copies to pinned memory first, so that the copy to the device is asynchronous

    @classmethod
    def _of(cls, batch: Batch, device: Any, non_blocking: bool, pins: bool = False) -> TensorBatch:
        self = cls.__new__(cls)
        self._batch, self._pins = batch, pins
        self._where = {"device": device, "non_blocking": non_blocking}
        self.data = map_nest("", batch.data, lambda _, leaf: self._moved(leaf))
        return self

    def _moved(self, leaf: Any) -> Any:
        import torch

        tensor = leaf if isinstance(leaf, torch.Tensor) else torch.from_numpy(leaf)
        return (tensor.pin_memory() if self._pins else tensor).to(**self._where)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not isinstance(value := getattr(self._batch, name), np.ndarray | dict):
            raise AttributeError(f"batches on a device have no attribute {name!r}")
        moved = map_nest("", value, lambda _, leaf: self._moved(leaf))
        setattr(self, name, moved)
        return moved

    def __len__(self) -> int:
        """Number of rows, n."""
        return len(self._batch)

    def __repr__(self) -> str:
        return f"<TensorBatch of {len(self)} rows on {self._where['device']}>"


@made_by("ReplayBuffer.sample_sequences()")
class SequenceBatch(Batch):
    """n sampled sequences: every array has the shape (n, length, ...), with zeros where `mask` is false.

    The length includes the rows of the burn-in.
    """

    __slots__ = ("_stored_state",)

    _stored_state: dict[str, Any]

    def __repr__(self) -> str:
        count, length = self.index.shape
        return f"<SequenceBatch of {count} sequences of {length} rows>"

    @property
    def mask(self) -> Array:
        """bool (n, length): True where there is a row. Each sequence has at least the one that was chosen."""
        mask: Array = self._sampled.mask()
        return mask

    @property
    def stored_state(self) -> dict[str, Any]:
        """Values of the first row of each sequence, (n, ...) each, by the keys that were passed as `stored_state`.

        Raises:
            AttributeError: The batch was sampled without `stored_state`.
        """
        try:
            return self._stored_state
        except AttributeError:
            raise AttributeError("the batch has no stored_state: it was sampled without stored_state=") from None
