"""Equality that also compares exact types, dtypes, layout and sharing, for tests."""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import Any

import numpy as np


def assert_same(got: Any, want: Any, where: str = "value") -> None:
    """Fails unless both have exactly the same type and, at every level, the same value."""
    assert type(got) is type(want), f"{where}: {type(got)} is not {type(want)}"
    if isinstance(want, np.ma.MaskedArray):
        assert_same(np.ma.getdata(got), np.ma.getdata(want), where + ".data")
        assert_same(np.ma.getmaskarray(got), np.ma.getmaskarray(want), where + ".mask")
        assert (got.mask is np.ma.nomask) == (want.mask is np.ma.nomask), where
        assert_same(np.asarray(got.fill_value), np.asarray(want.fill_value), where + ".fill_value")
        assert got.hardmask == want.hardmask, where
    elif isinstance(want, np.ndarray):
        assert_same_array(got, want, where)
    elif isinstance(want, np.generic):
        assert got.dtype == want.dtype, f"{where}: {got.dtype!r} is not {want.dtype!r}"
        assert got.tobytes() == want.tobytes(), where
    elif isinstance(want, (float, complex)):
        assert repr(got) == repr(want), where
    elif isinstance(want, dict):
        if isinstance(want, collections.defaultdict):
            assert got.default_factory is want.default_factory, where
        assert len(got) == len(want), f"{where}: {len(got)} entries, not {len(want)}"
        for index, ((got_key, got_item), (want_key, want_item)) in enumerate(zip(got.items(), want.items())):
            assert_same(got_key, want_key, f"{where} key {index}")
            assert_same(got_item, want_item, f"{where}[{want_key!r}]")
    elif isinstance(want, (list, tuple, collections.deque)):
        if isinstance(want, collections.deque):
            assert got.maxlen == want.maxlen, where
        assert len(got) == len(want), f"{where}: {len(got)} items, not {len(want)}"
        for index, (got_item, want_item) in enumerate(zip(got, want)):
            assert_same(got_item, want_item, f"{where}[{index}]")
    elif dataclasses.is_dataclass(want):
        for field in dataclasses.fields(want):
            assert hasattr(got, field.name) == hasattr(want, field.name), f"{where}.{field.name}"
            if hasattr(want, field.name):
                assert_same(getattr(got, field.name), getattr(want, field.name), f"{where}.{field.name}")
    elif isinstance(want, slice):
        assert_same((got.start, got.stop, got.step), (want.start, want.stop, want.step), where)
    elif isinstance(want, memoryview):
        assert (got.format, got.shape, got.readonly) == (want.format, want.shape, want.readonly), where
        assert got.tobytes() == want.tobytes(), where
    elif type(want).__module__ == "torch":
        import torch

        assert got.dtype == want.dtype and got.shape == want.shape, where
        assert got.requires_grad == want.requires_grad, where
        as_bytes = [t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for t in (got, want)]
        assert as_bytes[0] == as_bytes[1], where
    else:
        assert got == want or (math.isnan(got) and math.isnan(want)), f"{where}: {got!r} is not {want!r}"


def assert_same_array(got: np.ndarray, want: np.ndarray, where: str = "array") -> None:
    """Fails unless dtype (including byte order, fields and alignment), shape, order, flags and bytes are the same."""
    assert got.dtype == want.dtype, f"{where}: {got.dtype!r} is not {want.dtype!r}"
    assert got.dtype.byteorder == want.dtype.byteorder, f"{where}: byte order {got.dtype.byteorder!r}"
    assert got.dtype.descr == want.dtype.descr if want.dtype.names is None else got.dtype.fields == want.dtype.fields
    assert got.dtype.isalignedstruct == want.dtype.isalignedstruct, where
    assert got.shape == want.shape, f"{where}: {got.shape} is not {want.shape}"
    assert got.flags.aligned, where
    if want.flags.contiguous or want.flags.f_contiguous:
        assert got.flags.c_contiguous == want.flags.c_contiguous, f"{where}: {got.flags}"
        assert got.flags.f_contiguous == want.flags.f_contiguous, f"{where}: {got.flags}"
    assert not got.flags.writeable or want.flags.writeable, f"{where}: a read-only array came back writable"
    if want.dtype.hasobject:
        assert_same(got.tolist(), want.tolist(), where)
    else:
        assert got.tobytes() == want.tobytes(), f"{where}: other bytes"
