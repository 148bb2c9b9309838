"""Arrays that are created in the arena: put without a copy, and moved to the receiver."""

from __future__ import annotations

import queue

import numpy as np
import pytest
from test_views import address

import shmtree


def test_read_only_array_is_sent_repeatedly_by_reference(pair):
    sender, receiver = pair
    array = sender.new_zeros(100_000)
    array[:] = 3
    array.setflags(write=False)
    for _ in range(3):
        sender.put(array)
    received = [receiver.get() for _ in range(3)]
    assert {address(got) for got in received} == {address(array)}
    assert not any(got.flags.writeable for got in received)
    with pytest.raises(ValueError):
        received[0].setflags(write=True)
    assert not array.flags.writeable
    with pytest.raises(ValueError):
        array.setflags(write=True)


def test_read_only_view_of_a_writable_array_is_copied(pair):
    sender, receiver = pair
    array = sender.new_zeros(100_000)
    view = array.view()
    view.setflags(write=False)
    sender.put(view)
    array[:] = 1
    assert receiver.get().sum() == 0
    assert array.flags.writeable


def test_put_with_move_sends_a_part_by_reference(pair):
    sender, receiver = pair
    pool = sender.new_zeros((4, 10_000))
    rows = [pool[i] for i in range(4)]
    for i, row in enumerate(rows):
        row[:] = i
        sender.put(row, move=True)
        assert not row.flags.writeable
    received = [receiver.get() for _ in range(4)]
    assert [address(got) for got in received] == [address(row) for row in rows]
    assert [got[0] for got in received] == [0, 1, 2, 3]
    sender.put(rows[0], move=True)  # has been moved already
    assert address(receiver.get()) != address(rows[0])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    "dtype", [bool, "uint8", "float16", "complex128", ">f8", "M8[s]", "S5", [("a", "i4"), ("b", "f8")]]
)
def test_arrays_in_place_support_every_dtype_and_order(pair, dtype, order):
    sender, receiver = pair
    array = sender.new_zeros((30, 40, 50), dtype, order)
    assert array.dtype == np.dtype(dtype)
    assert array.flags.f_contiguous == (order == "F")
    where = address(array)
    sender.put(array)
    got = receiver.get()
    assert address(got) == where
    assert got.dtype == np.dtype(dtype) and got.flags.f_contiguous == (order == "F")


def test_new_empty_accepts_the_arguments_of_numpy_empty(pair):
    sender, _ = pair
    assert sender.new_empty(5).shape == (5,)
    assert sender.new_empty(()).shape == ()
    assert sender.new_empty([2, 3], "f4").dtype == np.float32
    assert sender.new_empty((0, 3)).shape == (0, 3)
    assert sender.new_empty_like(np.ones((2, 3), np.int8)).dtype == np.int8
    assert sender.new_empty_like(np.ones((2, 3), order="F")).flags.f_contiguous
    assert not sender.new_zeros(shape=(2, 3), dtype=None, order="F").any()


@pytest.mark.parametrize("make", ["new_empty", "new_zeros"])
def test_new_empty_rejects_invalid_arguments(pair, make):
    new = getattr(pair[0], make)
    for wrong, error in (((-1,), ValueError), ("x", TypeError)):
        with pytest.raises(error):
            new(wrong)
    for dtype in (object, "nope"):
        with pytest.raises(TypeError, match="dtype|data type"):
            new(3, dtype)
    for order in ("Q", "", "C\0", "CF"):
        for refuses in (new, getattr(shmtree.Arena(1 << 20), make)):
            with pytest.raises(ValueError, match="order is .* it must be 'C' or 'F'"):
                refuses(3, order=order)
    with pytest.raises(TypeError, match="order is None"):
        new(3, order=None)
    with pytest.raises(TypeError, match=rf"{make}\(\) needs the argument 'shape'"):
        new()
    with pytest.raises(TypeError, match=rf"{make}\(\) got an unexpected argument 'size'"):
        new(size=3)


def test_array_over_the_budget_raises_message_too_large(pair):
    with pytest.raises(shmtree.MessageTooLarge):
        pair[0].new_empty(1 << 40, np.uint8)
    with pytest.raises(shmtree.MessageTooLarge):
        pair[0].new_empty((1 << 62, 1 << 62), np.uint8)


def test_memory_of_an_array_never_put_is_freed(arena):
    sender, _receiver = arena.create_pair()
    for _ in range(20):
        sender.new_empty(10_000_000, np.uint8)
    assert arena.holders() == []


def test_array_of_another_arena_is_copied(arena):
    sender, receiver = arena.create_pair()
    other = shmtree.Arena(16 << 20)
    array = other.new_zeros(100_000)
    sender.put(array)
    assert address(receiver.get()) != address(array)
    assert array.flags.writeable


def test_several_arrays_of_one_message_go_by_reference(pair):
    sender, receiver = pair
    arrays = [sender.new_zeros(10_000) for _ in range(20)]
    for i, array in enumerate(arrays):
        array[:] = i
    sender.put({"arrays": arrays, "copied": np.arange(10_000)})
    got = receiver.get()
    assert [address(array) for array in got["arrays"]] == [address(array) for array in arrays]
    assert [array[0] for array in got["arrays"]] == list(range(20))
    assert np.array_equal(got["copied"], np.arange(10_000))


def test_referenced_array_lives_as_long_as_the_message(arena):
    sender, receiver = arena.create_pair()
    array = sender.new_empty(100_000, np.uint8)
    array[:] = 7
    sender.put(array)
    del array
    for _ in range(50):
        sender.new_zeros(100_000, np.uint8)
    assert (receiver.get() == 7).all()
    assert arena.holders() == []


# --- tensors


def test_tensor_made_in_place_is_put_without_a_copy(pair):
    torch = pytest.importorskip("torch")
    sender, receiver = pair
    tensor = sender.new_zeros((100, 100), torch.bfloat16)
    assert tensor.shape == (100, 100) and tensor.dtype == torch.bfloat16
    tensor.fill_(1.5)
    sender.put(tensor)
    got = receiver.get()
    assert got.data_ptr() == tensor.data_ptr()
    assert got.dtype == torch.bfloat16 and bool((got == 1.5).all())


def test_docstrings_warn_about_views_made_before_put():
    for documented in (shmtree.Sender.put, shmtree.Sender.new_empty):
        text = " ".join(documented.__doc__.split())
        assert "Views that were made of" in text and "do not use them any more" in text


@pytest.mark.guarantee("referenced-bytes")
def test_max_bytes_counts_arrays_passed_by_reference():
    arena = shmtree.Arena(16 << 20)
    sender, receiver = arena.create_pair(capacity=None, max_bytes=250_000)
    for _ in range(2):
        sender.put(sender.new_zeros(100_000, np.uint8))
    assert sender.stats()["queued_bytes"] >= 200_000
    with pytest.raises(queue.Full):
        sender.put(sender.new_zeros(100_000, np.uint8), timeout=0)
    with pytest.raises(shmtree.MessageTooLarge, match="passed by reference"):
        sender.put(sender.new_zeros(300_000, np.uint8))
    receiver.get()
    sender.put(sender.new_zeros(100_000, np.uint8), timeout=0)
    for _ in range(2):
        receiver.get()
    assert sender.stats()["queued_bytes"] == 0
