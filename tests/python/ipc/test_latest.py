"""The newest version of a value: readers get exactly what was published, and it never changes."""

from __future__ import annotations

import gc
import os
import queue
import signal
import threading

import numpy as np
import pytest
from latest_peers import is_whole, weights
from shared_state import violated_by

import shmtree
from shmtree import _core

MIB = 1 << 20


def used(arena: shmtree.Arena) -> int:
    gc.collect()
    return int(arena.stats()["used_bytes"])


@pytest.mark.guarantee("latest-pins")
def test_large_arrays_are_read_only_views_that_never_change(arena: shmtree.Arena) -> None:
    latest = shmtree.Latest(arena=arena)
    latest.publish(weights(1))
    one = used(arena)
    _, kept = latest.get()
    view = kept["w3"]
    assert used(arena) == one
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True
    for number in range(2, 100):
        latest.publish(weights(number))
    assert is_whole(kept)
    assert view[0] == 1
    part = view[10:20]
    del kept, view
    assert (part == 1).all()
    del part
    assert used(arena) == one


def test_small_values_and_copies_are_private_to_the_reader() -> None:
    latest = shmtree.Latest()
    latest.publish({"small": np.arange(4), "large": np.arange(10_000)})
    _, value = latest.get(copy=True)
    value["large"][:] = 0
    value["small"][:] = 0
    _, again = latest.get()
    assert again["large"][9] == 9
    assert again["small"][3] == 3
    again["small"][:] = 7
    assert not latest.get(copy=False)[1]["small"].flags.writeable


def test_history_keeps_that_many_older_versions() -> None:
    latest = shmtree.Latest(history=2)
    assert latest.history == 2
    for number in range(1, 8):
        latest.publish(number)
    assert [latest.get(version=version) for version in (5, 6, 7)] == [(5, 5), (6, 6), (7, 7)]
    for version in (0, 4, 8, 1 << 40):
        with pytest.raises(KeyError, match="the newest is 7, with a history of 2"):
            latest.get(version=version)


@pytest.mark.guarantee("latest-pins")
def test_memory_use_is_bounded_by_the_history(arena: shmtree.Arena) -> None:
    before = used(arena)
    latest = shmtree.Latest(arena=arena, history=1)
    empty = used(arena)
    latest.publish(np.zeros(MIB, np.uint8))
    one = used(arena) - empty
    for _ in range(20):
        latest.publish(np.zeros(MIB, np.uint8))
    assert used(arena) - empty == 2 * one
    latest.close()
    assert used(arena) == before


def give_and_die(sender: shmtree.Sender) -> None:
    sender.put(shmtree.Latest())
    os.kill(os.getpid(), signal.SIGKILL)


def test_latest_without_an_owner_arrives_closed(start) -> None:
    sender, receiver = shmtree.create_pair()
    start(give_and_die, sender).join(30)
    arrived = receiver.get()
    assert arrived.closed
    with pytest.raises(shmtree.ChannelClosed):
        arrived.get(timeout=0)


def test_unsendable_value_raises_and_publishes_nothing() -> None:
    latest = shmtree.Latest(allow_pickle=False)
    latest.publish(1)
    with pytest.raises(shmtree.PickleRefused, match=r"\[\"a\"\]"):
        latest.publish({"a": threading.Lock()})
    assert latest.get() == (1, 1)
    frame = shmtree.pack({"x": np.arange(5000)})
    assert latest.publish(frame) == 2
    assert latest.get()[1]["x"][4999] == 4999
    assert latest.stats()["pickled"] == 0


def test_invalid_arguments_raise() -> None:
    with pytest.raises(ValueError, match="history is -1"):
        shmtree.Latest(history=-1)
    with pytest.raises(ValueError, match="65537"):
        shmtree.Latest(history=65537)
    with pytest.raises(TypeError, match="newer_than is 'x'"):
        shmtree.Latest().get("x")  # type: ignore[arg-type]


def test_blocks_are_consistent_after_many_publishes(arena: shmtree.Arena) -> None:
    latest = shmtree.Latest(arena=arena, history=3)
    views = []
    for number in range(40):
        latest.publish(weights(number))
        if number % 7 == 0:
            views.append(latest.get())
    assert violated_by(latest) == ""
    assert [int(value["w0"][0]) for _, value in views] == [0, 7, 14, 21, 28, 35]
    assert isinstance(latest._shared, _core.LatestStore)


def test_subclass_that_skips_base_init_raises_type_error():
    class Forgets(shmtree.Latest):
        def __init__(self) -> None:
            pass

    with pytest.raises(TypeError, match="__init__"):
        Forgets().publish(1)
    never_made = shmtree.Broadcast.__new__(shmtree.Broadcast)
    with pytest.raises(TypeError, match="__init__"):
        never_made.put(1)
    never_made.close()
    assert never_made.closed


def test_negative_numbers_are_refused_by_name():
    latest, broadcast = shmtree.Latest(), shmtree.Broadcast()
    with pytest.raises(ValueError, match="newer_than is -1"):
        latest.get(newer_than=-1)
    with pytest.raises(ValueError, match="version is -1"):
        latest.get(version=-1)
    with pytest.raises(ValueError, match="ticket is -1"):
        broadcast.wait_for_ack(-1)


def test_empty_names_the_version_that_the_caller_has():
    latest = shmtree.Latest()
    latest.publish(1)
    with pytest.raises(queue.Empty, match="newer than 1"):
        latest.get(newer_than=1, timeout=0)
