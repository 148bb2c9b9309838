"""Encoding in channels: arrays that are sent by reference, and multiprocessing's own reducers."""

from __future__ import annotations

import multiprocessing as mp
from typing import Any

import numpy as np
import pytest

import shmtree


@pytest.fixture
def pair() -> Any:
    sender, receiver = shmtree.create_pair(capacity=4)
    yield sender, receiver
    sender.close()
    receiver.close()


def address(array: Any) -> int:
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr()


def test_array_beside_a_pickle_goes_by_reference(pair: Any) -> None:
    sender, receiver = pair
    array = sender.new_zeros(50_000)
    shared: list = [1]
    sender.put([shared, shared, {"array": array, "function": len}])
    got = receiver.get()
    assert got[0] is got[1] and address(got[2]["array"]) == address(array)
    assert got[2]["array"].flags.writeable and not array.flags.writeable


def test_arrays_in_a_dict_with_other_keys_go_by_reference(pair: Any) -> None:
    sender, receiver = pair
    first, second = sender.new_zeros(50_000), sender.new_zeros(50_000)
    sender.put({"name": first, 1: second})
    got = receiver.get()
    assert (address(got["name"]), address(got[1])) == (address(first), address(second))


def test_array_whose_strided_view_is_put_stays_writable(pair: Any) -> None:
    sender, receiver = pair
    array = sender.new_zeros((100, 200))
    shared: list = [1]
    # Pickle makes its own contiguous copy of a strided array.
    sender.put([array[:, ::2], shared, shared])
    assert array.flags.writeable
    assert receiver.get()[0].shape == (100, 100)


def test_array_sent_twice_in_one_message_shares_memory(pair: Any) -> None:
    sender, receiver = pair
    array = sender.new_zeros((100, 200))
    sender.put({"a": array, "b": array, "t": array.T})
    got = receiver.get()
    got["a"][3, 4] = 7
    assert got["b"][3, 4] == 7 and got["t"][4, 3] == 7


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e5m2", "int64"])
def test_tensor_of_new_zeros_goes_by_reference(pair: Any, name: str) -> None:
    torch = pytest.importorskip("torch")
    sender, receiver = pair
    tensor = sender.new_zeros((100, 200), getattr(torch, name))
    sender.put({"tensor": tensor})
    got = receiver.get()["tensor"]
    assert got.dtype == tensor.dtype and got.shape == tensor.shape and address(got) == address(tensor)


def test_connection_is_sent_and_a_lock_is_refused(pair: Any) -> None:
    sender, receiver = pair
    near, far = mp.Pipe()
    sender.put({"connection": far})
    received = receiver.get()["connection"]
    received.send("hello")
    assert near.recv() == "hello"
    with pytest.raises(RuntimeError):
        sender.put([mp.get_context("spawn").Lock()])
    assert receiver.empty()
