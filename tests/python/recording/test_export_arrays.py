"""Arrays of a recording in Parquet and JSON: their dtype, shape and numbers."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmtree
from shmtree.recording import RecordedMessage, Recording, _export, _mcap


def recorded(path: Path, values: list[Any]) -> list[RecordedMessage]:
    writer = _mcap.Writer(path / "a.mcap")
    channel = writer.add_channel("a")
    with writer:
        writer.begin()
        writer.write(channel, [(n + 1, n, bytes(shmtree.pack({"x": value}))) for n, value in enumerate(values)])
    return list(Recording(path / "a.mcap"))


def parquet(path: Path, values: list[Any]) -> Any:
    """Returns the column of the values in the Parquet file of a recording."""
    pq = pytest.importorskip("pyarrow.parquet")
    with open(path / "out", "wb") as out:
        _export.to_parquet(recorded(path, values), out, False)
    return pq.read_table(path / "out")["value.x"].combine_chunks()


def in_json(path: Path, value: Any, arrays: str) -> Any:
    lines: list[str] = []
    _export.to_jsonl(recorded(path, [value]), lines.append, False, arrays)
    return json.loads(lines[0])["value"]["x"]


@pytest.mark.parametrize("dtype", ["u1", "i8", "f2", "f4", "f8", ">i4"])
def test_arrays_of_one_shape_become_tensors(dtype: str, tmp_path: Path) -> None:
    arrays = [np.arange(6, dtype=dtype).reshape(2, 3) + n for n in range(3)]
    column = parquet(tmp_path, arrays)
    assert column.type.shape == [2, 3]
    assert column.type.value_type.to_pandas_dtype() is np.dtype(dtype).newbyteorder("=").type
    np.testing.assert_array_equal(column.to_numpy_ndarray(), np.stack(arrays))


def test_boolean_arrays_keep_their_values_in_parquet(tmp_path: Path) -> None:
    assert parquet(tmp_path, [np.array([True, False])]).to_pylist() == [[True, False]]


def test_transposed_arrays_keep_their_order_in_parquet(tmp_path: Path) -> None:
    array = np.arange(6).reshape(2, 3).T
    np.testing.assert_array_equal(parquet(tmp_path, [array]).to_numpy_ndarray(), array[None])


def test_missing_tensor_is_null(tmp_path: Path) -> None:
    column = parquet(tmp_path, [np.arange(2), None, np.ones(2, int)])
    assert column.to_pylist() == [[0, 1], None, [1, 1]]
    assert column.type.shape == [2]


def test_arrays_of_several_shapes_become_lists(tmp_path: Path) -> None:
    arrays = [np.arange(6, dtype="f4").reshape(2, 3), None, np.ones((1, 3), "f4"), np.ones((0, 3), "f4")]
    column = parquet(tmp_path, arrays)
    assert column.to_pylist() == [[[0, 1, 2], [3, 4, 5]], None, [[1, 1, 1]], []]
    assert column.type.value_type.value_type.to_pandas_dtype() is np.float32


@pytest.mark.parametrize("rows", [1, 1024])
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([np.arange(2), None, np.ones(2, "i8")], [[0, 1], None, [1, 1]]),
        ([np.arange(2), None, np.ones(3, "f4")], [[0, 1], None, [1, 1, 1]]),
        ([np.arange(2), [1.5], np.ones(3, "f4")], [[0, 1], [1.5], [1, 1, 1]]),
        ([np.arange(2, dtype="i1"), np.ones(2, "f8")], [[0, 1], [1, 1]]),
    ],
    ids=["null", "shapes", "list", "dtypes"],
)
def test_groups_of_rows_share_the_type_of_a_column(
    values: list[Any], expected: list[Any], rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_export, "_GROUP_ROWS", rows)
    assert parquet(tmp_path, values).to_pylist() == expected


def test_groups_of_rows_are_limited_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_export, "_GROUP_BYTES", 1 << 16)
    arrays = [np.full(40_000, n, np.uint8) for n in range(5)]
    np.testing.assert_array_equal(parquet(tmp_path, arrays).to_numpy_ndarray(), np.stack(arrays))


def test_arrays_in_json_are_lists_by_default(tmp_path: Path) -> None:
    assert in_json(tmp_path, np.arange(4).reshape(2, 2), "list") == [[0, 1], [2, 3]]


def test_arrays_in_json_as_base64_can_be_restored(tmp_path: Path) -> None:
    array = np.arange(6, dtype="f4").reshape(2, 3).T
    got = in_json(tmp_path, [array], "base64")[0]
    restored = np.frombuffer(base64.b64decode(got["base64"]), got["dtype"]).reshape(got["shape"])
    np.testing.assert_array_equal(restored, array)


def test_omitted_arrays_in_json_keep_dtype_and_shape(tmp_path: Path) -> None:
    assert in_json(tmp_path, np.zeros((2, 3), "u1"), "omit") == {"dtype": "uint8", "shape": [2, 3]}
