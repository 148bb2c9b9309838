"""Arrays, array scalars, dtypes and masked arrays keep their dtype, shape, order, flags and sharing."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import pytest
from exact import assert_same, assert_same_array

import shmtree
from shmtree._codec import dtypes


def through(value: object, **options: Any) -> Any:
    return shmtree.unpack(bytes(shmtree.pack(value, allow_pickle=False)), **options)


NUMERIC = "? b B h H i I l L q Q e f d g F D G".split()
DTYPES = [
    *NUMERIC,
    *[f">{code}" for code in "i2 i4 i8 u2 f2 f4 f8 c8 c16".split()],
    *"S1 S5 U1 U7 >U3 V3 V16".split(),
    *"M8[ns] M8[D] M8[25s] M8 m8[us] m8 >M8[ms] >m8[h]".split(),
    np.dtype([("a", "i4"), ("b", "f8")]),
    np.dtype([("a", "i4"), ("b", "f8")], align=True),
    np.dtype([("a", ">i2"), ("s", "S3"), ("u", "U2"), ("t", "M8[s]")]),
    np.dtype([("grid", "f4", (2, 3)), ("inner", [("x", "u1"), ("y", ">u4")])]),
    np.dtype([(("title", "name"), "i8"), ("plain", "?")]),
    np.dtype({"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [4, 0], "itemsize": 16}),
    np.dtype({"names": [], "formats": [], "itemsize": 8}),
    np.dtype([("ä", "i4"), ("日本", "f4")]),
]
# long long is another C type of the same size. As with pickle, an array of it arrives as int64.
EXACT_DTYPES = [dtype for dtype in DTYPES if dtype not in ("q", "Q")]
SHAPES = [(), (0,), (1,), (7,), (3, 4), (2, 0, 3), (2, 3, 4), (1,) * 32]


def filled(dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    raw = (np.arange(count * dtype.itemsize, dtype=np.uint64) * 37 % 120).astype(np.uint8)
    if dtype.kind == "U":
        raw = np.zeros(count * dtype.itemsize, np.uint8)
        step = np.frombuffer(np.array("x", dtype).tobytes()[:4], np.uint8)
        raw.reshape(-1, 4)[:] = step
    if dtype.kind == "b":
        raw %= 2
    made = np.empty(shape, dtype)
    if raw.size:
        made.reshape(-1).view(np.uint8 if dtype.itemsize else dtype)[:] = raw
    return made


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_arrays_of_every_dtype_and_shape_round_trip(dtype: Any, shape: tuple[int, ...]) -> None:
    if not np.dtype(dtype).itemsize:
        pytest.skip("zero-width items cannot be filled")
    value = filled(dtype, shape)
    assert_same(through(value), value)
    assert_same(through({"deep": [value]}), {"deep": [value]})


@pytest.mark.parametrize("dtype", ["S0", "U0", "V0"])
def test_zero_width_items_round_trip(dtype: str) -> None:
    value = np.zeros((3,), np.dtype(dtype))
    got = through(value)
    assert got.dtype == value.dtype and got.shape == value.shape


@pytest.mark.parametrize("dtype", ["S0", "U0"])
def test_fields_of_zero_width_text_are_pickled(dtype: str) -> None:
    value = np.zeros(20, [("text", dtype), ("number", "i4")])["text"]
    assert value.dtype.itemsize == 0
    got = shmtree.unpack(shmtree.pack(value))
    assert got.dtype == value.dtype and got.shape == value.shape
    with pytest.raises(shmtree.PickleRefused):
        shmtree.pack(value, allow_pickle=False)


@pytest.mark.parametrize("dtype", EXACT_DTYPES, ids=str)
def test_dtypes_round_trip(dtype: Any) -> None:
    want = np.dtype(dtype)
    got = through(want)
    assert type(got) is type(want) and got == want and got.byteorder == want.byteorder
    assert got.isalignedstruct == want.isalignedstruct and got.fields == want.fields


def test_structured_dtype_is_written_as_documented() -> None:
    frame = bytes(shmtree.pack(np.zeros(2, [("a", "<i4"), ("b", ">f8", (2,))])))
    assert b"{'names': ['a', 'b'], 'formats': ['<i4', ('>f8', (2,))], 'offsets': [0, 4], 'itemsize': 20}" in frame


def test_dtypes_of_objects_and_subarrays_round_trip() -> None:
    for want in (np.dtype(object), np.dtype((np.int32, (2, 3))), np.dtype([("o", object), ("i", "i4")])):
        assert through(want) == want


@pytest.mark.parametrize("dtype", [d for d in EXACT_DTYPES if np.dtype(d).itemsize], ids=str)
def test_numpy_scalar_keeps_its_type(dtype: Any) -> None:
    value = filled(dtype, (1,))[0]
    assert_same(through(value), value)
    assert_same(through({"x": value, "y": [value, value]}), {"x": value, "y": [value, value]})


def test_numpy_scalars_are_not_python_scalars() -> None:
    value = [
        np.float64(1.5),
        1.5,
        np.bool_(True),
        True,
        np.str_("x"),
        "x",
        np.bytes_(b"y"),
        b"y",
        np.complex128(1j),
        1j,
    ]
    assert_same(through(value), value)
    assert_same(through(np.float64("nan")), np.float64("nan"))


@pytest.mark.parametrize("size", [4, 100_000])
def test_read_only_and_writable_flags_are_kept(size: int) -> None:
    value = np.arange(size)
    frame = bytearray(shmtree.pack(value))
    assert shmtree.unpack(frame).flags.writeable
    value.flags.writeable = False
    frame = bytearray(shmtree.pack(value))
    assert not shmtree.unpack(frame).flags.writeable
    assert not shmtree.unpack(frame, copy=True).flags.writeable


def test_same_array_twice_is_stored_once_and_shares_memory() -> None:
    value = np.arange(50_000)
    frame = shmtree.pack({"a": value, "b": [value]})
    assert frame.nbytes < value.nbytes + 4096
    for copy in (None, True, False):
        got = shmtree.unpack(bytearray(frame), copy=copy)
        got["a"][3] = -1
        assert got["b"][0][3] == -1, f"copy={copy}"


def test_small_arrays_keep_sharing_memory() -> None:
    value = np.arange(4)
    for copy in (None, True, False):
        got = shmtree.unpack(bytearray(shmtree.pack([value, value, value[1:]])), copy=copy)
        got[0][1] = 77
        assert got[1][1] == 77 and got[2][0] == 77, f"copy={copy}"


def test_overlapping_views_keep_sharing_memory() -> None:
    base = np.arange(60_000, dtype=np.int32).reshape(200, 300)
    value = {
        "row": base[3],
        "rows": base[2:100],
        "tail": base[50:],
        "all": base,
        "byte": base.view(np.uint8),
        "t": base.T,
    }
    frame = shmtree.pack(value)
    assert frame.nbytes < base.nbytes + 8192
    got = shmtree.unpack(bytearray(frame))
    for name, want in value.items():
        assert_same_array(got[name], want, name)
    got["row"][7] = -5
    assert got["all"][3, 7] == -5 and got["rows"][1, 7] == -5 and got["t"][7, 3] == -5


def test_views_that_overlap_in_a_chain_keep_sharing_memory() -> None:
    base = np.arange(30_000, dtype=np.int32)
    value = [base[:15_000], base[20_000:], base[10_000:25_000]]
    frame = shmtree.pack(value)
    assert frame.nbytes < base.nbytes + 4096
    got = shmtree.unpack(bytearray(frame))
    got[2][0] = -1
    got[2][-1] = -2
    assert got[0][10_000] == -1 and got[1][4_999] == -2
    for g, w in zip(got, value):
        assert len(g) == len(w)


def test_separate_views_send_only_their_own_bytes() -> None:
    base = np.zeros(10_000_000, np.uint8)
    frame = shmtree.pack([base[:5000], base[-5000:]])
    assert frame.nbytes < 20_000


def test_slice_of_a_large_array_sends_only_the_slice() -> None:
    assert shmtree.pack(np.zeros(10_000_000, np.uint8)[5:500]).nbytes < 4096


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_matrix_and_record_scalar_keep_their_type() -> None:
    for value in (np.matrix([[1, 2]]), np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])[0]):
        got = shmtree.unpack(shmtree.pack(value))
        assert type(got) is type(value) and np.all(got == value) and got.dtype == value.dtype


def test_dtype_metadata_is_kept() -> None:
    value = np.zeros(3, np.dtype("f8", metadata={"unit": "m"}))
    assert shmtree.unpack(shmtree.pack(value)).dtype.metadata == {"unit": "m"}


MASKED = [
    np.ma.array([1, 2, 3], mask=[0, 1, 0]),
    np.ma.array([1.0, 2.0]),
    np.ma.array([[1, 2], [3, 4]], mask=True, fill_value=7),
    np.ma.array(["a", "bc"], mask=[1, 0]),
    np.ma.array([1, 2], mask=[1, 0], hard_mask=True),
    np.ma.array([(1, 2.0)], mask=[(1, 0)], dtype=[("a", "i4"), ("b", "f8")]),
    np.ma.masked_all((3, 0)),
    np.ma.array(5, mask=True),
    np.ma.array(np.asfortranarray(np.arange(6).reshape(2, 3)), mask=np.asfortranarray(np.eye(2, 3))),
]


@pytest.mark.parametrize("value", MASKED, ids=lambda v: repr(v)[:40])
def test_masked_array_round_trips(value: np.ma.MaskedArray) -> None:
    assert_same(through(value), value)
    assert_same(through([value])[0], value)


def test_the_masked_constant_is_the_same_object() -> None:
    assert shmtree.unpack(shmtree.pack(np.ma.masked)) is np.ma.masked


@pytest.mark.parametrize(
    ("copy", "views"), [(None, {"large"}), (True, set()), (False, {"large", "small"})], ids=["None", "True", "False"]
)
def test_copy_selects_the_arrays_that_arrive_as_views(copy: bool | None, views: set[str]) -> None:
    frame = bytearray(shmtree.pack({"large": np.zeros(100_000), "small": np.zeros(10)}))
    got = shmtree.unpack(frame, copy=copy)
    assert {name for name, item in got.items() if np.shares_memory(item, np.frombuffer(frame, np.uint8))} == views
    frame = bytearray(shmtree.pack([np.zeros(8000, np.uint8)]))  # a message of up to 16 KiB is copied out
    whole = np.frombuffer(frame, np.uint8)
    assert np.shares_memory(shmtree.unpack(frame, copy=copy)[0], whole) == (copy is False)


def test_only_views_keep_the_buffer() -> None:
    frame = bytearray(shmtree.pack(np.zeros(100_000)))
    view = shmtree.unpack(frame)
    with pytest.raises(BufferError):
        frame.append(0)
    del view
    frame.append(0)
    frame = bytearray(shmtree.pack(np.zeros(10)))
    small = shmtree.unpack(frame)
    frame.append(0)
    assert small.sum() == 0


def test_views_are_aligned_to_64_bytes() -> None:
    frame = shmtree.pack([np.zeros(3, np.uint8)] + [np.zeros(5001, np.uint8) for _ in range(4)])
    start = np.frombuffer(frame, np.uint8).ctypes.data
    for view in shmtree.unpack(frame, copy=False):
        assert (view.ctypes.data - start) % 64 == 0


def test_frame_at_an_odd_address_is_readable() -> None:
    value = {"a": np.arange(10_000.0), "b": np.arange(3)}
    odd = memoryview(bytearray(b"x" + bytes(shmtree.pack(value))))[1:]
    for copy in (None, True, False):
        assert shmtree.unpack(odd, copy=copy)["b"].tolist() == [0, 1, 2]
        assert shmtree.unpack(odd, copy=copy)["a"].flags.aligned == (copy is not False)
        assert (shmtree.unpack(odd, copy=copy)["a"] == value["a"]).all()


def test_buffers_of_other_types_inside_a_pickle_are_out_of_band() -> None:
    value = Wrapper(np.arange(100_000))
    frame = shmtree.pack(value)
    assert frame.nbytes < value.inner.nbytes + 4096
    got = shmtree.unpack(frame)
    assert (got.inner == value.inner).all() and np.shares_memory(got.inner, np.frombuffer(frame, np.uint8))
    assert not np.shares_memory(shmtree.unpack(frame, copy=True).inner, np.frombuffer(frame, np.uint8))


class Wrapper:
    def __init__(self, inner: object) -> None:
        self.inner = inner


def test_dtype_parser_retries_when_another_thread_interferes(monkeypatch: pytest.MonkeyPatch) -> None:
    parse, calls = ast.literal_eval, [0]

    def disturbed(text: str) -> Any:
        calls[0] += 1
        if calls[0] < 3:
            raise SystemError("AST constructor recursion depth mismatch (before=24, after=20)")
        return parse(text)

    dtype = np.dtype([("disturbed", np.int32), ("y", np.float64)])
    text = dtypes.describe(dtype, False)
    assert text is not None
    monkeypatch.setattr(ast, "literal_eval", disturbed)
    assert dtypes.parse(text) == dtype and calls[0] == 3
