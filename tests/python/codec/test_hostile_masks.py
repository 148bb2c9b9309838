"""Decoding a masked array costs memory in proportion to its frame, even if its dtype has more fields than bytes."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import shmtree
from shmtree._codec import masked

MIB = 1 << 20

#: Dtypes with a mask or fill value that NumPy makes much larger than an element.
WIDE = {
    "overlapping fields": np.dtype(
        {"names": [f"f{i}" for i in range(200)], "formats": ["i1"] * 200, "offsets": [0] * 200}
    ),
    "overlapping records": np.dtype({"names": ["a", "b"], "formats": [[("x", "i1")], "i1"], "offsets": [0, 0]}),
    "fields without width": np.dtype([("x", "i1"), *((f"f{i}", "V0") for i in range(200))]),
    "an array without width": np.dtype([("x", "i1"), ("none", np.dtype([]), (MIB,))]),
}


def without_mask(array: Any) -> Any:
    """Returns a masked array of records without a mask. NumPy's constructor would add one."""
    made = array.view(np.dtype((np.void, array.dtype.itemsize))).view(np.ma.MaskedArray)
    masked.set_dtype(made, array.dtype)
    assert made._mask is np.ma.nomask
    return made


def unpack_within(frame: bytes, most: int) -> Any:
    tracemalloc.start()
    try:
        return shmtree.unpack(frame)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < most


@pytest.mark.parametrize("dtype", WIDE.values(), ids=WIDE)
def test_masked_array_without_mask_gets_no_mask(dtype: np.dtype[Any]) -> None:
    frame = bytes(shmtree.pack(without_mask(np.zeros(100_000, dtype)), allow_pickle=False))
    made = unpack_within(frame, len(frame) + 2 * MIB)
    assert type(made) is np.ma.MaskedArray and made.dtype == dtype and made._mask is np.ma.nomask


RECORDS = {
    "plain": [("a", "i4"), ("b", "f8")],
    "overlapping": {"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, 2]},
    "nested": [("a", [("x", "i1"), ("y", "f4")]), ("b", "i2", (2, 3))],
    "padded": {"names": ["a"], "formats": ["i1"], "offsets": [3], "itemsize": 16},
    "titled": [(("title", "a"), "i4")],
}


@pytest.mark.parametrize("fill", [False, True], ids=["no fill value", "a fill value"])
@pytest.mark.parametrize("kind", ["masked", "without a mask", "strided", "read-only"])
@pytest.mark.parametrize("fields", RECORDS.values(), ids=RECORDS)
def test_masked_records_round_trip(fields: Any, kind: str, fill: bool) -> None:
    dtype = np.dtype(fields)
    data = np.frombuffer(np.random.default_rng(7).bytes(6 * dtype.itemsize), dtype).copy()
    if kind == "strided":
        data = data[::-2]
    if kind == "without a mask":
        value = without_mask(data)
    else:
        value = np.ma.MaskedArray(data)
        value[1] = np.ma.masked
    value.flags.writeable = kind != "read-only"
    if fill:
        value._fill_value = np.zeros((), dtype)
    made = shmtree.unpack(shmtree.pack(value, allow_pickle=False))
    assert type(made) is np.ma.MaskedArray and made.dtype == dtype and made.flags.writeable == value.flags.writeable
    assert repr(made.data.tolist()) == repr(value.data.tolist())  # repr: NaN differs from itself
    assert repr(made.filled().tolist()) == repr(value.filled().tolist())
    assert (made._mask is np.ma.nomask) == (value._mask is np.ma.nomask)
    assert np.array_equal(np.ma.getmaskarray(made), np.ma.getmaskarray(value))
    assert repr(made._fill_value) == repr(value._fill_value)
