"""Arrays next to a pickled object arrive as they do without it. Errors name the object that cannot be sent."""

from __future__ import annotations

import functools
import pickle
import threading
from typing import Any

import numpy as np
import pytest
from exact import assert_same

import shmtree

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

needs_torch = pytest.mark.skipif(torch is None, reason="could not import 'torch'")


class Foreign:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def arrays() -> dict[str, Any]:
    base = np.arange(24.0).reshape(2, 3, 4)
    frozen = np.arange(5)
    frozen.flags.writeable = False
    unaligned = np.zeros(81, np.uint8)[1:].view(np.float64)
    unaligned[:] = np.arange(10)
    return {
        "whole": base,
        "transposed": base.transpose(1, 0, 2),
        "sliced": base[:, ::3],
        "part": base[..., 1],
        "broadcast": np.broadcast_to(base[0], (4, 3, 4)),
        "windows": np.lib.stride_tricks.sliding_window_view(base[0, 0], 3),
        "large strided": np.arange(1_000_000.0).reshape(1000, 1000)[::2, ::5],
        "unaligned": unaligned,
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "every other": np.arange(10)[::2],
        "backwards": np.arange(10)[::-1],
        "dates": np.arange("2020", "2024", dtype="M8[Y]"),
        "structured": np.zeros(3, [("a", "i4"), ("b", ">f8")]),
        "big-endian": np.arange(3, dtype=">i4"),
        "read-only": frozen,
        "scalar": np.array(3.5),
        "empty": np.empty((0, 3)),
        "text": np.array(["a", "bc"]),
        "large": np.zeros((100, 200)).T,
        "masked": np.ma.MaskedArray(np.arange(6).reshape(2, 3).T, mask=np.eye(3, 2, dtype=bool), fill_value=7),
    }


@pytest.fixture(params=["pair", "queue"])
def through(request: pytest.FixtureRequest) -> Any:
    sender, receiver = shmtree.create_pair() if request.param == "pair" else (queue := shmtree.Queue(), queue)

    def send(value: object) -> Any:
        sender.put(value)
        return receiver.get()

    return send


@pytest.mark.guarantee("beside-a-pickle")
@pytest.mark.parametrize("name", arrays())
def test_array_keeps_its_layout_beside_a_pickle(name: str, through: Any) -> None:
    alone, beside = through([arrays()[name]])[0], through([arrays()[name], Foreign()])[0]
    assert_same(beside, alone)
    want = arrays()[name]
    if not np.ma.isMaskedArray(want):
        assert alone.dtype == want.dtype and np.array_equal(alone, want) and alone.flags.aligned
        assert alone.flags.f_contiguous or not want.flags.f_contiguous
    for got in (alone, beside):
        assert got.strides == alone.strides and got.flags.writeable == alone.flags.writeable


@pytest.mark.guarantee("beside-a-pickle")
def test_arrays_keep_sharing_memory_beside_a_pickle() -> None:
    sender, receiver = shmtree.create_pair()
    base = np.arange(24.0).reshape(2, 3, 4)
    message = [base, base.transpose(1, 0, 2), base[1], base.reshape(-1)[::5], np.ma.MaskedArray(base, mask=False)]
    for value in (message, [*message, Foreign(array=base)]):
        sender.put(value)
        got = receiver.get()
        assert all(np.shares_memory(got[0], each) for each in got[1:5])
        assert [each.strides for each in got[1:4]] == [each.strides for each in message[1:4]]  # type: ignore[attr-defined]
    assert got[5].array is got[0]


def test_view_in_a_pickled_object_keeps_sharing_memory() -> None:
    sender, receiver = shmtree.create_pair()
    base = np.arange(5000.0)
    sender.put({"base": base, "object": Foreign(part=base[10:20], strided=base[::7])})
    got = receiver.get()
    assert np.shares_memory(got["base"], got["object"].part) and np.shares_memory(got["base"], got["object"].strided)


def test_arena_arrays_go_by_reference_beside_a_pickle() -> None:
    sender, receiver = shmtree.create_pair()
    array = sender.new_empty((100, 100))
    array[:] = 5
    strided = array[:, ::2]
    sender.put({"x": strided, "object": Foreign()}, move=True)
    got = receiver.get()["x"]
    assert np.array_equal(got, np.full((100, 50), 5.0)) and got.strides == (800, 16)


@needs_torch
def test_tensors_keep_layout_and_sharing_beside_a_pickle(through: Any) -> None:
    image = torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last)
    parameter = torch.nn.Parameter(torch.ones(3))
    for extra in ([], [Foreign(image=image)]):
        got = through([image, image[0], image[:, 1], parameter, *extra])
        assert got[0].is_contiguous(memory_format=torch.channels_last) and torch.equal(got[0], image)
        assert [each.stride() for each in got[1:3]] == [image[0].stride(), image[:, 1].stride()]
        assert got[1].untyped_storage().data_ptr() == got[0].untyped_storage().data_ptr()
        assert type(got[3]) is torch.nn.Parameter and got[3].requires_grad
    assert got[4].image is got[0]


def test_arrays_of_ml_dtypes_share_memory(through: Any) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(12).astype(ml_dtypes.bfloat16).reshape(3, 4).T
    got = through([array])[0]
    assert got.dtype == array.dtype and np.array_equal(got, array)


# --- what cannot be sent ----------------------------------------------------------------------------------------------


def unsendable() -> list[tuple[Any, str]]:
    lock = threading.Lock()
    inner = Foreign(info=[1, 2, 3, Foreign(callback=lambda: 1)])
    slotted = type("Slotted", (), {"__slots__": ("a",)})
    globals()["Slotted"] = slotted
    slotted.__module__, slotted.__qualname__ = __name__, "Slotted"
    made: Any = slotted()
    made.a = [lock]
    return [
        ({"obs": inner, "x": np.arange(1000)}, '["obs"].info[3].callback'),
        (inner, ".info[3].callback"),
        ([lock], "[0]"),
        ({"a": {"b": (1, lock)}}, '["a"]["b"][1]'),
        ({"many": [*range(100_000), lock, *range(100_000)]}, '["many"][100000]'),
        ([made], "[0].a[0]"),
        ([functools.partial(print, lock, file=3)], "[0].args[0]"),
        ({"keys": {(1, 2): lock}}, '["keys"][<tuple>]'),
    ]


@pytest.mark.parametrize("number", range(len(unsendable())))
def test_error_names_the_path_of_an_unpicklable_object(number: int) -> None:
    value, path = unsendable()[number]
    sender, _receiver = shmtree.create_pair()
    with shmtree.Broadcast() as broadcast, shmtree.Latest() as latest:
        calls = [sender.put, sender.put_nowait, broadcast.put, latest.publish, shmtree.pack, shmtree.Queue().put]
        for call in calls:
            with pytest.raises((TypeError, pickle.PicklingError, AttributeError)) as caught:
                call(value)  # type: ignore[operator]
            assert str(caught.value).endswith(f"it is at {path} of the message")


def test_error_raised_by_user_code_is_not_changed() -> None:
    class Odd(Exception):
        pass

    with pytest.raises(Odd) as caught:
        shmtree.pack([Refusing(Odd("own", 3))])
    assert caught.value.args == ("own", 3)
    with pytest.raises(TypeError) as lone:
        shmtree.pack(threading.Lock())
    assert str(lone.value) == "cannot pickle '_thread.lock' object"


class Refusing:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error


def test_failed_put_does_not_send_ends() -> None:
    sender, receiver = shmtree.create_pair()
    with pytest.raises(TypeError, match=r"at \[1\] of the message"):
        sender.put([shmtree.create_pair()[1], threading.Lock()])
    queue = shmtree.Queue()
    with pytest.raises(TypeError, match=r"at \[1\] of the message"):
        sender.put([queue, threading.Lock()])
    sender.put(1)
    assert receiver.get() == 1
    queue.put(2)
    assert queue.get() == 2


def test_error_of_a_request_names_the_path() -> None:
    with shmtree.Service() as service, shmtree.Client(service.sender) as client:
        with pytest.raises(TypeError, match=r'; it is at \["a"\]\[1\] of the message$'):
            client.call({"a": [1, threading.Lock()]}, timeout=60)
        with pytest.raises(TypeError) as caught:
            client.call(threading.Lock(), timeout=60)
        assert str(caught.value) == "cannot pickle '_thread.lock' object"
