"""Arrays and tables of other packages arrive unchanged, and no pickle contains their memory."""

from __future__ import annotations

import gc
import importlib.util
import io
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shmtree

ROWS = 100_000


def pickled_bytes(value: object) -> int:
    text = io.StringIO()
    shmtree.describe(shmtree.pack(value), file=text)
    found = re.search(r"(?:pickle of|long_pickle .*\)) (\d+) bytes", text.getvalue())
    assert found, text.getvalue()
    return int(found.group(1))


def check_sent(value: object, arena: shmtree.Arena, same: Callable[[Any, Any], bool]) -> None:
    """Sends a value through a pair, where large parts are views, and through a queue, where the receiver owns them."""
    assert pickled_bytes(value) < 4096
    sender, receiver = arena.create_pair(capacity=2)
    sender.put(value)
    got = receiver.get()
    assert type(got) is type(value)
    assert same(got, value)
    assert len(arena.holders()) == 1
    del got
    gc.collect()
    assert arena.holders() == []
    own = arena.Queue()
    own.put(value)
    assert same(own.get(), value)


class Boxed:
    """A class that needs a pickle, and makes its message need one."""

    def __init__(self, value: object) -> None:
        self.value = value


@pytest.mark.parametrize(
    "array",
    [
        np.arange(ROWS).astype("M8[s]"),
        np.arange(ROWS).astype(">m8[ms]"),
        np.asfortranarray(np.arange(ROWS).reshape(100, -1).astype("M8[D]")),
        np.arange(ROWS)[::-1],
        np.arange(2 * ROWS, dtype=">i4").reshape(-1, 20)[:, 1::2],
        np.zeros(ROWS, [("when", "M8[ns]"), ("text", "U3")]),
    ],
    ids=["dates", "spans", "fortran", "reversed", "strided", "records"],
)
def test_array_is_not_part_of_the_pickle_around_it(array: Any, arena: shmtree.Arena) -> None:
    def same(got: Boxed, want: Boxed) -> bool:
        return same_array(got.value, shmtree.unpack(shmtree.pack(array), copy=True))  # as without a pickle

    check_sent(Boxed(array), arena, same)


ML_DTYPES = "bfloat16 float8_e4m3fn float8_e5m2 float8_e8m0fnu float4_e2m1fn int4 uint2".split()


def ml_array(name: str, *shape: int) -> np.ndarray[Any, Any]:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    if not hasattr(ml_dtypes, name):
        pytest.skip(f"this ml_dtypes has no {name}")
    made = np.empty(shape, getattr(ml_dtypes, name))
    made[...] = np.arange(made.size).reshape(shape) % 2
    return made


def same_array(got: Any, want: Any) -> bool:
    layout = (got.flags.c_contiguous, got.flags.f_contiguous) == (want.flags.c_contiguous, want.flags.f_contiguous)
    return layout and got.dtype == want.dtype and got.shape == want.shape and got.tobytes() == want.tobytes()


@pytest.mark.parametrize("name", ML_DTYPES)
def test_ml_dtypes_arrays_arrive_as_views(name: str, arena: shmtree.Arena) -> None:
    check_sent(ml_array(name, 400, 250), arena, same_array)


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (300, 200)], ids=str)
def test_ml_dtypes_arrays_keep_shape_order_and_writable_flag(shape: tuple[int, ...]) -> None:
    array = ml_array("bfloat16", *shape)
    fixed = np.array(array)
    fixed.flags.writeable = False
    for value in (array, np.asfortranarray(array), fixed):
        got = shmtree.unpack(bytearray(shmtree.pack([value])), allow_pickle=True)[0]
        assert same_array(got, value)
        assert got.flags.writeable == value.flags.writeable
    if array.ndim == 2:
        part = array[::2, 1:]
        assert shmtree.unpack(shmtree.pack(part), allow_pickle=True).tolist() == part.tolist()


def test_ml_dtypes_arrays_in_the_arena_are_put_without_a_copy(arena: shmtree.Arena) -> None:
    array = ml_array("bfloat16", 4)
    sender, receiver = arena.create_pair(capacity=2)
    made = sender.new_empty((100, 100), array.dtype)
    made[:] = 3
    sender.put({"x": made})
    got = receiver.get()["x"]
    assert not made.flags.writeable
    assert got.flags.writeable
    assert got.ctypes.data == made.ctypes.data
    assert (got == 3).all()


def test_read_only_array_arrives_writable_from_a_queue(arena: shmtree.Arena) -> None:
    array = ml_array("bfloat16", 100, 100)
    array.flags.writeable = False
    tasks = arena.Queue()
    tasks.put(array)
    got = tasks.get()
    assert got.flags.writeable
    assert same_array(got, array)


def test_data_frames_arrive_with_views_as_columns(arena: shmtree.Arena) -> None:
    pandas = pytest.importorskip("pandas")
    columns = {"whole": np.arange(ROWS), "half": np.arange(ROWS) / 2, "when": np.arange(ROWS).astype("M8[s]")}
    frame = pandas.DataFrame(columns, index=pandas.Index(np.arange(ROWS)[::-1], name="row"))
    frame["kind"] = pandas.Categorical.from_codes(np.arange(ROWS) % 3, ["a", "b", "c"])
    check_sent(frame, arena, lambda got, want: bool(got.equals(want)) and list(got.dtypes) == list(want.dtypes))


def test_arrow_tables_arrive_with_views_as_columns(arena: shmtree.Arena) -> None:
    arrow = pytest.importorskip("pyarrow")
    texts = arrow.array([f"row {row}" if row % 5 else None for row in range(ROWS)])
    table = arrow.table({"number": np.arange(ROWS), "text": texts})
    check_sent(table, arena, lambda got, want: bool(got.equals(want)) and got.schema == want.schema)
    check_sent(table.to_batches()[0], arena, lambda got, want: bool(got.equals(want)))


def test_tensordicts_arrive_with_views_as_tensors(arena: shmtree.Arena) -> None:
    torch = pytest.importorskip("torch")
    tensordict = pytest.importorskip("tensordict")
    nested = {
        "obs": torch.rand(50, 400),
        "next": {"obs": torch.rand(50, 400), "done": torch.zeros(50, dtype=torch.bool)},
    }
    value = tensordict.TensorDict(nested, batch_size=[50])

    def same(got: Any, want: Any) -> bool:
        return got.batch_size == want.batch_size and bool((got == want).all())

    check_sent(value, arena, same)


# Runs in its own process: JAX has threads, and warns about them at every fork.
JAX_PROGRAM = """
import gc
import numpy as np, jax, jax.numpy as jnp, shmtree
from test_types_packages import pickled_bytes

def same(got, want):
    return got.dtype == want.dtype and got.weak_type == want.weak_type and bool((got == want).all())

arena = shmtree.Arena(64 << 20)
sender, receiver = arena.create_pair(capacity=2)
for dtype in (jnp.float32, jnp.bfloat16, jnp.int8, jnp.complex64, jnp.bool_):
    value = jnp.arange(60_000).reshape(300, 200).astype(dtype)
    assert pickled_bytes(value) < 4096, dtype
    sender.put({"x": value})
    got = receiver.get()["x"]
    assert isinstance(got, jax.Array) and same(got, value), dtype
for value in (jnp.asarray(2.5), jnp.asarray(3) * 2, jnp.zeros((0, 3))):
    sender.put(value)
    assert same(receiver.get(), value)
key = jax.random.key(7)
sender.put(jax.random.key_data(key))
assert (receiver.get() == jax.random.key_data(key)).all()

sender.put(np.ones((300, 200), np.float32))
view = receiver.get()
taken = jax.dlpack.from_dlpack(view)
assert taken.unsafe_buffer_pointer() == view.ctypes.data
del view
assert len(arena.holders()) == 1
assert float(taken.sum()) == 60_000
del taken
gc.collect()
assert arena.holders() == []
print("all well")
"""


def test_jax_arrays_round_trip_and_views_become_jax_arrays() -> None:
    if importlib.util.find_spec("jax") is None:
        pytest.skip("there is no jax here")
    code = f"import sys; sys.path.insert(0, {str(__file__).rpartition('/')[0]!r})\n{JAX_PROGRAM}"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert ended.stdout == "all well\n", ended.stderr


def test_dlpack_tensor_shares_and_keeps_the_view(arena: shmtree.Arena) -> None:
    torch = pytest.importorskip("torch")
    sender, receiver = arena.create_pair(capacity=2)
    sender.put(np.arange(60_000, dtype=np.float32))
    view = receiver.get()
    tensor = torch.from_dlpack(view)
    assert tensor.data_ptr() == view.ctypes.data
    del view
    assert len(arena.holders()) == 1
    assert float(tensor[-1]) == 59_999
    del tensor
    assert arena.holders() == []
