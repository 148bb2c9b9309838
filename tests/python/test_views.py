"""Zero copy both ways: views and what they keep, arrays made in place, forwarding."""

from __future__ import annotations

import gc
import multiprocessing as mp
import os
import queue
import threading

import numpy as np
import peers
import pytest

import shmtree


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def is_view(array: np.ndarray) -> bool:
    base = array
    while isinstance(base, np.ndarray):
        base = base.base
    return type(base).__name__ == "Lease"


# --- what is viewed and what is copied


def test_a_large_array_is_a_writable_view(pair):
    sender, receiver = pair
    sender.put(np.arange(100_000))
    got = receiver.get()
    assert is_view(got)
    assert got.flags.writeable
    got[0] = 5


def test_small_messages_are_copied_out(pair):
    sender, receiver = pair
    for size in (10, 100, 1500):  # in the ring, and in blocks of up to 16 KiB
        sender.put(np.arange(size))
        assert not is_view(receiver.get())
    assert pair_arena(pair).holders() == []


def pair_arena(pair) -> shmtree.Arena:
    return shmtree.Arena._of(pair[0]._channel.arena, None)


def test_small_arrays_of_large_messages_are_copied_out(pair):
    sender, receiver = pair
    sender.put({"large": np.zeros(100_000), "small": np.zeros(500)})
    got = receiver.get()
    assert is_view(got["large"])
    assert not is_view(got["small"])


def test_copy_true_copies_all_and_copy_false_views_all(pair):
    sender, receiver = pair
    message = {"large": np.zeros(100_000), "small": np.zeros(5000, np.uint8)}
    sender.put(message)
    assert not any(is_view(array) for array in receiver.get(copy=True).values())
    sender.put(message)
    assert all(is_view(array) for array in receiver.get(copy=False).values())


def test_a_read_only_array_arrives_read_only(pair):
    sender, receiver = pair
    array = np.arange(100_000)
    array.setflags(write=False)
    sender.put(array)
    assert not receiver.get().flags.writeable


def test_views_are_aligned_for_every_vector_unit(pair):
    sender, receiver = pair
    sender.put([np.zeros(n, np.uint8) for n in (5000, 9001, 70_001)])
    assert all(address(array) % 64 == 0 for array in receiver.get())


# --- how long views last


def test_a_view_keeps_its_block_until_it_dies(pair):
    sender, receiver = pair
    arena = pair_arena(pair)
    sender.put({"a": np.zeros(100_000), "b": np.zeros(100_000)})
    got = receiver.get()
    assert len(arena.holders()) == 1
    part = got["a"][100:200].reshape(10, 10)
    del got
    assert len(arena.holders()) == 1
    del part
    assert arena.holders() == []


def test_views_outlive_the_receiver_the_channel_and_the_sender():
    sender, receiver = shmtree.Arena(16 << 20).create_pair()
    sender.put(np.arange(100_000))
    got = receiver.get()
    receiver.close()
    sender.close()
    del sender, receiver
    gc.collect()
    assert np.array_equal(got, np.arange(100_000))


def test_a_block_is_not_used_again_while_it_is_held(arena):
    sender, receiver = arena.create_pair()
    sender.put(np.full(1_000_000, 1, np.uint8))
    kept = receiver.get()
    for i in range(100):
        sender.put(np.full(1_000_000, i, np.uint8))
        receiver.get()
    assert (kept == 1).all()


def test_a_view_held_over_a_fork_keeps_its_bytes(arena, start):
    sender, receiver = arena.create_pair()
    sender.put(np.random.default_rng(1).integers(0, 255, 10_000_000, np.uint8))
    view = receiver.get()
    ours, theirs = mp.Pipe()
    start(peers.check_kept_view, view, theirs)
    assert ours.recv() == "ready"
    del view
    gc.collect()
    for i in range(20):  # 200 MB through an arena of 64
        sender.put(np.full(10_000_000, i, np.uint8), timeout=30)
        receiver.get(timeout=30)
    ours.send("look")
    assert ours.recv() is True


def test_two_processes_read_one_block(arena, start):
    sender, receiver = arena.create_pair()
    shared = sender.new_empty(1_000_000, np.uint8)
    shared[:] = 9
    shared.setflags(write=False)
    pipes = [mp.Pipe() for _ in range(2)]
    for _, theirs in pipes:
        start(peers.get_and_hang, receiver, theirs)
        sender.put(shared)
    for ours, _ in pipes:
        assert ours.recv() == "ndarray"
    holders = [holder for holder in arena.holders() if holder.nbytes >= 1_000_000]
    assert len({holder.block for holder in holders}) == 1
    assert len({holder.pid for holder in holders}) == 3


# --- hoarding


def test_a_hoarder_does_not_stop_the_sender(arena, start):
    sender, receiver = arena.create_pair(capacity=4)
    ours, theirs = mp.Pipe()
    start(peers.hoard, receiver, theirs)
    receiver.close()
    for i in range(160):  # 160 MB through an arena of 64, all of it kept
        sender.put(np.full(1_000_000, i % 100, np.uint8), timeout=30)
    sender.close()
    told = [ours.recv() for _ in range(11)]
    assert told[-1] == ("sum", sum(i % 100 for i in range(160)))


def test_copies_are_given_once_half_of_the_budget_is_held(arena):
    sender, receiver = arena.create_pair()
    kept = []
    for _ in range(6):
        sender.put(np.zeros(10_000_000, np.uint8), timeout=30)
        kept.append(receiver.get())
    views = [is_view(array) for array in kept]
    assert views[0] and not views[-1]
    assert views == sorted(views, reverse=True)


def test_a_message_over_half_of_the_budget_is_a_view_when_nothing_else_is_held(arena):
    sender, receiver = arena.create_pair()
    sender.put(np.zeros(40 << 20, np.uint8), timeout=30)
    assert is_view(receiver.get())
    lent = sender.new_empty((40 << 20,), np.uint8)
    address = lent.ctypes.data
    sender.put(lent, timeout=30)
    assert receiver.get().ctypes.data == address


def test_if_only_held_views_are_in_the_way_put_raises_with_the_holders_names(arena):
    sender, receiver = arena.create_pair()
    kept = []
    for _ in range(3):
        sender.put(np.zeros(20_000_000, np.uint8))
        kept.append(receiver.get(copy=False))
    with pytest.raises(shmtree.OutOfSharedMemory, match=f"pid {os.getpid()} holds"):
        sender.put(np.zeros(20_000_000, np.uint8), timeout=30)
    kept.clear()
    sender.put(np.zeros(20_000_000, np.uint8), timeout=30)


# --- arrays made in place


def test_an_array_of_new_empty_is_put_without_a_copy(pair):
    sender, receiver = pair
    array = sender.new_empty((300, 1000), np.float32)
    array[:] = 2.5
    sender.put({"x": array, "step": 1})
    got = receiver.get()["x"]
    assert address(got) == address(array)
    assert got.shape == (300, 1000) and got.dtype == np.float32
    assert (got == 2.5).all()


def test_put_gives_the_array_away(pair):
    sender, receiver = pair
    array = sender.new_zeros(1000)
    same = array.reshape(10, 100)
    sender.put(same)
    got = receiver.get()
    assert got.flags.writeable
    assert not array.flags.writeable and not same.flags.writeable
    with pytest.raises(ValueError):
        array.setflags(write=True)


def test_a_second_put_of_a_given_array_copies(pair):
    sender, receiver = pair
    array = sender.new_zeros(100_000)
    sender.put(array)
    sender.put(array)
    first, second = receiver.get(), receiver.get()
    assert address(first) == address(array) != address(second)
    first[:] = 1
    assert second.sum() == 0


def test_a_put_that_fails_gives_nothing_away(arena):
    sender, _receiver = arena.create_pair(capacity=1)
    sender.put(1)
    array = sender.new_zeros(100_000)
    with pytest.raises(queue.Full):
        sender.put_nowait(array)
    assert array.flags.writeable


def test_an_array_put_by_two_threads_at_once_is_given_to_one(arena):
    sender, receiver = arena.create_pair(capacity=1)
    sender.put("in the way")
    array = sender.new_zeros(100_000)
    threads = [threading.Thread(target=sender.put, args=(array,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert receiver.get() == "in the way"
    first, second = receiver.get(timeout=30), receiver.get(timeout=30)
    for thread in threads:
        thread.join()
    first[:] = 1
    assert second.sum() == 0
    assert not array.flags.writeable


def test_an_array_made_read_only_by_its_owner_is_sent_any_number_of_times(pair):
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


def test_a_read_only_view_of_a_writable_array_is_copied(pair):
    sender, receiver = pair
    array = sender.new_zeros(100_000)
    view = array.view()
    view.setflags(write=False)
    sender.put(view)
    array[:] = 1
    assert receiver.get().sum() == 0
    assert array.flags.writeable


def test_a_part_of_an_array_is_copied_and_the_whole_stays_writable(pair):
    sender, receiver = pair
    array = sender.new_zeros((10, 10_000))
    sender.put(array[3])
    array[3] = 1
    assert receiver.get().sum() == 0


def test_a_part_goes_by_reference_when_it_is_moved(pair):
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
    sender.put(rows[0], move=True)  # given away already
    assert address(receiver.get()) != address(rows[0])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    "dtype", [bool, "uint8", "float16", "complex128", ">f8", "M8[s]", "S5", [("a", "i4"), ("b", "f8")]]
)
def test_arrays_are_made_in_place_with_every_dtype_and_order(pair, dtype, order):
    sender, receiver = pair
    array = sender.new_zeros((30, 40, 50), dtype, order)
    assert array.dtype == np.dtype(dtype)
    assert array.flags.f_contiguous == (order == "F")
    where = address(array)
    sender.put(array)
    got = receiver.get()
    assert address(got) == where
    assert got.dtype == np.dtype(dtype) and got.flags.f_contiguous == (order == "F")


def test_new_empty_takes_what_numpy_empty_takes(pair):
    sender, _ = pair
    assert sender.new_empty(5).shape == (5,)
    assert sender.new_empty(()).shape == ()
    assert sender.new_empty([2, 3], "f4").dtype == np.float32
    assert sender.new_empty((0, 3)).shape == (0, 3)
    assert sender.new_empty_like(np.ones((2, 3), np.int8)).dtype == np.int8
    assert sender.new_empty_like(np.ones((2, 3), order="F")).flags.f_contiguous
    assert not sender.new_zeros(shape=(2, 3), dtype=None, order="F").any()


@pytest.mark.parametrize("make", ["new_empty", "new_zeros"])
def test_new_empty_refuses_what_numpy_empty_refuses(pair, make):
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


def test_an_array_over_the_budget_is_refused_at_once(pair):
    with pytest.raises(shmtree.MessageTooLarge):
        pair[0].new_empty(1 << 40, np.uint8)
    with pytest.raises(shmtree.MessageTooLarge):
        pair[0].new_empty((1 << 62, 1 << 62), np.uint8)


def test_the_memory_of_an_array_that_is_never_put_is_given_back(arena):
    sender, _receiver = arena.create_pair()
    for _ in range(20):
        sender.new_empty(10_000_000, np.uint8)
    assert arena.holders() == []


def test_an_array_of_another_arena_is_copied(arena):
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


def test_what_a_message_refers_to_lives_as_long_as_the_message(arena):
    sender, receiver = arena.create_pair()
    array = sender.new_empty(100_000, np.uint8)
    array[:] = 7
    sender.put(array)
    del array
    for _ in range(50):
        sender.new_zeros(100_000, np.uint8)
    assert (receiver.get() == 7).all()
    assert arena.holders() == []


# --- forwarding


def test_a_received_array_is_forwarded_by_reference_when_it_is_moved(arena):
    first, second = arena.create_pair(), arena.create_pair()
    first[0].put({"x": np.arange(100_000)})
    got = first[1].get()
    where = address(got["x"])
    second[0].put(got, move=True)
    assert not got["x"].flags.writeable
    again = second[1].get()
    assert address(again["x"]) == where
    assert again["x"].flags.writeable
    del got
    assert np.array_equal(again["x"], np.arange(100_000))


def test_a_received_array_is_copied_without_move(arena):
    first, second = arena.create_pair(), arena.create_pair()
    first[0].put(np.arange(100_000))
    got = first[1].get()
    second[0].put(got)
    again = second[1].get()
    assert address(again) != address(got)
    got[0] = 99
    assert again[0] == 0


def test_an_array_made_in_place_goes_through_two_channels_without_a_copy(arena):
    first, second = arena.create_pair(), arena.create_pair()
    array = first[0].new_zeros(1_000_000)
    where = address(array)
    first[0].put(array)
    del array
    got = first[1].get()
    second[0].put([got], move=True)
    del got
    (last,) = second[1].get()
    assert address(last) == where


def test_the_parts_of_one_message_are_forwarded_to_different_channels(arena):
    source, left, right = arena.create_pair(), arena.create_pair(), arena.create_pair()
    source[0].put({"a": np.full(50_000, 1), "b": np.full(50_000, 2)})
    got = source[1].get()
    places = [address(got["a"]), address(got["b"])]
    left[0].put(got["a"], move=True)
    right[0].put(got["b"], move=True)
    assert [address(left[1].get()), address(right[1].get())] == places


def test_a_chain_of_processes_forwards_by_reference(arena, start):
    first, second = arena.create_pair(), arena.create_pair()
    start(peers.echo, first[1], second[0], 3)
    for i in range(3):
        array = first[0].new_zeros(100_000)
        array[:] = i
        first[0].put(array, timeout=30)
        del array
        assert (second[1].get(timeout=30) == i).all()


# --- tensors


def test_a_tensor_made_in_place_is_put_without_a_copy(pair):
    torch = pytest.importorskip("torch")
    sender, receiver = pair
    tensor = sender.new_zeros((100, 100), torch.bfloat16)
    assert tensor.shape == (100, 100) and tensor.dtype == torch.bfloat16
    tensor.fill_(1.5)
    sender.put(tensor)
    got = receiver.get()
    assert got.data_ptr() == tensor.data_ptr()
    assert got.dtype == torch.bfloat16 and bool((got == 1.5).all())


def test_the_reference_warns_of_views_that_were_made_before_the_put():
    for documented in (shmtree.Sender.put, shmtree.Sender.new_empty):
        assert "made before" in documented.__doc__ and "must not be used" in documented.__doc__
