"""Structure of the rows of a buffer, taken from an example or from columns."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from .. import _core
from .._codec.dtypes import describe, parse

#: A pytree of dicts, lists and tuples with the number of a leaf at each leaf.
Skeleton = Any
Leaf = tuple[np.dtype[Any], tuple[int, ...]]

# Kinds of dtypes with elements that other processes could not read, or without a fixed size.
_REFUSED = {"O": "Python objects", "U": "str", "S": "bytes", "T": "str"}
_MAX_LEAF_BYTES = 1 << 40
_PYTHON = {bool: np.dtype(np.bool_), int: np.dtype(np.int64), float: np.dtype(np.float32)}


class Rows(NamedTuple):
    """The structure of rows, and the dtype and shape of each leaf."""

    skeleton: Skeleton
    leaves: tuple[Leaf, ...]

    def nest(self, one: str, many: str) -> _core.ReplayNest:
        """Returns the object that splits rows into leaves; `one` and `many` name a row and rows in errors.

        Many rows are arrays with one more dimension in front.
        """

        def convert(value: Any, leaf: int, path: str, is_many: bool) -> np.ndarray[Any, Any]:
            dtype, shape = self.leaves[leaf]
            if not is_many:
                return as_leaf(path, value, dtype, shape)
            array = _array_or_refuse(path, value)
            if array.shape[1:] != shape or not array.ndim:
                wanted = ", ".join(map(str, ("n", *shape)))
                raise ValueError(f"{path} has the shape {array.shape}; for n rows it must be ({wanted})")
            return as_leaf(path, array, dtype, array.shape)

        return _core.ReplayNest(self.skeleton, self.leaves, (one, many), convert, refuse)


def from_example(example: Any) -> Rows:
    """Returns the structure of rows that look like this example."""

    def leaf_of(path: str, value: Any) -> Leaf:
        dtype = _PYTHON.get(type(value))
        if dtype is not None:
            return dtype, ()
        array = _array_of(path, value)
        return _checked_dtype(path, array.dtype), array.shape

    return _numbered(example, leaf_of)


def from_columns(columns: Any) -> Rows:
    """Returns the structure of rows from a pytree with a (shape, dtype) at each leaf, or only a dtype for numbers."""

    def leaf_of(path: str, value: Any) -> Leaf:
        shape, dtype = value if type(value) is tuple and len(value) == 2 else ((), value)
        try:
            sizes = (shape,) if isinstance(shape, int) else tuple(shape)
            if not all(isinstance(size, int | np.integer) and size >= 0 for size in sizes):
                raise TypeError
            return _checked_dtype(path, np.dtype(_dtype_of_torch(dtype))), tuple(map(int, sizes))
        except TypeError:
            text = "a pair of a shape and a dtype, such as ((4, 84, 84), np.uint8), or a dtype"
            raise TypeError(f"{path} is {value!r}; it must be {text}") from None

    return _numbered(columns, leaf_of, tuples_are_leaves=True)


def paths_of(skeleton: Skeleton, root: str) -> list[str]:
    """Returns the path to each leaf, as a Python expression."""
    paths: list[str] = []
    map_nest(root, skeleton, lambda path, _: paths.append(path))
    return paths


def as_leaf(path: str, value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Converts a value to an array of the leaf's dtype and shape, by casts of 'same_kind'."""
    array = _array_or_refuse(path, value)
    if array.shape != shape:
        raise ValueError(f"{path} has the shape {array.shape}, but the rows of the buffer have {shape}")
    out = cast(path, array, dtype)
    return np.ascontiguousarray(out, dtype).reshape(shape)


def cast(path: str, array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Casts an array to the dtype of a column. Raises ValueError unless integers fit."""
    if array.dtype == dtype:
        return array.astype(dtype, copy=False)  # NumPy has two equal dtypes of some kinds
    both_whole = array.dtype.kind in "iu" and dtype.kind in "iu"
    if not both_whole and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise ValueError(f"{path} is of {array.dtype}, which cannot be cast to {dtype}, the dtype of the column")
    out = array.astype(dtype)
    if both_whole and array.size and not (_fits(array.min(), dtype) and _fits(array.max(), dtype)):
        bounds = np.iinfo(dtype)
        raise ValueError(f"{path} is {array.tolist()!r}, but a column of {dtype} has {bounds.min} to {bounds.max}")
    return out


def refuse(path: str, skeleton: Skeleton, value: Any) -> NoReturn:
    """Raises ValueError for a part of a row that is not the expected dict, list or tuple."""
    if not isinstance(skeleton, dict):
        has = f"{len(value)} parts" if isinstance(value, type(skeleton)) else f"{type(value).__name__!r} here"
        raise ValueError(f"{path} has {has}, but the rows of the buffer have a {_shown(skeleton)}")
    if not isinstance(value, dict):
        raise ValueError(f"{path} is a {type(value).__name__}, but the rows of the buffer have a {_shown(skeleton)}")
    missing = [f"{path}[{key!r}]" for key in skeleton if key not in value]
    extra = [f"{path}[{key!r}]" for key in value if key not in skeleton]
    found = [f"{', '.join(missing)} is missing"] * bool(missing) + [f"{', '.join(extra)} is unknown"] * bool(extra)
    raise ValueError(f"{'; '.join(found)}: the rows of the buffer have a {_shown(skeleton)}")


def map_leaves(skeleton: Skeleton, leaves: list[Any]) -> Any:
    """Returns the pytree with these values at its leaves."""
    return map_nest("", skeleton, lambda _, number: leaves[number])


def flatten(path: str, skeleton: Skeleton, value: Any) -> list[Any]:
    """Returns the leaves of a pytree of the same structure. Raises ValueError for another structure."""
    if isinstance(skeleton, dict):
        if not isinstance(value, dict) or value.keys() != skeleton.keys():
            refuse(path, skeleton, value)
        return [leaf for key, part in skeleton.items() for leaf in flatten(f"{path}[{key!r}]", part, value[key])]
    if isinstance(skeleton, list | tuple):
        if not isinstance(value, type(skeleton)) or len(value) != len(skeleton):
            refuse(path, skeleton, value)
        parts = enumerate(zip(skeleton, value, strict=True))
        return [leaf for i, (part, each) in parts for leaf in flatten(f"{path}[{i}]", part, each)]
    return [value]


def _shown(skeleton: Skeleton) -> str:
    if isinstance(skeleton, dict):
        return f"dict of {', '.join(map(repr, skeleton))}"
    return f"{type(skeleton).__name__} of {len(skeleton)}"


def map_nest(path: str, nest: Any, of_leaf: Any, tuples_are_leaves: bool = False) -> Any:
    """Returns the pytree with `of_leaf(path, leaf)` at each leaf. Visits the leaves depth first."""
    if isinstance(nest, dict):
        return {key: map_nest(f"{path}[{key!r}]", part, of_leaf, tuples_are_leaves) for key, part in nest.items()}
    if isinstance(nest, list) or (isinstance(nest, tuple) and not tuples_are_leaves):
        parts = [map_nest(f"{path}[{i}]", part, of_leaf, tuples_are_leaves) for i, part in enumerate(nest)]
        return parts if isinstance(nest, list) else tuple(parts)
    return of_leaf(path, nest)


def _numbered(nest: Any, leaf_of: Any, tuples_are_leaves: bool = False) -> Rows:
    leaves: list[Leaf] = []

    def number(path: str, value: Any) -> int:
        leaves.append(_checked(path, leaf_of(path, value)))
        return len(leaves) - 1

    try:
        skeleton = map_nest("row", nest, number, tuples_are_leaves)
    except RecursionError:
        raise ValueError("the pytree of a row is too deep, or contains itself") from None
    if not leaves:
        raise ValueError("rows need at least one column")
    return Rows(skeleton, tuple(leaves))


def _checked(path: str, leaf: Leaf) -> Leaf:
    dtype, shape = leaf
    if math.prod(shape) * dtype.itemsize == 0:
        raise ValueError(f"{path} has the shape {shape} of {dtype}, which is 0 bytes")
    if (needed := math.prod(shape) * dtype.itemsize) > _MAX_LEAF_BYTES:
        raise ValueError(f"{path} has the shape {shape} of {dtype}, {needed} bytes; the limit is {_MAX_LEAF_BYTES}")
    if len(shape) > 28:
        raise ValueError(f"{path} has {len(shape)} dimensions; at most 28 are possible")
    return leaf


def checked_leaf(text: str, item_bytes: int, shape: Sequence[int]) -> Leaf:
    """Returns the leaf of a column whose dtype is described by `text`. The core has checked the shape."""
    dtype = _checked_dtype("row", parse(text))
    if dtype.itemsize != item_bytes:
        raise ValueError(f"a column of {dtype} has elements of {item_bytes} bytes, not {dtype.itemsize}")
    return _checked("row", (dtype, tuple(shape)))


def _checked_dtype(path: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind in _REFUSED or dtype.hasobject:
        what = _REFUSED.get(dtype.kind, "Python objects")
        raise TypeError(f"{path} is of {dtype}: rows of a replay buffer cannot have {what}, which have no fixed size")
    if describe(dtype, False) is None:
        dtype = _canonical(dtype)
    if describe(dtype, False) is None:
        raise TypeError(f"{path} is of {dtype}: rows of a replay buffer can only have dtypes that NumPy itself defines")
    if dtype.subdtype is not None:
        raise TypeError(f"{path} is of {dtype}, which is a subarray; pass its base dtype and its shape")
    return dtype.newbyteorder("=") if dtype.names is None else dtype


def _canonical(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the dtype with int64 and uint64 in place of `longlong` and `ulonglong`, NumPy's other 64-bit integers."""
    if dtype.subdtype is not None:
        return np.dtype((_canonical(dtype.subdtype[0]), dtype.subdtype[1]))
    if dtype.kind in "iu" and dtype.metadata is None:
        plain: np.dtype[Any] = np.dtype(dtype.str)
        return plain
    if dtype.names is None or dtype.fields is None or dtype.metadata is not None or dtype.type is not np.void:
        return dtype
    fields = [dtype.fields[name] for name in dtype.names]
    parts: dict[str, Any] = {"names": list(dtype.names), "formats": [_canonical(field[0]) for field in fields]}
    parts |= {"offsets": [field[1] for field in fields], "itemsize": dtype.itemsize}
    return np.dtype(parts, align=dtype.isalignedstruct)  # type: ignore[call-overload, no-any-return]


def refuse_mask(path: str, value: Any) -> None:
    """Raises TypeError for a masked array, or a list with one: rows cannot store its mask."""
    if isinstance(value, list | tuple):
        for part in value:
            refuse_mask(path, part)
    elif isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{path} is a masked array, but rows of a replay buffer have no masks; pass its filled(), and its mask"
            " (np.ma.getmaskarray) as a separate column"
        )


def _dtype_of_torch(dtype: Any) -> Any:
    torch: Any = sys.modules.get("torch")
    return str(dtype).removeprefix("torch.") if torch is not None and isinstance(dtype, torch.dtype) else dtype


def _array_or_refuse(path: str, value: Any) -> np.ndarray[Any, Any]:
    """Raises ValueError if `value` is not an array of numbers, and TypeError if it is a masked array."""
    refuse_mask(path, value)
    try:
        return _array_of(path, value)
    except TypeError as error:
        raise ValueError(str(error)) from None


def _array_of(path: str, value: Any) -> np.ndarray[Any, Any]:
    if value is None or isinstance(value, str | bytes | bytearray):
        raise TypeError(f"{path} is {value!r}; rows of a replay buffer have only numbers and arrays of them")
    refuse_mask(path, value)
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise TypeError(f"{path} is a {type(value).__name__}, which is not an array of numbers: {error}") from error
    if array.dtype.kind in _REFUSED and isinstance(value, int):
        raise ValueError(f"{path} is {value!r}, which does not fit in 64 bits")
    if array.dtype.kind in _REFUSED:
        raise TypeError(f"{path} is a {type(value).__name__}, which is not an array of numbers")
    return array


def _fits(number: Any, dtype: np.dtype[Any]) -> bool:
    bounds = np.iinfo(dtype)
    return bounds.min <= int(number) <= bounds.max
