"""Sparse tensors of torch are native: all layouts, with their dense parts as buffers."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frame_writer import Writer

import shmtree
from shmtree import _core

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning")

LIST, SPARSE_TENSOR, TENSOR = 20, 76, 74
UINT8, INT64, FLOAT32 = 3, 8, 11


class Unnamed:
    """A class without a native kind, so that its message needs a pickle."""

    def __eq__(self, other: object) -> bool:
        return type(other) is Unnamed


def dense() -> Any:
    return torch.tensor([[0.0, 2.0, 0.0, 0.0], [3.0, 0.0, 0.0, 4.0], [0.0, 0.0, 0.0, 0.0], [5.0, 0.0, 0.0, 6.0]])


def uncoalesced(**options: Any) -> Any:
    indices = torch.tensor([[0, 1, 1], [2, 0, 0]])
    return torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0, 3.0]), (2, 3), check_invariants=True, **options)


def hybrid() -> Any:
    return torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.ones(2, 3), (4, 3), check_invariants=True)


#: Each test makes its own value, because torch warns when a process makes its first one.
VALUES = {
    "coo": lambda: dense().to_sparse(),
    "csr": lambda: dense().to_sparse_csr(),
    "csc": lambda: dense().to_sparse_csc(),
    "bsr": lambda: dense().to_sparse_bsr((2, 2)),
    "bsc": lambda: dense().to_sparse_bsc((2, 2)),
    "uncoalesced": uncoalesced,
    "hybrid": hybrid,
    "empty": lambda: torch.zeros(2, 3).to_sparse(),
    "bfloat16": lambda: dense().to(torch.bfloat16).to_sparse(),
    "complex": lambda: (dense() * 1j).to_sparse(),
    "batch of csr": lambda: torch.stack([dense(), dense()]).to_sparse_csr(),
    "gradient": lambda: uncoalesced(requires_grad=True),
}


def parts(tensor: Any) -> list[Any]:
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    by_row = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    names = ("crow_indices", "col_indices") if by_row else ("ccol_indices", "row_indices")
    return [*(getattr(tensor, name)() for name in names), tensor.values()]


def assert_same_sparse(got: Any, want: Any) -> None:
    assert type(got) is torch.Tensor
    about = [(t.layout, t.dtype, t.shape, t.requires_grad) for t in (got, want)]
    assert about[0] == about[1]
    if want.layout is torch.sparse_coo:
        assert got.is_coalesced() == want.is_coalesced()
    for got_part, want_part in zip(parts(got.detach()), parts(want.detach()), strict=True):
        assert got_part.dtype == want_part.dtype and torch.equal(got_part, want_part)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("trusted", [False, True])
def test_sparse_tensor_round_trips(name: str, trusted: bool) -> None:
    value = VALUES[name]()
    frame = shmtree.pack({"t": [value]}, allow_pickle=False)
    assert "sparse_tensor" in _core._describe(frame)
    for options in ({}, {"copy": True}, {"copy": False}):
        got = shmtree.unpack(bytearray(frame), allow_pickle=trusted, **options)
        assert_same_sparse(got["t"][0], value)


def test_sparse_tensor_through_a_channel() -> None:
    sender, receiver = shmtree.create_pair()
    for make in VALUES.values():
        value = make()
        sender.put(value)
        assert_same_sparse(receiver.get(timeout=30), value)


def test_values_and_trusted_indices_are_views() -> None:
    value = torch.sparse_coo_tensor(
        torch.arange(20_000)[None], torch.ones(20_000), (20_000,), is_coalesced=True, check_invariants=True
    )
    frame = bytearray(shmtree.pack(value))
    memory = np.frombuffer(frame, np.uint8)

    def is_view(tensor: Any) -> bool:
        return bool(memory.ctypes.data <= tensor.data_ptr() < memory.ctypes.data + memory.nbytes)

    trusted, other = shmtree.unpack(frame, allow_pickle=True), shmtree.unpack(frame)
    assert [is_view(part) for part in parts(trusted)] == [True, True]
    assert [is_view(part) for part in parts(other)] == [False, True]
    assert all((part.data_ptr() - memory.ctypes.data) % 64 == 0 for part in parts(trusted))


def test_the_same_sparse_tensor_twice_is_one_object() -> None:
    value = uncoalesced()
    got = shmtree.unpack(shmtree.pack([value, value], allow_pickle=False))
    assert got[0] is got[1]


def test_sparse_tensor_round_trips_portable_and_beside_a_pickle() -> None:
    value = uncoalesced()
    assert_same_sparse(shmtree.unpack(shmtree.pack(value, portable=True)), value)
    got = shmtree.unpack(shmtree.pack([value, Unnamed()]))
    assert_same_sparse(got[0], value)


@pytest.mark.parametrize("shape", [(1 << 31, 1 << 31), (1 << 62, 1), ((1 << 63) - 1,), (0, 1 << 40, 1 << 40)])
@pytest.mark.parametrize("trusted", [False, True])
def test_sparse_tensor_with_any_shape_of_torch_arrives(shape: tuple[int, ...], trusted: bool) -> None:
    nonzeros = min(1, math.prod(shape))
    indices, values = torch.zeros(len(shape), nonzeros, dtype=torch.int64), torch.ones(nonzeros)
    value = torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, check_invariants=True)
    assert_same_sparse(shmtree.unpack(shmtree.pack(value, allow_pickle=False), allow_pickle=trusted), value)


def test_sparse_parameter_needs_pickle() -> None:
    value = torch.nn.Parameter(uncoalesced())
    got = shmtree.unpack(shmtree.pack(value))
    assert type(got) is torch.nn.Parameter
    with pytest.raises(shmtree.PickleRefused):
        shmtree.pack(value, allow_pickle=False)


def test_unpacking_sparse_tensor_without_torch_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "sparse").write_bytes(shmtree.pack({"a": [uncoalesced()]}))
    code = """
import sys, pathlib, shmtree
sys.modules["torch"] = None
frame = pathlib.Path(sys.argv[1]).read_bytes()
for allow_pickle, wanted in ((True, "install torch"), (False, "import torch")):
    try:
        shmtree.unpack(frame, allow_pickle=allow_pickle)
    except shmtree.Error as error:
        assert wanted in str(error), error
    else:
        sys.exit("no error")
"""
    subprocess.run([sys.executable, "-c", code, tmp_path / "sparse"], check=True, timeout=60)


def frame(layout: int, flags: int, shape: Any, *tensors: tuple[int, tuple[int, ...], bytes]) -> bytes:
    writer = Writer().kind(SPARSE_TENSOR).length(layout).length(flags).value(shape).length(len(tensors))
    for number, (dtype, extents, contents) in enumerate(tensors):
        writer.kind(TENSOR).length(0).buffer(contents).descriptor(dtype, 0, len(extents), number).lengths(extents)
    return writer.frame()


def longs(*numbers: int) -> bytes:
    return np.array(numbers, np.int64).tobytes()


ONES = np.ones(2, np.float32).tobytes()
UNCHECKED = {"check_invariants": False}
INDICES, ELEMENTS = (INT64, (1, 2), longs(0, 1)), (FLOAT32, (2,), ONES)


def test_well_formed_frame_is_accepted() -> None:
    assert_same_sparse(shmtree.unpack(frame(0, 1, (3,), INDICES, ELEMENTS)), torch.tensor([1.0, 1.0, 0.0]).to_sparse())


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(frame(5, 1, (3,), INDICES, ELEMENTS), id="unknown layout"),
        pytest.param(frame(0, 4, (3,), INDICES, ELEMENTS), id="unknown flags"),
        pytest.param(frame(0, 1, (1,), INDICES, ELEMENTS), id="index out of range"),
        pytest.param(frame(0, 1, (3,), (INT64, (1, 2), longs(0, -1)), ELEMENTS), id="negative index"),
        pytest.param(frame(0, 1, (3,), (INT64, (1, 2), longs(1, 1)), ELEMENTS), id="not coalesced"),
        pytest.param(frame(0, 1, (3, 3), INDICES, ELEMENTS), id="other dimensions"),
        pytest.param(frame(0, 1, (3,), INDICES), id="no values"),
        pytest.param(frame(0, 1, (-3,), INDICES, ELEMENTS), id="negative extent"),
        pytest.param(frame(0, 1, ("a",), INDICES, ELEMENTS), id="extent that is no int"),
        pytest.param(frame(0, 1, (1 << 63,), INDICES, ELEMENTS), id="extent beyond an int64"),
        pytest.param(frame(0, 1, (1 << 62, 2), (INT64, (2, 2), longs(0, 1, 0, 1)), ELEMENTS), id="too many elements"),
        pytest.param(frame(0, 1, 3, INDICES, ELEMENTS), id="shape that is no tuple"),
        pytest.param(
            frame(1, 0, (1, 3), (INT64, (2,), longs(0, 9)), (INT64, (2,), longs(0, 1)), ELEMENTS), id="rows too long"
        ),
        pytest.param(
            frame(1, 0, (1, 3), (INT64, (2,), longs(0, 2)), (INT64, (2,), longs(0, 7)), ELEMENTS), id="column too large"
        ),
    ],
)
def test_damaged_sparse_tensor_is_corrupt(damaged: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables torch's own check, as another thread may do: the check depends on a flag of the process."""
    for name in ("sparse_coo_tensor", "sparse_compressed_tensor"):
        make = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *args, make=make, **options: make(*args, **options | UNCHECKED))
    with pytest.raises(shmtree.CorruptMessage):
        shmtree.unpack(damaged)


def sharing_frame(count: int, nonzeros: int) -> bytes:
    """Returns a frame with COO tensors that share one buffer of indices and one of values."""
    writer = Writer().kind(LIST).length(count).buffer(bytes(8 * nonzeros)).buffer(bytes(nonzeros))
    for _ in range(count):
        writer.kind(SPARSE_TENSOR).length(0).length(0).value((1,)).length(2)
        for number, (dtype, extents) in enumerate(((INT64, (1, nonzeros)), (UINT8, (nonzeros,)))):
            writer.kind(TENSOR).length(0).descriptor(dtype, 0, len(extents), number).lengths(extents)
    return writer.frame()


def test_copied_indices_of_a_hostile_frame_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    copied_bytes = 0
    clone = torch.Tensor.clone

    def counted(part: Any) -> Any:
        nonlocal copied_bytes
        copied_bytes += part.numel() * part.element_size()
        return clone(part)

    monkeypatch.setattr(torch.Tensor, "clone", counted)
    hostile = sharing_frame(200, 1 << 17)
    with pytest.raises(shmtree.CorruptMessage, match="copy the same bytes too many times"):
        shmtree.unpack(hostile)
    assert 0 < copied_bytes < 4 * len(hostile) + (2 << 20)


def test_sparse_tensors_that_share_large_indices_arrive() -> None:
    got = shmtree.unpack(sharing_frame(4, 1 << 17))
    assert [tensor._nnz() for tensor in got] == [1 << 17] * 4


def test_sparse_tensor_on_shared_memory_arrives_without_trust() -> None:
    """The limit counts the bytes of the blocks that a message refers to, because the frame itself is small."""
    sender, receiver = shmtree.create_pair(name=f"sparse-{os.getpid()}")
    with sender, receiver:
        sender.put({"indices": torch.arange(1 << 19)[None], "values": torch.ones(1 << 19)})
        parts_of_it = receiver.get(timeout=60)
        value = torch.sparse_coo_tensor(*parts_of_it.values(), (1 << 19,), is_coalesced=True, check_invariants=True)
        sender.put(value)
        assert_same_sparse(receiver.get(timeout=60), value)
