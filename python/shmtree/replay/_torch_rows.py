"""Converts rows of TorchRL's buffers to columns of a `ReplayBuffer`, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictBase,
    is_tensor_collection,
)
from torch.utils import _pytree as pytree

# Tensors of types that NumPy lacks are stored as integers of the same size.
_AS_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Rows:
    """The structure of the rows of a storage: tensordicts, tensorclasses, tensors, or trees of tensors.

    It is made from one row, can be pickled, and splits every later row in the same way.
    """

    def __init__(self, row: Any) -> None:
        self._is_class = is_tensor_collection(row) and not isinstance(row, TensorDictBase)
        self._class: Any = type(row) if self._is_class else None
        if self._is_class:
            row = row.to_tensordict()
        self._is_collection = isinstance(row, TensorDictBase)
        if self._is_collection:
            self._form = _form_of(row)
        else:
            leaves, self._form = pytree.tree_flatten(row)
            self._leaves = [_leaf_of(str(number), leaf) for number, leaf in enumerate(leaves)]

    @property
    def columns(self) -> Any:
        """The columns of the `ReplayBuffer`."""
        if self._is_collection:
            return _columns_of(self._form)
        return {str(number): (shape, _numpy_dtype(dtype)) for number, (shape, dtype) in enumerate(self._leaves)}

    def to_arrays(self, rows: Any) -> Any:
        """Returns one row, or many, as nested arrays for `ReplayBuffer.add` and `extend`."""
        if self._is_class:
            rows = rows.to_tensordict()
        if self._is_collection:
            return _arrays_of("", self._form, rows)
        leaves, form = pytree.tree_flatten(rows)
        if form != self._form:
            raise ValueError(f"the row has the structure {form}, but the rows of the storage have {self._form}")
        return {str(number): _array(leaf, self._leaves[number][1]) for number, leaf in enumerate(leaves)}

    def from_arrays(self, arrays: Any, shape: tuple[int, ...], device: Any) -> Any:
        """Returns the rows in nested arrays. `shape` is their batch shape."""
        if self._is_collection:
            built = _built(self._form, arrays, shape, device)
            return self.of_class(built)
        leaves = [
            _tensor(arrays[str(number)], dtype).reshape((*shape, *of_row))
            for number, (of_row, dtype) in enumerate(self._leaves)
        ]
        return pytree.tree_unflatten(leaves, self._form)

    def __getstate__(self) -> dict[str, Any]:
        if self._is_collection:
            return self.__dict__
        # A tree of numbers replaces torch's description of the tree.
        return {**self.__dict__, "_form": pytree.tree_unflatten(list(range(len(self._leaves))), self._form)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not self._is_collection:
            self._form = pytree.tree_flatten(self._form)[1]

    def of_class(self, rows: TensorDict) -> Any:
        """Returns the rows as tensorclasses if the rows of the storage are tensorclasses."""
        return self._class.from_tensordict(rows) if self._is_class else rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]


def first_of(rows: Any) -> Any:
    """Returns the first row."""
    return rows[0] if is_tensor_collection(rows) else pytree.tree_map(lambda leaf: leaf[0], rows)


def joined(rows: list[Any]) -> Any:
    """Stacks a list of single rows."""
    if is_tensor_collection(rows[0]):
        return torch.stack([row.to_tensordict() if isinstance(row, TensorDictBase) else row for row in rows])
    return pytree.tree_map(lambda *leaves: torch.stack([torch.as_tensor(leaf) for leaf in leaves]), *rows)


def count_of(rows: Any) -> int:
    """Returns the number of rows."""
    return len(rows) if is_tensor_collection(rows) else len(pytree.tree_leaves(rows)[0])


def contiguous(rows: Any) -> Any:
    """Returns the rows with lazy stacks replaced, which have no tensors of their own."""
    return rows.contiguous() if isinstance(rows, LazyStackedTensorDict) else rows


class _Constant:
    """A value that is not a tensor, and is the same in all rows."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def check(self, where: str, given: Any) -> None:
        """Raises ValueError unless all rows in `given` have this value."""
        values = _flat(given.tolist()) if isinstance(given, NonTensorStack) else [given.data]
        for value in values:
            if value != self.value:
                raise ValueError(
                    f"the row has {value!r} at {where}, but the first row had {self.value!r}; a value that is not a"
                    " tensor must be the same in all rows of a SharedStorage. Encode it in a tensor, or leave it out"
                )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Constant) and bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]


def _flat(values: Any) -> list[Any]:
    return [each for value in values for each in _flat(value)] if isinstance(values, list) else [values]


# --- A form describes a row: {"batch": shape, "parts": {key: form, (shape, dtype) or constant}}


def _form_of(row: TensorDictBase, path: str = "") -> Any:
    parts: dict[str, Any] = {}
    for key in list(row.keys()):
        where = f"{path}[{key!r}]"
        value = row.get(key)
        if isinstance(value, NonTensorData):
            parts[key] = _Constant(value.data)
        elif isinstance(value, TensorDictBase):
            parts[key] = _form_of(contiguous(value), where)
        else:
            parts[key] = _leaf_of(where, value)
    return {"batch": tuple(row.batch_size), "parts": parts}


def _leaf_of(where: str, value: Any) -> tuple[tuple[int, ...], torch.dtype]:
    if not isinstance(value, torch.Tensor):
        kind = type(value).__name__
        raise TypeError(
            f"the row has a {kind} at {where or 'its top'}: rows of a SharedStorage have only tensors of fixed sizes; "
            "encode other values in a tensor, or keep them out of the storage"
        )
    if value.is_nested:
        raise TypeError(
            f"the row has a nested tensor at {where}, which has no fixed size; store its values and offsets"
        )
    return tuple(value.shape), value.dtype


def _is_form(part: Any) -> bool:
    return isinstance(part, dict)


def _columns_of(form: Any) -> Any:
    return {
        key: _columns_of(part) if _is_form(part) else (part[0], _numpy_dtype(part[1]))
        for key, part in form["parts"].items()
        if not isinstance(part, _Constant) and (not _is_form(part) or _columns_of(part))
    }


def _arrays_of(path: str, form: Any, rows: TensorDictBase) -> Any:
    arrays: dict[str, Any] = {}
    if set(rows.keys()) != set(form["parts"]):
        missing, extra = set(form["parts"]) - set(rows.keys()), set(rows.keys()) - set(form["parts"])
        text = f"missing {sorted(map(str, missing))}, unknown {sorted(map(str, extra))}"
        raise KeyError(f"the row{path} has other keys than the rows of the storage: {text}")
    for key, part in form["parts"].items():
        value = rows.get(key)
        where = f"{path}[{key!r}]"
        if isinstance(part, _Constant):
            part.check(where, value)
        elif not _is_form(part):
            _leaf_of(where, value)
            arrays[key] = _array(value, part[1])
        elif nested := _arrays_of(where, part, contiguous(value)):
            arrays[key] = nested
    return arrays


def _built(form: Any, arrays: Any, shape: tuple[int, ...], device: Any) -> TensorDict:
    parts: dict[str, Any] = {}
    for key, part in form["parts"].items():
        if isinstance(part, _Constant):
            value = NonTensorData(part.value, batch_size=form["batch"])
            parts[key] = NonTensorStack(*[value] * shape[0]) if len(shape) == 1 and shape[0] else value
        elif _is_form(part):
            parts[key] = _built(part, arrays.get(key, {}), shape, device)
        else:
            parts[key] = _tensor(arrays[key], part[1]).reshape((*shape, *part[0]))
    return TensorDict(parts, [*shape, *form["batch"]], device=device)


def _numpy_dtype(dtype: torch.dtype) -> Any:
    try:
        return torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        return _numpy_dtype(_AS_INTEGERS[dtype.itemsize])


def _array(value: Any, dtype: torch.dtype) -> Any:
    tensor = torch.as_tensor(value).detach().cpu().to(dtype)
    try:
        return tensor.numpy()
    except (TypeError, RuntimeError):
        return tensor.resolve_neg().resolve_conj().contiguous().view(_AS_INTEGERS.get(dtype.itemsize, dtype)).numpy()


def _tensor(array: Any, dtype: torch.dtype) -> torch.Tensor:
    tensor = torch.from_numpy(np.asarray(array))
    return tensor if tensor.dtype == dtype else tensor.view(dtype)
