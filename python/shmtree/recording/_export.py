"""Export of recordings for other tools: JSON lines, and Parquet with arrays as tensors or lists."""

from __future__ import annotations

import base64
import contextlib
import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np

from ..errors import Error
from ..recording import RecordedMessage

_LEVELS = 200  # nesting limit of an exported value
_STORED_BITS = 32  # type of smaller integers in Parquet; BYTE_STREAM_SPLIT compresses the zero bytes
_SPLITS_INTEGERS = 17  # first version of pyarrow that has this encoding for integers
_GROUP_ROWS, _GROUP_BYTES = 1024, 16 << 20  # bytes of a Parquet file that are converted at once


def _array(value: Any) -> np.ndarray[Any, Any] | None:
    """Returns an array or tensor as an array of numbers that other tools know; None if the value is no such array."""
    if hasattr(value, "detach") and hasattr(value, "tolist"):  # a tensor
        with contextlib.suppress(TypeError, RuntimeError):  # NumPy has no such dtype
            value = value.detach().cpu().numpy()
    known = (
        isinstance(value, np.ndarray) and value.ndim > 0 and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8
    )
    return value.astype(value.dtype.newbyteorder("="), copy=False) if known else None


def plain(value: Any, leaf: Callable[[Any], Any], levels: int = _LEVELS) -> Any:
    """Returns the value in types that JSON and Parquet have. Unknown types become text.

    `leaf` converts floats, bytes and arrays of numbers.

    Raises ValueError for a value that is nested over more than `levels` levels. A value that contains itself is refused
    for that reason.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | bytes):
        return leaf(value)
    if levels == 0:
        raise ValueError(f"the value contains itself, or is nested deeper than {_LEVELS} levels")
    if isinstance(value, dict):
        return {str(key): plain(each, leaf, levels - 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, leaf, levels - 1) for each in value]
    if isinstance(value, bytearray | memoryview):
        return leaf(bytes(value))
    if (array := _array(value)) is not None:
        return leaf(array)
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufUS":
        return plain(value.tolist(), leaf, levels - 1)
    if hasattr(value, "detach") and hasattr(value, "tolist"):
        return plain(value.detach().tolist(), leaf, levels - 1)
    return str(value)


@contextlib.contextmanager
def _naming(message: RecordedMessage) -> Iterator[None]:
    """Adds the message to the text of an error about its value."""
    try:
        yield
    except (RecursionError, OverflowError, TypeError, ValueError) as error:
        if isinstance(error, Error):
            raise
        raise ValueError(f"message {message.sequence} of channel {message.channel!r}: {error}") from error


# --- JSON


def _described(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"dtype": str(array.dtype), "shape": list(array.shape)}


def _nulled(value: Any) -> Any:
    """Returns nested lists of floats with null instead of NaN and infinity."""
    return [_nulled(each) for each in value] if isinstance(value, list) else value if math.isfinite(value) else None


def _list(array: np.ndarray[Any, Any]) -> Any:
    return array.tolist() if array.dtype.kind != "f" or np.isfinite(array).all() else _nulled(array.tolist())


#: Forms of an array in JSON, by their name.
ARRAYS: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {
    "list": _list,
    "base64": lambda array: {**_described(array), "base64": base64.b64encode(array.tobytes()).decode()},
    "omit": _described,
}


def to_jsonl(messages: Iterable[RecordedMessage], write: Callable[[str], Any], allow_pickle: bool, arrays: str) -> None:
    """Calls `write` with a line for each message, a JSON object: channel, time_ns, sequence, value.

    Bytes are base64; NaN and infinity are null. `arrays` is a key of `ARRAYS`.
    """

    def leaf(value: Any) -> Any:
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        return _nulled(value) if isinstance(value, float) else ARRAYS[arrays](value)

    for message in messages:
        with _naming(message):
            value = plain(message.load(copy=False, allow_pickle=allow_pickle), leaf)
            row = {"channel": message.channel, "time_ns": message.time_ns, "sequence": message.sequence, "value": value}
            line = json.dumps(row, allow_nan=False)
        write(line + "\n")


# --- Parquet


def _listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _leaves(value: Any, name: str, levels: int = _LEVELS) -> Iterator[tuple[str, Any]]:
    """Yields the leaves of nested dicts with their paths. A leaf is an array, or in types that Parquet has."""
    if isinstance(value, dict) and value and levels:
        for key, each in value.items():
            yield from _leaves(each, f"{name}.{key}", levels - 1)
    else:
        array = _array(value)
        yield name, plain(value, _listed, levels) if array is None else array


def _read(messages: list[RecordedMessage], allow_pickle: bool, advance: Callable[[int], None]) -> dict[str, list[Any]]:
    """Returns the values of all messages for each path. Arrays are views of the recording."""
    columns: dict[str, list[Any]] = {"channel": [], "time_ns": [], "sequence": []}
    for number, message in enumerate(messages):
        row = {"channel": message.channel, "time_ns": message.time_ns, "sequence": message.sequence}
        with _naming(message):
            row.update(_leaves(message.load(copy=False, allow_pickle=allow_pickle), "value"))
        for name, value in row.items():
            column = columns.setdefault(name, [])
            column += [None] * (number - len(column))
            column.append(value)
        advance(1)
    return {name: column + [None] * (len(messages) - len(column)) for name, column in columns.items()}


def _type_of(pa: Any, values: list[Any]) -> Any:
    """Returns a tensor type for arrays of one shape, a list type for other arrays, and None for other values."""
    arrays = [value for value in values if value is not None]
    if not arrays or not all(isinstance(value, np.ndarray) for value in arrays):
        return None
    item, shapes = (
        pa.from_numpy_dtype(np.result_type(*{each.dtype for each in arrays})),
        {each.shape for each in arrays},
    )
    if len(shapes) == 1 and arrays[0].size:
        return pa.fixed_shape_tensor(item, arrays[0].shape)
    if len({len(shape) for shape in shapes}) > 1:
        return None
    for _ in range(arrays[0].ndim):
        item = pa.list_(item)
    return item


def _converted(pa: Any, values: list[Any], wanted: Any) -> Any:
    arrays = [value for value in values if value is not None]
    if not arrays:
        return pa.nulls(len(values), wanted)
    is_null = np.array([value is None for value in values])
    if isinstance(wanted, pa.FixedShapeTensorType):
        missing = np.zeros(wanted.shape, arrays[0].dtype)
        flat = np.stack([missing if value is None else value for value in values]).reshape(-1)
        items = pa.array(flat).cast(wanted.value_type)
        storage = pa.FixedSizeListArray.from_arrays(items, len(flat) // len(values), mask=pa.array(is_null))
        return pa.ExtensionArray.from_storage(wanted, storage)
    shapes = [(0,) * arrays[0].ndim if value is None else value.shape for value in values]
    inner = wanted
    for _ in shapes[0]:
        inner = inner.value_type
    nested = pa.array(np.concatenate([array.reshape(-1) for array in arrays])).cast(inner)
    for axis in reversed(range(len(shapes[0]))):
        lengths = np.concatenate([np.full(math.prod(shape[:axis]), shape[axis], np.int64) for shape in shapes])
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        nested = pa.ListArray.from_arrays(offsets, nested, mask=None if axis else pa.array(is_null))
    return nested


def _groups(messages: list[RecordedMessage]) -> Iterator[slice]:
    """Yields the rows that are converted at once."""
    first = nbytes = 0
    for number, message in enumerate(messages, 1):
        nbytes += message.frame.nbytes
        if number - first == _GROUP_ROWS or nbytes >= _GROUP_BYTES or number == len(messages):
            yield slice(first, number)
            first, nbytes = number, 0


def to_parquet(
    messages: list[RecordedMessage],
    out: BinaryIO,
    allow_pickle: bool,
    advance: Callable[[int], None] = lambda count: None,
) -> None:
    """Writes one row per message, and one column per leaf of a dict, by its path. A missing value is null.

    Arrays of one shape become tensors, and those of several shapes lists; both have a dtype for all values. Calls
    `advance` with the number of messages that were read, and again with those that were written. Raises ValueError if
    the leaves of a path have no common type, or a type that Parquet lacks. Needs pyarrow.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = _read(messages, allow_pickle, advance)
    try:
        types = {name: _type_of(pa, values) for name, values in columns.items()}
        others = {name: pa.array(map(_listed, columns[name])) for name, known in types.items() if known is None}
        schema = pa.schema([(name, known or others[name].type) for name, known in types.items()])
        # Statistics, and a search for equal values, would take more time than the arrays themselves.
        scalars = [name for name, known in types.items() if known is None and not pa.types.is_nested(others[name].type)]
        options: dict[str, Any] = {"use_dictionary": scalars, "write_statistics": scalars, "compression": "lz4"}
        tensors = {name: known.value_type for name, known in types.items() if hasattr(known, "shape")}
        small = [name for name, item in tensors.items() if pa.types.is_integer(item) and item.bit_width < _STORED_BITS]
        if small and int(pa.__version__.partition(".")[0]) >= _SPLITS_INTEGERS:
            options["column_encoding"] = {f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in small}
        with pq.ParquetWriter(out, schema, **options) as writer:
            for rows in _groups(messages):
                parts = [
                    others[name][rows] if known is None else _converted(pa, columns[name][rows], known)
                    for name, known in types.items()
                ]
                writer.write_table(pa.Table.from_arrays(parts, schema=schema))
                advance(len(parts[0]))
    except (pa.ArrowException, OverflowError, RecursionError, TypeError) as error:
        raise ValueError(f"the messages do not have the same columns: {error}") from error
