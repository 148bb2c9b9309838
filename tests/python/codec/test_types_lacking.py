"""Arrays of element types that NumPy lacks need ml_dtypes or torch. Without them, an error names the element type."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

import numpy as np
import pytest

import shmtree

# Number of each type in a frame, an unsigned dtype of the same size, and the number of that dtype.
LACKING = {
    "bfloat16": (15, np.uint16, 5),
    "float8_e4m3fn": (16, np.uint8, 3),
    "float8_e5m2": (17, np.uint8, 3),
    "float8_e4m3fnuz": (18, np.uint8, 3),
    "float8_e5m2fnuz": (19, np.uint8, 3),
    "float8_e8m0fnu": (20, np.uint8, 3),
    "complex32": (21, np.uint32, 7),
}
BITS = {np.uint16: [0x3F80, 0xBF80, 0, 0x4000], np.uint8: [0x38, 0x7F, 1, 0x3C], np.uint32: [0x3C003C00, 0, 1, 2]}


def frame_of(name: str, shape: tuple[int, ...] = (4,)) -> bytes:
    """Returns a frame as C++ writes it."""
    number, unsigned, plain = LACKING[name]
    frame = bytes(shmtree.pack({"array": np.array(BITS[unsigned], unsigned).reshape(shape)}))
    before = bytes([plain, 0, len(shape), 0, 0, 0, 0, 0])
    assert frame.count(before) == 1
    return frame.replace(before, bytes([number]) + before[1:])


def has(name: str) -> bool:
    """Returns True if an installed package has a dtype of that name."""
    for module in ("ml_dtypes", "torch"):
        if importlib.util.find_spec(module) and hasattr(importlib.import_module(module), name):
            return True
    return False


has_torch = importlib.util.find_spec("torch") is not None


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("name", LACKING)
def test_elements_that_numpy_lacks_need_a_package(name: str, copy: bool) -> None:
    frame = bytearray(frame_of(name, (2, 2)))
    if not has(name):
        with pytest.raises(shmtree.IncompatibleMessage, match=f"{name}.*install ml_dtypes"):
            shmtree.unpack(frame)
        return
    got = shmtree.unpack(frame, copy=copy)["array"]
    if isinstance(got, np.ndarray):
        assert got.dtype.name == name and got.shape == (2, 2)
        assert got.view(LACKING[name][1]).tolist() == np.reshape(BITS[LACKING[name][1]], (2, 2)).tolist()
    else:
        torch: Any = sys.modules["torch"]
        assert got.dtype is getattr(torch, name) and got.shape == (2, 2)
        raw = got.reshape(-1).view(torch.uint8).numpy().view(LACKING[name][1])
        assert raw.tolist() == BITS[LACKING[name][1]]


@pytest.mark.skipif(not has_torch, reason="could not import 'torch'")
@pytest.mark.parametrize("name", LACKING)
def test_elements_that_numpy_lacks_arrive_as_torch_tensors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    got = shmtree.unpack(frame_of(name))["array"]
    assert (
        got.dtype is getattr(torch, name)
        and got.reshape(-1).view(torch.uint8).numpy().view(LACKING[name][1]).tolist() == BITS[LACKING[name][1]]
    )


@pytest.mark.parametrize("name", LACKING)
def test_error_names_the_missing_package_and_keeps_the_frame(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    sender, receiver = shmtree.create_pair()
    sender.put_frame(frame_of(name))
    sender.put("next")
    with pytest.raises(shmtree.IncompatibleMessage, match=rf"{name}.*install .*torch.*at \[\"array\"\]") as caught:
        receiver.get()
    shmtree.describe(caught.value.frame)
    assert f"array {name} (4,)" in capsys.readouterr().out
    assert receiver.get() == "next"
