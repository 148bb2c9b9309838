"""Zero copy in both directions: views, the memory that they keep, and forwarding."""

from __future__ import annotations

import gc
import multiprocessing as mp
import os

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
    return type(base).__name__ == "ViewOwner"


# --- what is viewed and what is copied


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


def test_read_only_array_arrives_read_only(pair):
    sender, receiver = pair
    array = np.arange(100_000)
    array.setflags(write=False)
    sender.put(array)
    assert not receiver.get().flags.writeable


def test_views_are_aligned_to_64_bytes(pair):
    sender, receiver = pair
    sender.put([np.zeros(n, np.uint8) for n in (5000, 9001, 70_001)])
    assert all(address(array) % 64 == 0 for array in receiver.get())


# --- how long views last


def test_view_keeps_its_block_until_freed(pair):
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


@pytest.mark.guarantee("views-never-change")
def test_held_block_is_not_reused(arena):
    sender, receiver = arena.create_pair()
    sender.put(np.full(1_000_000, 1, np.uint8))
    kept = receiver.get()
    for i in range(100):
        sender.put(np.full(1_000_000, i, np.uint8))
        receiver.get()
    assert (kept == 1).all()


def test_view_held_over_a_fork_keeps_its_bytes(arena, start):
    sender, receiver = arena.create_pair()
    sender.put(np.random.default_rng(1).integers(0, 255, 10_000_000, np.uint8))
    view = receiver.get()
    ours, theirs = mp.Pipe()
    start(peers.check_kept_view, view, theirs)
    assert ours.recv() == "ready"
    del view
    gc.collect()
    for i in range(20):  # 200 MB through an arena of 64 MB
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


@pytest.mark.guarantee("hoarding")
def test_hoarding_receiver_does_not_block_the_sender(arena, start):
    sender, receiver = arena.create_pair(capacity=4)
    ours, theirs = mp.Pipe()
    start(peers.hoard, receiver, theirs)
    receiver.close()
    for i in range(160):  # 160 MB through an arena of 64 MB, with all arrays kept
        sender.put(np.full(1_000_000, i % 100, np.uint8), timeout=30)
    sender.close()
    told = [ours.recv() for _ in range(11)]
    assert told[-1] == ("sum", sum(i % 100 for i in range(160)))


def test_copies_are_returned_once_half_the_budget_is_held(arena):
    sender, receiver = arena.create_pair()
    kept = []
    for _ in range(6):
        sender.put(np.zeros(10_000_000, np.uint8), timeout=30)
        kept.append(receiver.get())
    views = [is_view(array) for array in kept]
    assert views[0] and not views[-1]
    assert views == sorted(views, reverse=True)


def test_message_over_half_the_budget_is_a_view_if_none_is_held(arena):
    sender, receiver = arena.create_pair()
    sender.put(np.zeros(40 << 20, np.uint8), timeout=30)
    assert is_view(receiver.get())
    lent = sender.new_empty((40 << 20,), np.uint8)
    address = lent.ctypes.data
    sender.put(lent, timeout=30)
    assert receiver.get().ctypes.data == address


@pytest.mark.guarantee("hoarding")
def test_put_raises_with_the_pids_that_hold_the_memory(arena):
    sender, receiver = arena.create_pair()
    kept = []
    for _ in range(3):
        sender.put(np.zeros(20_000_000, np.uint8))
        kept.append(receiver.get(copy=False))
    with pytest.raises(shmtree.OutOfSharedMemory, match=f"pid {os.getpid()} holds"):
        sender.put(np.zeros(20_000_000, np.uint8), timeout=30)
    kept.clear()
    sender.put(np.zeros(20_000_000, np.uint8), timeout=30)


# --- forwarding


def test_put_with_move_forwards_a_received_array_uncopied(arena):
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


def test_put_without_move_copies_a_received_array(arena):
    first, second = arena.create_pair(), arena.create_pair()
    first[0].put(np.arange(100_000))
    got = first[1].get()
    second[0].put(got)
    again = second[1].get()
    assert address(again) != address(got)
    got[0] = 99
    assert again[0] == 0


def test_array_made_in_place_crosses_two_channels_uncopied(arena):
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


def test_parts_of_one_message_are_forwarded_to_two_channels(arena):
    source, left, right = arena.create_pair(), arena.create_pair(), arena.create_pair()
    source[0].put({"a": np.full(50_000, 1), "b": np.full(50_000, 2)})
    got = source[1].get()
    places = [address(got["a"]), address(got["b"])]
    left[0].put(got["a"], move=True)
    right[0].put(got["b"], move=True)
    assert [address(left[1].get()), address(right[1].get())] == places


def test_another_process_forwards_arrays_unchanged(arena, start):
    first, second = arena.create_pair(), arena.create_pair()
    start(peers.echo, first[1], second[0], 3)
    for i in range(3):
        array = first[0].new_zeros(100_000)
        array[:] = i
        first[0].put(array, timeout=30)
        del array
        assert (second[1].get(timeout=30) == i).all()
