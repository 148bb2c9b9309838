"""A storage of TorchRL with the rows in a `ReplayBuffer`."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable
from multiprocessing import context
from queue import Empty
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, is_tensor_collection
from torch.utils import _pytree as pytree
from torchrl.data.replay_buffers.storages import LazyTensorStorage
from torchrl.data.replay_buffers.writers import ImmutableDatasetWriter, RoundRobinWriter, TensorDictRoundRobinWriter

from . import _samplers
from ._buffer import ReplayBuffer
from ._options import RING, Sampling
from ._ring import Ring, places_of
from ._torch_rows import Rows, contiguous, count_of, first_of, joined

DEFAULT_PRIORITIES = (0.6, 0.4, 1e-8)  # alpha, beta, eps

_EMPTY = "Cannot sample from an empty storage."
_NO_CHANGE = "rows of a SharedStorage cannot be changed after they are added"


def _shared_value(read: Callable[[Any], Any]) -> Any:
    """Makes a property that ignores assignments, because the rows that all processes add determine its value."""
    return property(read, lambda self, value: None)


class _Cursor:
    """The cursor of a writer: the place of the next row, which all processes share."""

    def __init__(self, storage: SharedStorage) -> None:
        self._storage = storage

    @_shared_value
    def value(self) -> int:
        return self._storage.next_place


class SharedStorage(LazyTensorStorage):
    """A `LazyTensorStorage` that has the newest `max_size` rows in shared memory.

    TorchRL fills its places in order. Rows do not change once they are added.

    Args:
        max_size: Number of rows.
        prioritized: alpha, beta and eps of the priorities of rows, or None for no priorities. By default they are those
            of the `PrioritizedSampler` of the buffer that adds the first rows, or (0.6, 0.4, 1e-8).
        device: "cpu", the device of sampled rows.
        ndim: 1.

    Raises:
        NotImplementedError: Another `device` or `ndim`, or an option of TorchRL that this class lacks. Later,
            `buffer[index] = row` raises it, too.
        TypeError: An unknown option. Later calls raise it for a writer other than the two round-robin ones, and for
            rows that are trees with values other than tensors. In a tensordict such a value is accepted if it is the
            same in all rows.
    """

    def __init__(
        self,
        max_size: int,
        *,
        prioritized: tuple[float, float, float] | str | None = "sampler",
        device: Any = "cpu",
        ndim: int = 1,
        **options: Any,
    ) -> None:
        if torch.device(device if device is not None else "cpu").type != "cpu":
            raise NotImplementedError(
                f"device is {device!r}; it must be the CPU, as a SharedStorage keeps its rows in host memory"
            )
        if ndim != 1:
            raise NotImplementedError(f"ndim is {ndim}; it must be 1 for a SharedStorage")
        for name, value in options.items():
            if name not in ("compilable", "consolidated", "shared_init", "cleanup_memmap"):
                raise TypeError(f"SharedStorage() got an unexpected keyword argument {name!r}")
            if value and name != "cleanup_memmap":
                raise NotImplementedError(f"a SharedStorage does not support {name}={value!r}")
        self.shared: Any = None
        super().__init__(max_size, device=device)
        self._prioritized = prioritized
        self._rows: Rows | None = None
        self._ring: Any = None
        self._sampled = threading.local()

    supports_conditional_update = False

    # --- Buffers that use it

    @property
    def checkpointer(self) -> Any:
        return self._checkpointer

    @checkpointer.setter
    def checkpointer(self, checkpointer: Any) -> None:
        self._checkpointer = checkpointer or self._default_checkpointer()
        self._join_buffers(is_new=True)  # TorchRL sets this when a buffer has got its writer and its sampler

    def _join_buffers(self, is_new: bool = False) -> None:
        """Gives writers the shared cursor, and samplers the storage."""
        for buffer in self._attached_entities:
            writer, sampler = getattr(buffer, "_writer", None), getattr(buffer, "_sampler", None)
            if writer is not None and not isinstance(getattr(writer, "_cursor_value", None), _Cursor):
                if type(writer) is ImmutableDatasetWriter:
                    continue
                if type(writer) not in (RoundRobinWriter, TensorDictRoundRobinWriter):
                    kinds = "a RoundRobinWriter or a TensorDictRoundRobinWriter"
                    raise TypeError(f"the writer of a SharedStorage must be {kinds}, not a {type(writer).__name__}")
                writer._cursor_value = _Cursor(self)
            if sampler is not None and hasattr(sampler, "join_storage"):
                sampler.join_storage(self, is_new)

    def _terms(self) -> tuple[float, float, float] | None:
        """Returns alpha, beta and eps for the shared buffer, or None for no priorities."""
        if self._prioritized != "sampler":
            return self._prioritized  # type: ignore[return-value]
        for buffer in self._attached_entities:
            sampler = getattr(buffer, "_sampler", None)
            if sampler is not None and hasattr(sampler, "terms"):
                terms: tuple[float, float, float] = sampler.terms()
                return terms
        return DEFAULT_PRIORITIES

    def __repr__(self) -> str:
        ring = self._ring
        return f"<SharedStorage, {f'0 of {self.max_size} rows' if ring is None else ring.state('rows')}>"

    # --- State for samplers, shared by all processes

    @property
    def _mutation_revision(self) -> int:
        return 0 if self._ring is None else self._ring.revision

    def _bump_mutation_revision(self) -> None:
        """Raises NotImplementedError.

        A buffer calls this after it has written to rows that it had read, which are only copies.
        """
        raise NotImplementedError(_NO_CHANGE)

    @property
    def _last_cursor_index(self) -> int | None:
        return None if len(self) == 0 else (self.next_place - 1) % self.max_size

    @_shared_value
    def _last_cursor(self) -> int | None:
        return self._last_cursor_index

    # --- Adding

    def _make(self, row: Any) -> None:
        rows = Rows(row)
        samplers: dict[str, _samplers.Sampler] = {"uniform": _samplers.Uniform()}
        if (terms := self._terms()) is not None:
            samplers["prioritized"] = _samplers.Prioritized(*terms)
        columns = rows.columns
        self.shared = ReplayBuffer(self.max_size, columns=columns, sampling=Sampling(samplers), **RING)
        self._ring, self._rows = Ring(self.shared), rows

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Adds one row if `cursor` is an int, else many."""
        if not set_cursor:
            raise NotImplementedError(_NO_CHANGE)
        self._join_buffers()
        is_one = isinstance(cursor, int) or (isinstance(cursor, torch.Tensor) and cursor.ndim == 0)
        if isinstance(data, list):
            data = joined(data)
        data = contiguous(data)
        if self.shared is None:
            self._make(data if is_one else first_of(data))
        assert self._rows is not None
        if is_one:
            self.shared.add(self._rows.to_arrays(data))
        elif count_of(data):
            self.shared.extend(self._rows.to_arrays(data))

    @property
    def next_place(self) -> int:
        """Place of the next row."""
        return 0 if self._ring is None else self._ring.next

    # --- Reading

    def draw(self, size: int, sampler: str, beta: float | None = None) -> Any:
        """Samples rows and returns their places and the batch. The next `get` of this thread returns the rows."""
        if len(self) == 0:
            raise RuntimeError(_EMPTY)
        try:
            found, batch = self._ring.sample(size, beta, sampler)
        except Empty:
            raise RuntimeError(_EMPTY) from None
        places = torch.from_numpy(found)
        assert self._rows is not None
        self._sampled.batch = (places, self._rows.from_arrays(batch.data, (size,), self.device))
        return places, batch

    def get(self, index: Any) -> Any:
        """Returns the rows at `index`: an int, a slice, or a sequence or tensor of places or bools.

        For a key, returns that column of all rows.
        """
        places, data = getattr(self._sampled, "batch", (None, None))
        if index is places and places is not None:
            self._sampled.batch = (None, None)
            return data
        if self.shared is None or self._rows is None:
            raise RuntimeError("Cannot get elements out of a non-initialized storage.")
        if isinstance(index, str):
            return self.get(slice(None))[index]
        if isinstance(index, tuple):
            if any(part is Ellipsis or part is None or isinstance(part, str) for part in index):
                return self.get(slice(None))[index]
            rows = self.get(index[0])
            return rows if len(index) == 1 else rows[(slice(None),) * _ndim_of(index[0]) + index[1:]]
        if index is Ellipsis or index is None:
            return self.get(slice(None))[index]
        found = places_of(index.cpu() if isinstance(index, torch.Tensor) else index, len(self))
        return self._rows.from_arrays(self._ring.read(found, 0), found.shape, self.device)

    @_shared_value
    def _storage(self) -> Any:
        """A copy of all places, with zeros where there is no row yet."""
        if self.shared is None or self._rows is None:
            return None
        arrays = self._ring.read(np.arange(self.max_size), 0)
        return self._rows.from_arrays(arrays, (self.max_size,), self.device)

    @_shared_value
    def initialized(self) -> bool:
        """True if rows were added."""
        return self.shared is not None

    @_shared_value
    def _len(self) -> int:
        return len(self)

    @property
    def shape(self) -> Any:
        """(number of rows,)."""
        return None if self.shared is None else torch.Size([len(self)])

    def __len__(self) -> int:
        return 0 if self._ring is None else len(self._ring)

    def _empty(self) -> None:
        if self.shared is not None:
            self._ring.clear()

    # --- Files and state

    def __getstate__(self) -> dict[str, Any]:
        if context.get_spawning_popen() is not None and not self.initialized:
            raise RuntimeError(
                "Cowardly refusing to share a SharedStorage between processes before it has rows: "
                "add a row first, which determines the structure of all rows"
            )
        left_out = ("_sampled", "_attached_entities_list", "_mutation_revision_value", "_last_cursor_index_value")
        state = {key: value for key, value in self.__dict__.items() if key not in left_out}
        return {**state, "_rng": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._sampled = threading.local()

    def dumps(self, path: Any) -> None:
        """Writes all rows and their priorities to a folder."""
        folder = pathlib.Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        about = {"rows": self._rows, "added": 0 if self._ring is None else self._ring.added}
        if self.shared is not None:
            self.shared.save(folder / "rows")
        torch.save(about, folder / "storage.pt")

    def loads(self, path: Any) -> None:
        """Replaces the rows of this storage object by those in a folder, in this process only."""
        folder = pathlib.Path(path)
        about = torch.load(folder / "storage.pt", weights_only=False)
        if (rows := about["rows"]) is None:
            self._empty()
            return
        self.shared, self._rows = ReplayBuffer.load(folder / "rows", self.max_size), rows
        self._ring = Ring(self.shared, about["added"])

    def state_dict(self) -> dict[str, Any]:
        """Returns the rows by place, in the form of a LazyTensorStorage, and the place of the next row."""
        rows: Any = self._storage if self.shared is not None else {}
        is_tree = self.shared is not None and not is_tensor_collection(rows)
        rows = rows if is_tree or self.shared is None else rows.state_dict()
        about = {"initialized": self.initialized, "_len": len(self), "_next": self.next_place, "_is_tree": is_tree}
        return {"_storage": rows, **about}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replaces the rows in all processes. The state may be that of a LazyTensorStorage."""
        rows, size, following = state_dict["_storage"], state_dict["_len"], state_dict.get("_next", 0)
        if size > self.max_size:
            raise ValueError(f"the state has {size} rows, but max_size is {self.max_size}")
        self._empty()
        if not state_dict["initialized"] or size == 0:
            return
        if isinstance(rows, dict) and not state_dict.get("_is_tree", False):
            rows = TensorDict().load_state_dict(rows, strict=False).unflatten_keys(".").auto_batch_size_(1)
            if self._rows is not None:
                rows = self._rows.of_class(rows)
        if self.shared is None:
            self._make(first_of(rows))
        first = following if size == self.max_size else 0  # place of the oldest row
        self._ring.begin_at(first)
        order = (torch.arange(size) + first) % size
        chosen = rows[order] if is_tensor_collection(rows) else pytree.tree_map(lambda leaf: leaf[order], rows)
        assert self._rows is not None
        self.shared.extend(self._rows.to_arrays(chosen))


def _ndim_of(index: Any) -> int:
    """Returns the number of batch dimensions of rows that are read with this index."""
    return 1 if isinstance(index, slice | range) else torch.as_tensor(index).ndim
