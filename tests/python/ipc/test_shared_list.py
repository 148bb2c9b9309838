"""SharedList in one process: access to items, slices, construction, and its memory."""

from __future__ import annotations

import copy
import dataclasses
import gc
import itertools
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import shmtree
from shmtree import SharedList
from shmtree._ipc import list_memory, list_writer


@dataclasses.dataclass
class Sample:
    pixels: Any
    label: int


class NeedsPickle:
    def __init__(self, value: int) -> None:
        self.value = value


def list_mappings() -> int:
    with open("/proc/self/maps") as maps:
        return sum("memfd:shmtree-list" in line for line in maps)


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_items_are_those_that_were_given() -> None:
    given = [
        None,
        3,
        2**100,
        "text",
        b"bytes",
        (1, [2.5, {"a": {1, 2}}]),
        Sample([1], 2),
        "x" * 100_000,
        b"y" * 300_000,
    ]

    shared = SharedList(given)

    assert len(shared) == len(given)
    assert list(shared) == given
    assert [shared[number] for number in range(len(given))] == given
    assert [shared[number - len(given)] for number in range(len(given))] == given
    assert list(reversed(shared)) == given[::-1]
    assert 2**100 in shared and shared.index("text") == 3


def test_empty_list() -> None:
    shared: SharedList[Any] = SharedList()

    assert len(shared) == 0 and list(shared) == [] and not shared
    assert list(SharedList(iter([]))) == []
    with pytest.raises(IndexError, match="index 0 is out of range for a SharedList of 0 items"):
        shared[0]


@pytest.mark.parametrize("index", [3, -4, 2**70])
def test_index_out_of_range_raises(index: int) -> None:
    with pytest.raises(IndexError, match=rf"^index {index} is out of range for a SharedList of 3 items$"):
        SharedList("abc")[index]


@pytest.mark.parametrize("index", ["1", 1.0, None])
def test_index_of_another_type_raises(index: Any) -> None:
    with pytest.raises(TypeError):
        SharedList("abc")[index]


def test_indices_may_be_integers_of_numpy() -> None:
    shared = SharedList(range(10))
    assert shared[np.int64(3)] == 3 and shared[np.uint8(9)] == 9
    assert shared.__getitems__(np.array([4, 0, -1])) == [4, 0, 9]


def test_slice_is_a_list_of_the_same_memory() -> None:
    shared = SharedList(range(100))
    before = list_mappings()

    part = shared[10:90:2]

    assert isinstance(part, SharedList)
    assert list(part) == list(range(10, 90, 2))
    assert list(part[::-1][:3]) == [88, 86, 84]
    assert part.nbytes == shared.nbytes
    assert list_mappings() == before
    assert list(shared[200:]) == []


@pytest.mark.guarantee("list-never-changes")
def test_arrays_are_read_only_views() -> None:
    shared = SharedList([{"small": np.arange(3), "large": np.zeros((100, 100), "f4"), "fortran": np.ones((3, 4)).T}])

    item = shared[0]

    for array in item.values():
        assert not array.flags.writeable and not array.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        with pytest.raises(ValueError, match="cannot set WRITEABLE"):
            array.flags.writeable = True
    assert np.shares_memory(item["large"], shared[0]["large"])
    assert item["large"].ctypes.data % 64 == 0


@pytest.mark.guarantee("list-never-changes")
def test_no_process_can_write_to_the_memory() -> None:
    shared = SharedList([np.zeros(1000)])
    fd = shared._open().fd

    with pytest.raises(PermissionError):
        os.truncate(f"/proc/self/fd/{fd}", 0)
    with open(f"/proc/self/fd/{fd}", "r+b", buffering=0) as file, pytest.raises(PermissionError):
        file.write(b"x")


@pytest.mark.guarantee("list-lifetime")
def test_view_keeps_the_memory_after_the_list() -> None:
    before = list_mappings()
    array = SharedList([np.arange(1000)])[0]
    gc.collect()

    assert list_mappings() == before + 1
    assert array.tolist() == list(range(1000))

    del array
    gc.collect()
    assert list_mappings() == before


@pytest.mark.guarantee("list-lifetime")
def test_dropped_list_leaves_nothing() -> None:
    SharedList([1])
    before = list_mappings(), descriptors()

    shared = SharedList(range(10))
    part = shared[2:]
    del shared
    assert list(part) == list(range(2, 10))
    del part
    gc.collect()

    assert (list_mappings(), descriptors()) == before


def test_descriptors_include_those_of_lists() -> None:
    shared = SharedList([1])
    assert shared._open().fd in shmtree.descriptors()


def test_core_dumps_leave_lists_out() -> None:
    shared = SharedList([1])
    with open("/proc/self/smaps") as smaps:
        mappings = smaps.read().split("VmFlags: ")
    pairs = itertools.pairwise(mappings)
    flags = [after.partition("\n")[0] for before, after in pairs if "memfd:shmtree-list" in before]
    assert flags and all("dd" in each.split() for each in flags)
    assert shared[0] == 1


def test_generator_is_read_one_item_at_a_time() -> None:
    alive = 0
    most = 0

    class Token:
        def __init__(self) -> None:
            nonlocal alive, most
            alive += 1
            most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def items() -> Iterator[Any]:
        for number in range(200):
            yield Carrier(number, Token())

    shared = SharedList(items())

    assert [each.number for each in shared] == list(range(200))
    assert most <= 2


class Carrier:
    """Has a part that its pickle leaves out."""

    def __init__(self, number: int, token: Any = None) -> None:
        self.number = number
        self.token = token

    def __reduce__(self) -> Any:
        return Carrier, (self.number,)


@pytest.mark.guarantee("list-lifetime")
def test_exception_of_the_generator_leaves_nothing() -> None:
    SharedList([1])
    before = list_mappings(), descriptors()

    def items() -> Iterator[int]:
        yield 1
        raise KeyError("broken source")

    with pytest.raises(KeyError, match="broken source"):
        SharedList(items())
    gc.collect()
    assert (list_mappings(), descriptors()) == before


def test_build_raises_before_the_machine_is_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter([8 << 20, 4 << 20])
    monkeypatch.setattr(list_memory._core, "available_memory", lambda: next(left))

    with pytest.raises(shmtree.OutOfSharedMemory, match=r"has 4 items so far.*4194304 bytes left; build it in a file"):
        SharedList(np.zeros(1 << 20, np.uint8) for _ in range(100))


def test_pickles_are_refused_without_allow_pickle() -> None:
    with pytest.raises(shmtree.PickleRefused, match=r"^item 1: "):
        SharedList([1, NeedsPickle(2)], allow_pickle=False)
    assert SharedList([NeedsPickle(2)])[0].value == 2


def test_list_of_a_list_copies_its_frames() -> None:
    shared = SharedList([{"x": np.arange(5)}, NeedsPickle(7), "text"])

    again = SharedList(shared[1:])

    assert again[0].value == 7 and again[1] == "text" and len(again) == 2


@pytest.mark.parametrize("allow_pickle", [True, False])
def test_references_to_shared_objects_cannot_be_items(arena: shmtree.Arena, allow_pickle: bool) -> None:
    sender, receiver = arena.create_pair()
    for thing in (sender, receiver, arena, arena.array((3,)), SharedList([1])):
        with pytest.raises(shmtree.NotPortable, match=r'^item 1: \["thing"\]: a \w+ is valid on this machine only'):
            SharedList([0, {"thing": thing}], allow_pickle=allow_pickle)


def test_copies_are_the_list_itself() -> None:
    shared = SharedList([1, 2])
    assert copy.copy(shared) is shared and copy.deepcopy([shared])[0] is shared


def test_pickle_is_a_reference() -> None:
    shared = SharedList([np.zeros(100_000)] * 3)

    text = pickle.dumps(shared[1:])
    loaded = pickle.loads(text)

    assert len(text) < 1000
    assert len(loaded) == 2 and np.shares_memory(loaded[0], shared[1])


def test_repr_has_counts() -> None:
    shared = SharedList(["a"] * 1000)
    assert repr(shared) == f"<SharedList of 1000 items in {shared.nbytes} bytes>"


def test_index_takes_eight_bytes_per_item() -> None:
    few, many = SharedList([7] * 1000), SharedList([7] * 101_000)
    frame = len(shmtree.pack(7))
    assert frame % 8 == 0
    assert (many.nbytes - few.nbytes) / 100_000 == pytest.approx(frame + 8, abs=0.01)


def test_list_of_more_than_one_segment_of_the_index() -> None:
    count = 2 * list_writer._SEGMENT_ITEMS + 1
    shared = SharedList(range(count))
    assert [shared[each] for each in (0, 65535, 65536, 131071, -1)] == [0, 65535, 65536, 131071, count - 1]


def test_slices_and_pickles_of_a_list_subclass_keep_its_class() -> None:
    shared = Labelled([1, 2, 3])
    assert type(shared[1:]) is Labelled
    assert type(pickle.loads(pickle.dumps(shared))) is Labelled


class Labelled(SharedList[int]):
    pass


@pytest.mark.parametrize(
    ("item", "error", "message"),
    [
        (threading.Lock(), TypeError, r'^item 1: cannot pickle .* at \["a"\]\[0\] of the message'),
        (lambda: 0, pickle.PicklingError, r'^item 1: .* at \["a"\]\[0\] of the message'),
    ],
)
def test_error_of_an_item_names_its_number_and_place(item: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        SharedList([0, {"a": [item]}])


def test_exception_of_an_item_keeps_its_type_and_arguments() -> None:
    with pytest.raises(UnicodeDecodeError) as raised:
        SharedList([0, FailsToReduce()])
    assert raised.value.reason == "bad"
    assert sys.version_info < (3, 11) or raised.value.__notes__ == ["item 1 of the SharedList"]


class FailsToReduce:
    def __reduce__(self) -> Any:
        raise UnicodeDecodeError("utf-8", b"x", 0, 1, "bad")
