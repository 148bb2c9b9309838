"""Torch tensors of every dtype are native leaves, and packing never imports torch."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from exact import assert_same

import shmtree

torch = pytest.importorskip("torch")


def through(value: object, **options: Any) -> Any:
    return shmtree.unpack(bytearray(shmtree.pack(value, allow_pickle=False)), **options)


DTYPES = [
    name
    for name in """bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex32
    complex64 complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu""".split()
    if hasattr(torch, name)
]


def filled(name: str, shape: tuple[int, ...]) -> Any:
    dtype = getattr(torch, name)
    count = int(np.prod(shape)) * dtype.itemsize
    raw = torch.arange(count, dtype=torch.int64).remainder(2 if name == "bool" else 100).to(torch.uint8)
    return raw.view(dtype).reshape(shape)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3), (100, 100)], ids=str)
def test_tensor_of_every_dtype_round_trips(name: str, shape: tuple[int, ...]) -> None:
    value = filled(name, shape)
    assert_same(through(value), value)
    assert_same(through({"t": [value]}), {"t": [value]})
    assert_same(through(value, copy=True), value)


def test_a_large_tensor_is_a_writable_view() -> None:
    frame = bytearray(shmtree.pack(torch.zeros(100_000)))
    got = shmtree.unpack(frame)
    got[0] = 7
    assert np.frombuffer(frame, np.uint8).any()
    before = got.clone()
    with pytest.raises(BufferError):
        frame.append(0)
    assert torch.equal(got, before)
    del got
    frame.append(0)


def test_strided_tensor_round_trips_with_its_values() -> None:
    value = torch.arange(24).reshape(4, 6)
    for view in (value.T, value[:, ::2], value[1], value.expand(2, 4, 6)):
        assert torch.equal(through(view), view)


def test_requires_grad_is_preserved() -> None:
    value = torch.ones(3, requires_grad=True)
    got = through(value)
    assert got.requires_grad and torch.equal(got, value)


def test_the_same_tensor_twice_shares_memory_again() -> None:
    value = torch.zeros(50_000)
    frame = shmtree.pack([value, value])
    assert frame.nbytes < 250_000
    got = shmtree.unpack(bytearray(frame))
    got[0][5] = 1
    assert got[1][5] == 1


def test_a_tensor_and_its_numpy_view_share_memory_again() -> None:
    value = torch.zeros(50_000)
    got = through([value, value.numpy()])
    got[0][5] = 1
    assert got[1][5] == 1


def test_a_parameter_keeps_its_type() -> None:
    value = torch.nn.Parameter(torch.ones(3))
    got = shmtree.unpack(shmtree.pack(value))
    assert type(got) is torch.nn.Parameter and torch.equal(got, value)


def test_conjugated_or_negated_view_round_trips_with_its_values() -> None:
    value = torch.tensor([1 + 2j, 3 - 4j])
    assert torch.equal(through(value.conj()), value.conj().resolve_conj())
    assert torch.equal(through(value.conj().imag), value.conj().imag.resolve_neg())


def test_dtype_object_round_trips() -> None:
    assert shmtree.unpack(shmtree.pack({"d": torch.float32})) == {"d": torch.float32}


def test_packing_never_imports_torch() -> None:
    code = "import sys, shmtree; shmtree.unpack(shmtree.pack({'a': [1, object]})); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_quantized_tensor_is_rejected_with_an_alternative() -> None:
    sender, receiver = shmtree.create_pair()
    with pytest.raises(TypeError, match=r"torch.qint8.*int_repr"):
        sender.put([1, torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8)])
    assert receiver.empty()


@pytest.mark.parametrize("name", ["quint8", "float4_e2m1fn_x2"])
def test_unreadable_dtypes_are_neither_allocated_nor_sent(name: str) -> None:
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"this torch has no {name}")
    sender, receiver = shmtree.create_pair()
    with pytest.raises(TypeError, match=name):
        sender.new_empty(10, dtype)
    with pytest.raises(TypeError, match=name):
        sender.put(torch.zeros(10, dtype=torch.uint8).view(dtype))
    assert receiver.empty()


@dataclass(frozen=True)
class Both:
    tensor: Any
    count: int


class Point(NamedTuple):
    x: Any
    y: Any


def test_get_to_returns_tensors_that_pin_no_memory() -> None:
    arena = shmtree.Arena(64 << 20)
    sender, receiver = arena.create_pair()
    held = len(arena.holders())
    others = deque([defaultdict(list, k=[torch.ones(50_000)])], maxlen=1), Both(torch.zeros(50_000), 1)
    value = {
        "others": others,
        "a": torch.arange(50_000.0),
        "b": [np.arange(50_000), Point("text", (np.ones((), np.int8), 2))],
    }
    sender.put(value)

    got = receiver.get_to("cpu")

    assert torch.equal(got["a"], value["a"]) and torch.equal(got["b"][0], torch.arange(50_000))
    assert isinstance(got["b"][1], Point) and got["b"][1].x == "text"
    assert got["b"][1].y[0].dtype is torch.int8 and got["b"][1].y[1] == 2
    assert not isinstance(got["b"][1].y[1], torch.Tensor)
    assert torch.equal(got["others"][0][0]["k"][0], torch.ones(50_000)) and got["others"][0][0]["new"] == []
    assert got["others"][0].maxlen == 1 and got["others"][1].count == 1
    assert len(arena.holders()) == held


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.uint8).reshape(2, 4, 3)[:, ::-1],
        np.arange(3, dtype=">i4"),
        np.array(7, ">f8"),
        np.rot90(np.arange(6.0).reshape(2, 3)),
        np.arange(6, dtype=">c8")[::-2],
    ],
    ids=["flipped", "big-endian", "scalar", "turned", "both"],
)
def test_get_to_converts_arrays_that_torch_does_not_accept(array: Any) -> None:
    sender, receiver = shmtree.create_pair()
    sender.put(array)
    got = receiver.get_to("cpu")
    assert isinstance(got, torch.Tensor) and np.array_equal(got.numpy(), array) and got.shape == array.shape


@pytest.mark.parametrize(
    "array",
    [
        np.ones(2, np.longdouble),
        np.ones(2, np.clongdouble),
        np.ma.masked_array([1.0, 2.0], [False, True]),
        np.array(["text"]),
        np.zeros(2, "M8[s]"),
        np.zeros(2, "i4,f8"),
    ],
    ids=lambda array: str(array.dtype),
)
def test_get_to_returns_arrays_without_a_tensor_dtype_unchanged(array: Any) -> None:
    sender, receiver = shmtree.create_pair()
    sender.put(array)
    assert_same(receiver.get_to("cpu"), array)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_get_to_a_missing_gpu_raises_and_receives_nothing() -> None:
    sender, receiver = shmtree.create_pair()
    sender.put(1)
    with pytest.raises(shmtree.DeviceError, match="cuda"):
        receiver.get_to("cuda")
    assert receiver.get_to("cpu") == 1


def test_get_to_without_device_memory_leaves_message_in_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    sender, receiver = shmtree.create_pair()
    sender.put({"a": torch.arange(100_000)})

    def move_to(*_: Any) -> Any:
        raise torch.OutOfMemoryError("the device is full")

    with monkeypatch.context() as patch:
        patch.setattr("shmtree._torch.devices.move_to", move_to)
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError):
                receiver.get_to("cpu")
            assert receiver.qsize() == 1 and sender.pending_acks == 1
    assert receiver.get_to("cpu")["a"][-1] == 99_999
    assert sender.pending_acks == 0


def test_get_to_an_unknown_device_receives_nothing() -> None:
    sender, receiver = shmtree.create_pair()
    sender.put(1)
    with pytest.raises(RuntimeError, match="no such device"):
        receiver.get_to("no such device")
    assert receiver.get_to("cpu") == 1


def test_unpacking_tensor_without_torch_is_an_error(tmp_path: Path) -> None:
    """The receiver may import torch, but torch is not installed."""
    (tmp_path / "tensor").write_bytes(shmtree.pack({"a": [torch.ones(3)]}))
    code = """
import sys, pathlib, shmtree
sys.modules["torch"] = None
try:
    shmtree.unpack(pathlib.Path(sys.argv[1]).read_bytes(), allow_pickle=True)
except shmtree.IncompatibleMessage as error:
    assert "install torch" in str(error) and '["a"][0]' in str(error), error
else:
    sys.exit("no error")
"""
    subprocess.run([sys.executable, "-c", code, tmp_path / "tensor"], check=True, timeout=60)
