"""Arenas: budgets, statistics, and arrays that several processes share."""

from __future__ import annotations

import gc
import os
import re

import numpy as np
import pytest

import shmtree
from shmtree import _core


def test_max_bytes_is_the_requested_budget():
    assert shmtree.Arena(8 << 20).max_bytes == 8 << 20
    assert shmtree.Arena().max_bytes > 64 << 20


@pytest.mark.parametrize("wrong", [0, -1, 1000, 1 << 60])
def test_invalid_budget_raises_value_error(wrong):
    with pytest.raises(ValueError):
        shmtree.Arena(wrong)


def test_budget_of_wrong_type_raises_type_error():
    with pytest.raises(TypeError):
        shmtree.Arena("1 GiB")


def test_stats_count_used_and_held_bytes(arena):
    sender, receiver = arena.create_pair()
    before = arena.stats()
    sender.put(np.zeros(1_000_000, np.uint8))
    queued = arena.stats()
    assert queued["used_bytes"] - before["used_bytes"] >= 1_000_000
    assert queued["held_bytes"] == before["held_bytes"]
    kept = receiver.get()
    assert arena.stats()["held_bytes"] - before["held_bytes"] >= 1_000_000
    del kept
    assert arena.stats()["used_bytes"] == before["used_bytes"]
    assert before["participants"] == 1 and before["max_bytes"] == arena.max_bytes


def test_holders_lists_pid_and_bytes_of_each_held_block(arena):
    sender, receiver = arena.create_pair()
    sender.put(np.zeros(1_000_000, np.uint8))
    assert arena.holders() == []
    kept = receiver.get()
    (holder,) = arena.holders()
    assert holder.pid == os.getpid()
    assert holder.nbytes >= kept.nbytes
    assert 0 <= holder.age < 60


def test_trim_returns_free_memory_to_the_system(arena):
    sender, receiver = arena.create_pair()
    sender.put(np.zeros(30_000_000, np.uint8))
    receiver.get()
    assert arena.stats()["committed_bytes"] >= 30_000_000
    assert arena.trim() >= 30_000_000
    assert arena.stats()["committed_bytes"] < 1_000_000


def test_prefault_commits_memory_at_once():
    assert shmtree.Arena(64 << 20, prefault=16 << 20).stats()["committed_bytes"] >= 16 << 20


def test_closed_arena_refuses_new_objects_and_keeps_old_ones(arena):
    own = shmtree.Arena(16 << 20)
    sender, receiver = own.create_pair()
    array = own.new_zeros(1000)
    with own:
        pass
    assert own.closed
    for call in (own.create_pair, lambda: own.new_empty(3), lambda: own.array(3)):
        with pytest.raises(shmtree.ChannelClosed):
            call()
    sender.put(array)
    assert receiver.get().sum() == 0


def test_pairs_without_an_arena_share_the_default_one():
    first, second = shmtree.create_pair(), shmtree.create_pair()
    assert first[0]._channel.arena.uuid == second[0]._channel.arena.uuid


def test_create_pair_uses_the_given_arena(arena):
    sender, _receiver = shmtree.create_pair(arena=arena)
    assert sender._channel.arena.uuid == arena._core.uuid


def test_array_of_an_arena_is_put_without_a_copy(arena):
    sender, receiver = arena.create_pair()
    array = arena.new_zeros(100_000)
    where = array.__array_interface__["data"][0]
    sender.put(array)
    assert receiver.get().__array_interface__["data"][0] == where


def test_copy_in_copies_bytes_once_and_put_copies_nothing(arena, pair):
    sender, receiver = pair
    source = np.arange(20_000)

    copy = _core.copy_in(arena._core, source)
    source[:] = 0
    block = _core.block_of(copy)
    sender.put(copy)

    assert copy.dtype == np.uint8 and not copy.flags.writeable
    received = receiver.get()
    assert received.ctypes.data == copy.ctypes.data and _core.block_of(received) == block
    assert received.view(np.int64).tolist() == list(range(20_000))
    assert _core.copy_in(arena._core, b"").shape == (0,)
    with pytest.raises(BufferError, match="contiguous"):
        _core.copy_in(arena._core, memoryview(b"abcdef")[::2])
    with pytest.raises(shmtree.OutOfSharedMemory):
        _core.copy_in(arena._core, bytes(64 << 20), timeout=0)


def test_shared_array_is_zeroed_and_writable(arena):
    shared = arena.array((2, 3), "f4")
    assert shared.array.shape == (2, 3) and shared.array.dtype == np.float32
    assert (shared.array == 0).all()
    shared.array[:] = 1
    with pytest.raises(ValueError):
        arena.array(0)
    with pytest.raises(TypeError):
        shmtree.SharedArray()


def test_shared_array_supports_in_place_add_but_no_replacement(arena):
    shared = arena.array((2, 3), np.int64)
    memory = shared.array
    shared.array += 2
    assert shared.array is memory
    assert memory.tolist() == [[2] * 3] * 2
    with pytest.raises(AttributeError, match="write into it"):
        shared.array = memory[:]


def test_put_copies_a_shared_array_even_with_move(arena):
    sender, receiver = arena.create_pair()
    shared = arena.array(100_000)
    for move in (False, True):
        sender.put(shared.array, move=move)
        shared.array[0] += 1
        got = receiver.get()
        assert got.__array_interface__["data"] != shared.array.__array_interface__["data"]
        assert got[0] == shared.array[0] - 1


def test_view_of_a_shared_array_keeps_its_memory(arena):
    shared = arena.array(1000)
    view = shared.array[10:20]
    view[:] = 5
    del shared
    gc.collect()
    assert len(arena.holders()) == 1
    assert view.sum() == 50


def test_three_hundred_arenas_work_in_one_process():
    arenas = [shmtree.Arena() for _ in range(300)]
    pairs = [arena.create_pair() for arena in arenas]
    for i, (sender, _) in enumerate(pairs):
        sender.put(np.full(10_000, i))
    assert [receiver.get()[0] for _, receiver in pairs] == list(range(300))


@pytest.mark.guarantee("no-leak")
def test_dropped_arena_leaves_no_descriptor_or_mapping():
    def made_and_dropped() -> None:
        sender, receiver = shmtree.Arena(16 << 20).create_pair()
        sender.put(np.zeros(100_000))
        receiver.get()

    def mappings() -> int:
        with open("/proc/self/maps") as maps:
            return sum("memfd:shmtree" in line for line in maps)

    made_and_dropped()
    gc.collect()
    before = len(os.listdir("/proc/self/fd")), mappings()
    for _ in range(20):
        made_and_dropped()
    gc.collect()
    assert (len(os.listdir("/proc/self/fd")), mappings()) == before


def test_dropped_pairs_free_their_blocks(arena):
    for _ in range(500):
        arena.create_pair()
    assert arena.stats()["blocks"] <= 2 * 70


@pytest.mark.parametrize("value", [-1, "8", 1.5])
def test_invalid_capacity_or_max_bytes_raises(arena, value):
    with pytest.raises((ValueError, TypeError)):
        arena.create_pair(capacity=value)
    with pytest.raises((ValueError, TypeError)):
        arena.create_pair(max_bytes=value)


def test_invalid_on_peer_death_raises_value_error(arena):
    with pytest.raises(ValueError, match="on_peer_death"):
        arena.create_pair(on_peer_death="ignore")


def test_asarray_shares_memory_and_array_copies(arena):
    shared = arena.array((3,), np.int32)
    seen = np.asarray(shared)
    seen[1] = 7
    assert shared.array is shared.array and shared.array.tolist() == [0, 7, 0]
    copied = np.array(shared)
    converted = np.asarray(shared, dtype=np.float64)
    copied[0] = converted[0] = 1
    assert converted.dtype == np.float64 and shared.array.tolist() == [0, 7, 0]
    assert "writable" in shmtree.SharedArray.array.__doc__
    with pytest.raises(AttributeError):
        shared.array = copied
    with pytest.raises(ValueError, match="without a copy"):
        shared.__array__(np.float64, copy=False)


def test_version_equals_that_of_the_compiled_module():
    assert shmtree.__version__ == shmtree._core.VERSION
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev0)?", shmtree.__version__)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: shmtree.create_pair(name=5), TypeError, "name is 5; it must be a str"),
        (lambda: shmtree.Arena(name=5), TypeError, "name is 5; it must be a str"),
        (lambda: shmtree.Arena(2 << 20).array(3, name=5), TypeError, "name is 5; it must be a str"),
        (lambda: shmtree.open_sender(5), TypeError, "name is 5; it must be a str"),
        (lambda: shmtree.open_receiver(b"x"), TypeError, "name is b'x'; it must be a str"),
        (lambda: shmtree.create_pair(arena=5), TypeError, "arena is 5; it must be an Arena, or None"),
        (lambda: shmtree.create_pair(2**70), OverflowError, f"capacity is {2**70}; it must be below 2**63"),
        (lambda: shmtree.create_pair(capacity="x"), TypeError, "capacity is 'x'; it must be an int"),
        (lambda: shmtree.create_pair(max_bytes=1.5), TypeError, "max_bytes is 1.5; it must be an int"),
        (lambda: shmtree.Arena(2**70), OverflowError, f"max_bytes is {2**70}; it must be below 2**63"),
        (
            lambda: shmtree.Arena(1 << 20, prefault=1 << 30),
            ValueError,
            "prefault is 1073741824; it must not be more than max_bytes, 1048576",
        ),
    ],
)
def test_error_for_a_wrong_argument_shows_its_value(call, error, says):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == says


def test_default_arena_reports_stats_and_holders():
    sender, receiver = shmtree.create_pair()
    sender.put(np.zeros(100_000))
    before = shmtree.default_arena().stats()
    got = receiver.get()
    arena = shmtree.default_arena()
    assert before["used_bytes"] >= got.nbytes
    assert [holder.pid for holder in arena.holders()] == [os.getpid()]
    del got
    assert arena.trim() > 0 and arena.holders() == []


def test_budget_over_machine_memory_warns_with_both_sizes():
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with pytest.warns(RuntimeWarning, match=f"{memory + 1},.* {memory} bytes"):
        shmtree.Arena(memory + 1)


def test_queues_of_an_arena_take_the_options_of_queues(arena):
    for make in (arena.Queue, arena.JoinableQueue, arena.SimpleQueue):
        queue = make(max_bytes=1 << 16, on_peer_death="raise", portable=True)
        with pytest.raises(shmtree.NotPortable):
            queue.put(arena)
        queue.close()
    with pytest.raises(TypeError, match="maxsise"):
        arena.Queue(maxsise=3)
