"""Accepted and refused types of the rows of a replay buffer."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from replay_options import grouped

import shmtree
from shmtree.replay import Episodes, Limits, Prioritized, RateLimit, ReplayBuffer, Sampling

OBS = np.arange(4, dtype=np.float32)
ROW = {"obs": {"a": OBS, "b": (1, [2.0, True])}, "reward": 0.5}


def drawn(buffer: ReplayBuffer, row: Any) -> Any:
    buffer.add(row)
    return buffer.sample(1).data


@pytest.fixture
def buffer() -> ReplayBuffer:
    return ReplayBuffer(1, example=ROW)


def test_sample_has_the_structure_of_a_row(buffer):
    data = drawn(buffer, ROW)
    assert data["obs"]["a"].tolist() == [OBS.tolist()]
    assert isinstance(data["obs"]["b"], tuple)
    assert data["obs"]["b"][0].tolist() == [1]
    assert [leaf.tolist() for leaf in data["obs"]["b"][1]] == [[2.0], [True]]


def test_python_numbers_become_float32_int64_and_bool_columns():
    data = drawn(ReplayBuffer(1, example={"f": 0.0, "i": 0, "b": False}), {"f": 0.1, "i": -5, "b": True})
    assert {key: leaf.dtype.name for key, leaf in data.items()} == {"f": "float32", "i": "int64", "b": "bool"}
    assert [data["f"][0], data["i"][0], data["b"][0]] == [np.float32(0.1), -5, True]


def test_the_keys_of_a_row_may_come_in_any_order(buffer):
    data = drawn(buffer, OrderedDict(reward=3.5, obs={"b": (1, [2.0, True]), "a": OBS}))
    assert data["reward"].tolist() == [3.5]
    assert list(data) == ["obs", "reward"]


def test_a_row_may_be_an_array_alone():
    assert drawn(ReplayBuffer(1, example=OBS), OBS + 1).tolist() == [[1, 2, 3, 4]]


@pytest.mark.parametrize(
    "dtype",
    ["bool", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "g", "c8", "c16", "M8[s]", "m8[ms]"],
)
def test_arrays_and_scalars_of_every_dtype_round_trip(dtype):
    values = np.arange(6).reshape(2, 3).astype(dtype)
    data = drawn(
        ReplayBuffer(1, example={"array": values, "scalar": values[1, 2]}), {"array": values, "scalar": values[1, 2]}
    )
    assert data["array"].dtype == data["scalar"].dtype == values.dtype
    assert (data["array"][0] == values).all()
    assert data["scalar"][0] == values[1, 2]


def test_structured_arrays_round_trip():
    dtype = np.dtype([("x", "f4"), ("n", "i8", (2,))])
    value = np.array([(1.5, (2, 3))], dtype)
    assert (drawn(ReplayBuffer(1, example=value), value)[0] == value).all()


@pytest.mark.parametrize("dtype", ["u1", "i2", "u4", "i8", "u8"])
def test_the_bounds_of_an_integer_column_fit_it(dtype):
    buffer = ReplayBuffer(1, columns=dtype)
    for bound in (np.iinfo(dtype).min, np.iinfo(dtype).max):
        assert drawn(buffer, int(bound))[0] == bound
        assert drawn(buffer, np.array(bound))[0] == bound


@pytest.mark.guarantee("replay-refused-rows")
@pytest.mark.parametrize("value", [256, -1, 1 << 70, np.int64(256), np.array(-1), np.array(1 << 40)])
def test_an_integer_that_does_not_fit_its_column_is_refused(value):
    buffer = ReplayBuffer(1, columns={"a": np.uint8})
    with pytest.raises(ValueError, match=r"row\['a'\] is "):
        buffer.add({"a": value})
    assert len(buffer) == 0


@pytest.mark.parametrize(
    ("value", "column"),
    [
        (3, "f4"),
        (True, "i8"),
        (np.float64(0.5), "f4"),
        (np.int32(3), "f8"),
        (np.arange(3.0), ((3,), "f2")),
        ([1, 2], ((2,), "i4")),
    ],
)
def test_values_are_cast_as_same_kind_allows(value, column):
    assert (drawn(ReplayBuffer(1, columns=column), value)[0] == np.asarray(value)).all()


@pytest.mark.parametrize(
    ("value", "column"), [(0.5, "i8"), (1j, "f4"), (2, "?"), (np.zeros(2), ((2,), "i8")), (np.float32(1), "i4")]
)
def test_values_of_another_kind_are_refused_with_both_dtypes(value, column):
    buffer = ReplayBuffer(1, columns={"leaf": column})
    dtype = np.dtype(column if isinstance(column, str) else column[1])
    with pytest.raises(
        ValueError, match=rf"row\['leaf'\] is of \w+, which cannot be cast to {dtype}, the dtype of the column"
    ):
        buffer.add({"leaf": value})


def test_arrays_of_any_order_and_byte_order_are_added():
    values = np.arange(12.0).reshape(3, 4)
    buffer = ReplayBuffer(1, example=values)
    for same in (np.asfortranarray(values), values[::-1][::-1], values.astype(">f8"), values.tolist()):
        assert (drawn(buffer, same)[0] == values).all()


def test_tensors_are_added_as_arrays():
    torch = pytest.importorskip("torch")
    tensor = torch.arange(4.0, requires_grad=True)
    buffer = ReplayBuffer(1, example={"t": tensor, "n": torch.tensor(3)})
    data = drawn(buffer, {"t": tensor, "n": torch.tensor(4)})
    assert data["t"].tolist() == [[0.0, 1.0, 2.0, 3.0]]
    assert data["n"].tolist() == [4]


REFUSED = [
    ({"obs": ROW["obs"]}, r"row\['reward'\] is missing: .* a dict of 'obs', 'reward'"),
    ({**ROW, "more": 1}, r"row\['more'\] is unknown: .* a dict of 'obs', 'reward'"),
    ({"obs": ROW["obs"], "more": 1}, r"row\['reward'\] is missing; row\['more'\] is unknown"),
    ([1, 2], r"row is a list, but .* a dict of 'obs', 'reward'"),
    ({**ROW, "obs": {"a": np.zeros(3), "b": (1, [2.0, True])}}, r"row\['obs'\]\['a'\] has the shape \(3,\), .* \(4,\)"),
    ({**ROW, "obs": {"a": OBS, "b": (1, [2.0])}}, r"row\['obs'\]\['b'\]\[1\] has 1 parts, .* a list of 2"),
    ({**ROW, "obs": {"a": OBS, "b": [1, [2.0, True]]}}, r"row\['obs'\]\['b'\] has 'list' here, .* a tuple of 2"),
    ({**ROW, "reward": None}, r"row\['reward'\] is None"),
    ({**ROW, "reward": "much"}, r"row\['reward'\] is 'much'"),
    ({**ROW, "reward": [1.0]}, r"row\['reward'\] has the shape \(1,\), .* \(\)"),
    ({**ROW, "reward": object()}, r"row\['reward'\] is a object"),
]


@pytest.mark.guarantee("replay-refused-rows")
@pytest.mark.parametrize(("row", "text"), REFUSED)
def test_unfitting_row_is_rejected_by_name_and_adds_nothing(buffer, row, text):
    buffer.add(ROW)
    with pytest.raises(ValueError, match=text):
        buffer.add(row)
    assert len(buffer) == 1
    assert drawn(buffer, ROW)["reward"].tolist() == [0.5]


@pytest.mark.parametrize("value", [None, "text", b"bytes", object(), np.array(["a"]), np.array([None]), [1, "x"]])
def test_example_with_an_unsupported_value_is_rejected_by_name(value):
    with pytest.raises(TypeError, match=r"row\['obs'\]\['x'\]"):
        ReplayBuffer(10, example={"obs": {"x": value}})


def test_columns_can_be_specified_as_shapes_and_dtypes():
    buffer = ReplayBuffer(1, columns={"obs": ((4, 84, 84), np.uint8), "action": np.int32, "flat": (3, "f4")})
    data = drawn(buffer, {"obs": np.ones((4, 84, 84), np.uint8), "action": 3, "flat": [1, 2, 3]})
    assert data["obs"].shape == (1, 4, 84, 84)
    assert data["action"].dtype == np.int32
    assert data["flat"].tolist() == [[1.0, 2.0, 3.0]]


@pytest.mark.parametrize("column", ["what", ((2, -1), "f4"), (None, "f4"), object, ((2,), str), "S4"])
def test_invalid_column_is_rejected_by_name(column):
    with pytest.raises(TypeError, match=r"row\['x'\] is "):
        ReplayBuffer(10, columns={"x": column})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"capacity": 0}, "capacity is 0; it must be at least 1"),
        ({"capacity": -5}, "capacity is -5"),
        ({"capacity": 10, "chunk": 3}, "chunk is 3 rows; it must be a power of two"),
        ({"capacity": 10, "chunk": 0}, "chunk is 0"),
        ({"capacity": 10, "streams": 0}, "streams is 0"),
        ({"max_bytes": 10}, "max_bytes is 10; the smallest buffer has one such row and takes"),
        ({"capacity": 1 << 39}, "exceed the largest arena|this machine has only"),
        ({"capacity": 10, "example": {}}, "at least one column"),
        ({"capacity": 10, "example": np.zeros(0)}, "which is 0 bytes"),
    ],
)
def test_constructor_rejects_invalid_sizes_with_the_numbers(arguments, text):
    with pytest.raises(ValueError, match=text):
        ReplayBuffer(**grouped(**{"example": 0.0, **arguments}))


def test_a_capacity_over_the_budget_of_the_arena_is_refused(arena):
    with pytest.raises(ValueError, match="1000000 rows takes .* bytes, but the arena has only 67108864"):
        ReplayBuffer(1_000_000, example=np.zeros(100), arena=arena)


def test_max_bytes_is_not_exceeded_when_the_buffer_is_full(arena):
    buffer = ReplayBuffer(max_bytes=4_000_000, example=np.zeros(100), arena=arena)
    assert buffer.capacity > 4000
    for _ in range(2 * buffer.capacity):
        buffer.add(np.zeros(100))
    assert arena.stats()["used_bytes"] <= 4_000_000


def test_max_bytes_allows_for_successors_and_a_rate_limit():
    options: dict[str, Any] = {
        "example": {"x": 0.0, "done": False},
        "episodes": Episodes(next="x", reward=None),
        "limits": Limits(rate=RateLimit(1.0, min_size=1000)),
    }
    assert ReplayBuffer(max_bytes=4_000_000, **options).capacity > 40_000
    with pytest.raises(ValueError, match="max_bytes is 10; the smallest buffer has 1000 such rows and takes"):
        ReplayBuffer(max_bytes=10, **options)


def test_damaged_buffer_spec_raises_incompatible_arena(arena):
    assert issubclass(shmtree.IncompatibleArena, shmtree.Error)
    buffer = ReplayBuffer(10, example=1, arena=arena)
    with pytest.raises(shmtree.IncompatibleArena, match="cannot be read|no frame|not a"):
        type(buffer._spec).unpack(b"\0" * 64)


WIDE = [np.dtype(np.longlong), np.dtype(np.ulonglong), np.dtype([("a", np.longlong, 2), ("b", "f4")], align=True)]


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("how", ["example", "columns"])
def test_long_long_integers_are_int64_and_uint64(dtype, how):
    values = np.arange(1, 4).astype(dtype)
    options = {"example": {"x": values}} if how == "example" else {"columns": {"x": ((3,), dtype)}}
    buffer = ReplayBuffer(8, **options, limits=Limits(chunk=1))
    buffer.add({"x": values})
    buffer.extend({"x": values[None]})
    found = buffer.sample(2, replace=False).data["x"]
    assert (found == values).all()
    assert found.dtype == dtype
    assert found.dtype.names or found.dtype.type in (np.int64, np.uint64)


def test_dtype_of_another_package_is_refused():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with pytest.raises(
        TypeError, match="row is of bfloat16: rows of a replay buffer can only have dtypes that NumPy itself"
    ):
        ReplayBuffer(8, example=np.zeros(2, ml_dtypes.bfloat16))


MASKED = np.ma.masked_array(np.zeros(2, np.float32), mask=[False, True])


@pytest.mark.parametrize("value", [MASKED, np.ma.masked, [0.0, np.ma.masked], np.ma.masked_array(np.zeros(2, "f4"))])
def test_masked_arrays_in_rows_are_refused(value):
    buffer = ReplayBuffer(8, example={"obs": np.zeros(2, np.float32), "done": False}, episodes=Episodes(next="obs"))
    with pytest.raises(TypeError, match=r"row\['obs'\] is a masked array.*filled\(\)"):
        buffer.add({"obs": value, "done": False})
    with pytest.raises(TypeError, match=r"rows\['obs'\] is a masked array"):
        buffer.extend({"obs": [value], "done": [False]}, ends=[True])
    buffer.add({"obs": np.zeros(2, np.float32), "done": True})
    with pytest.raises(TypeError, match=r"final\['obs'\] is a masked array"):
        buffer.end(final={"obs": value})
    buffer.end()
    assert len(buffer) == 1


def test_masked_priorities_and_ends_are_refused():
    with pytest.raises(TypeError, match=r"row\['obs'\] is a masked array"):
        ReplayBuffer(8, example={"obs": MASKED})
    buffer = ReplayBuffer(8, example={"n": 0, "done": False}, sampling=Sampling(Prioritized()))
    index = buffer.extend({"n": np.arange(2), "done": np.zeros(2, bool)})
    masked = np.ma.masked_array([1.0, 1.0], mask=[False, True])
    for options in ({"priority": masked}, {"ends": masked}):
        with pytest.raises(TypeError, match=r"(priority|ends) is a masked array"):
            buffer.extend({"n": np.arange(2), "done": np.zeros(2, bool)}, **options)
    with pytest.raises(TypeError, match="priority is a masked array"):
        buffer.update_priorities(index, masked)
    assert len(buffer) == 2
