"""What a draw gives."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _core
from ._rows import map_nest

Array = np.ndarray[Any, Any]


class Batch:
    """n rows that were drawn from a `ReplayBuffer`: the caller's own, in memory that is used again when no array of it
    is left.

    Attributes:
        data: a nest like that of a row, with an array of shape (n, ...) in the place of each leaf, and ``next`` with
            those that the buffer has successors of. What `ReplayBuffer.sample` was given as `out`, if it was.
        index: int64 (n,), by which `ReplayBuffer.update_priorities` knows the rows. None is ever given again.
    """

    __slots__ = ("_drawn", "_has_discount", "data", "index")

    def __init__(self, data: Any, drawn: _core.ReplayBatch, has_discount: bool) -> None:
        self.data = data
        self.index: Array = drawn.index()
        self._drawn = drawn
        self._has_discount = has_discount

    @property
    def weight(self) -> Array:
        """float32 (n,): how much each row counts for who learns, at most 1. Ones where all rows are as likely."""
        weight: Array = self._drawn.weight()
        return weight

    @property
    def probability(self) -> Array:
        """float64 (n,): how likely each draw was that row."""
        probability: Array = self._drawn.probability()
        return probability

    @property
    def priority(self) -> Array:
        """float32 (n,): the priority that each row had. Ones where the sampler has none."""
        priority: Array = self._drawn.priority()
        return priority

    @property
    def age(self) -> Array:
        """int64 (n,): how many rows were added since, when the batch was drawn.

        Exact while one writer adds; with several, to within the rows that their open chunks have not got yet.
        """
        age: Array = np.maximum(self._drawn.newest - self.index, 0)
        return age

    @property
    def version(self) -> Array:
        """int64 (n,): the `Writer.version` when the row was added."""
        version: Array = self._drawn.version()
        return version

    @property
    def step(self) -> Array:
        """int64 (n,): how many rows its stream had before it."""
        step: Array = self._drawn.step()
        return step

    @property
    def writer(self) -> Array:
        """int64 (n,): the number of its stream, as `Writer.stream`."""
        writer: Array = self._drawn.writer()
        return writer

    @property
    def discount(self) -> Array:
        """float32 (n,): what the value of the successor counts: gamma to the number of rewards summed, 0 where the
        episode terminated. AttributeError where the buffer has neither ``next=`` nor ``n_step=``.
        """
        if not self._has_discount:
            raise AttributeError("batches have a discount where the buffer was made with next= or n_step=")
        discount: Array = self._drawn.discount()
        return discount

    def to(self, device: Any, non_blocking: bool = True) -> TensorBatch:
        """The same as tensors of torch on that device."""
        return TensorBatch(self, device, non_blocking)

    def __len__(self) -> int:
        """n."""
        return len(self.index)

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} rows>"


class TensorBatch:
    """A batch on a device: has what the `Batch` (or `SequenceBatch`) has, as tensors of torch.

    Attributes:
        data: all leaves. The other attributes are moved when they are first asked for.
    """

    def __init__(self, batch: Batch, device: Any, non_blocking: bool) -> None:
        self._batch = batch
        self._where = {"device": device, "non_blocking": non_blocking}
        self.data = map_nest("", batch.data, lambda _, leaf: self._moved(leaf))

    def _moved(self, leaf: Any) -> Any:
        import torch

        tensor = leaf if isinstance(leaf, torch.Tensor) else torch.from_numpy(leaf)
        return tensor.to(**self._where)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not isinstance(array := getattr(self._batch, name), np.ndarray):
            raise AttributeError(f"batches on a device have no {name!r}")
        tensor = self._moved(array)
        setattr(self, name, tensor)
        return tensor

    def __len__(self) -> int:
        """n."""
        return len(self._batch)

    def __repr__(self) -> str:
        return f"<TensorBatch of {len(self)} rows on {self._where['device']}>"


class SequenceBatch(Batch):
    """n sequences that were drawn: every array has the shape (n, length, ...), with zeros where `mask` is false."""

    __slots__ = ()

    @property
    def mask(self) -> Array:
        """bool (n, length): where there is a row. Of each sequence at least the first."""
        mask: Array = self._drawn.mask()
        return mask
