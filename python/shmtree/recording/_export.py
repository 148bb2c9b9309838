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
_GROUP_ROWS, _GROUP_BYTES = 1024, 64 << 20  # of a Parquet file that are converted at once


def _array(value: Any) -> np.ndarray[Any, Any] | None:
    """Returns an array or tensor as an array of numbers that other tools know; None if the value is no such array."""
    if hasattr(value, "detach") and hasattr(value, "tolist"):  # a tensor
        with contextlib.suppress(TypeError, RuntimeError):  # NumPy has no such dtype
            value = value.detach().cpu().numpy()
    known = (
        isinstance(value, np.ndarray) and value.ndim > 0 and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8
    )
    return value.astype(value.dtype.newbyteorder("="), copy=False) if known else None


def plain(value: Any, arrays: Callable[[np.ndarray[Any, Any]], Any] = np.ndarray.tolist, levels: int = _LEVELS) -> Any:
    """Returns the value in types that JSON and Parquet have: arrays as `arrays` returns them, unknown types as texts.

    Raises ValueError for a value that is nested over more than `levels` levels, so also for one that contains itself.
    """
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if levels == 0:
        raise ValueError(f"the value contains itself, or is nested deeper than {_LEVELS} levels")
    if isinstance(value, dict):
        return {str(key): plain(each, arrays, levels - 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, arrays, levels - 1) for each in value]
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if (array := _array(value)) is not None:
        return arrays(array)
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufUS":
        return value.tolist()
    if hasattr(value, "detach") and hasattr(value, "tolist"):
        return value.detach().tolist()
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


#: Forms of an array in JSON, by their name.
ARRAYS: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {
    "list": np.ndarray.tolist,
    "base64": lambda array: {**_described(array), "base64": base64.b64encode(array.tobytes()).decode()},
    "omit": _described,
}


def _for_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _for_json(each) for key, each in value.items()}
    return [_for_json(each) for each in value] if isinstance(value, list) else value


def to_jsonl(messages: Iterable[RecordedMessage], write: Callable[[str], Any], allow_pickle: bool, arrays: str) -> None:
    """Calls `write` with a line for each message, a JSON object: channel, time_ns, sequence, value.

    Bytes are base64; NaN and infinity are null. `arrays` is a key of `ARRAYS`.
    """
    for message in messages:
        with _naming(message):
            value = _for_json(plain(message.load(copy=False, allow_pickle=allow_pickle), ARRAYS[arrays]))
            row = {"channel": message.channel, "time_ns": message.time_ns, "sequence": message.sequence, "value": value}
            line = json.dumps(row, allow_nan=False)
        write(line + "\n")


# --- Parquet


def _columns(value: Any, name: str, levels: int = _LEVELS) -> Iterator[tuple[str, Any]]:
    """Yields the leaves of nested dicts with their paths. A leaf is an array, or in types that Parquet has."""
    if isinstance(value, dict) and value and levels:
        for key, each in value.items():
            yield from _columns(each, f"{name}.{key}", levels - 1)
    else:
        array = _array(value)
        yield name, plain(value, levels=levels) if array is None else array


def _row(message: RecordedMessage, allow_pickle: bool) -> dict[str, Any]:
    row = {"channel": message.channel, "time_ns": message.time_ns, "sequence": message.sequence}
    with _naming(message):
        row.update(_columns(message.load(copy=False, allow_pickle=allow_pickle), "value"))
    return row


def _groups(messages: list[RecordedMessage], allow_pickle: bool) -> Iterator[list[dict[str, Any]]]:
    rows, nbytes = list[dict[str, Any]](), 0
    for message in messages:
        rows.append(_row(message, allow_pickle))
        nbytes += message.frame.nbytes
        if len(rows) == _GROUP_ROWS or nbytes >= _GROUP_BYTES:
            yield rows
            rows, nbytes = [], 0
    if rows:
        yield rows


def _lists_of(pa: Any, value_type: Any, ndim: int) -> Any:
    for _ in range(ndim):
        value_type = pa.list_(value_type)
    return value_type


def _type_of(pa: Any, values: list[Any]) -> Any:
    """Returns a tensor type if the values are arrays of one shape and dtype, and a list type for other arrays."""
    present = [value for value in values if value is not None]
    if present and all(isinstance(value, np.ndarray) for value in present):
        dtype, shapes = np.result_type(*{value.dtype for value in present}), {value.shape for value in present}
        if len(shapes) == 1 and present[0].size and dtype == present[0].dtype:
            return pa.fixed_shape_tensor(pa.from_numpy_dtype(dtype), present[0].shape)
        if len({len(shape) for shape in shapes}) == 1:
            return _lists_of(pa, pa.from_numpy_dtype(dtype), present[0].ndim)
    return pa.array([_listed(value) for value in values]).type


def _listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _unified(pa: Any, schemas: list[Any]) -> Any:
    """Returns one schema for all groups. A column stays a tensor if all groups have that tensor."""
    types: dict[str, set[Any]] = {}
    for field in (field for schema in schemas for field in schema):
        types.setdefault(field.name, set()).add(field.type)

    def merged(field: Any) -> Any:
        is_tensor = isinstance(field.type, pa.FixedShapeTensorType)
        if not is_tensor or types[field.name] <= {field.type, pa.null()}:
            return field
        return pa.field(field.name, _lists_of(pa, field.type.value_type, len(field.type.shape)))

    def known(field: Any) -> bool:
        return field.type != pa.null() or types[field.name] == {pa.null()}

    alike = [pa.schema([merged(field) for field in schema if known(field)]) for schema in schemas]
    return pa.unify_schemas(alike or [pa.schema([])], promote_options="permissive")


def _converted(pa: Any, values: list[Any], wanted: Any) -> Any:
    arrays = [value for value in values if value is not None]
    if not arrays or not all(isinstance(value, np.ndarray) for value in arrays):
        return pa.array([_listed(value) for value in values], wanted)
    is_null = np.array([value is None for value in values])
    if isinstance(wanted, pa.FixedShapeTensorType):
        missing = np.zeros(wanted.shape, arrays[0].dtype)
        flat = np.stack([missing if value is None else value for value in values]).reshape(-1)
        storage = pa.FixedSizeListArray.from_arrays(pa.array(flat), len(flat) // len(values), mask=pa.array(is_null))
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


def to_parquet(
    messages: list[RecordedMessage],
    out: BinaryIO,
    allow_pickle: bool,
    advance: Callable[[int], None] = lambda count: None,
) -> None:
    """Writes one row per message, and one column per leaf of a dict, by its path. A missing value is null.

    Arrays of one shape become tensors, and those of several shapes lists; both keep the dtype. Reads each message
    twice, and calls `advance` with the number of messages after each part of them. Raises ValueError if the leaves of a
    path have no common type, or a type that Parquet lacks. Needs pyarrow.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    def schema_of(rows: list[dict[str, Any]]) -> Any:
        names = dict.fromkeys(name for row in rows for name in row)
        return pa.schema([(name, _type_of(pa, [row.get(name) for row in rows])) for name in names])

    try:
        schemas = []
        for rows in _groups(messages, allow_pickle):
            schemas.append(schema_of(rows))
            advance(len(rows))
        schema = _unified(pa, schemas)
        # Statistics, and a search for equal values, would take more time than the arrays themselves.
        scalars = [
            field.name for field in schema if not pa.types.is_nested(getattr(field.type, "storage_type", field.type))
        ]
        options = {"use_dictionary": scalars, "write_statistics": scalars, "compression": "lz4"}
        with pq.ParquetWriter(out, schema, **options) as writer:
            for rows in _groups(messages, allow_pickle):
                columns = [_converted(pa, [row.get(field.name) for row in rows], field.type) for field in schema]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))
                advance(len(rows))
    except (pa.ArrowException, OverflowError, RecursionError, TypeError) as error:
        raise ValueError(f"the messages do not have the same columns: {error}") from error
