"""Objects that still need a pickle: callables, and objects that define their own reduction."""

from __future__ import annotations

import collections
import sys
import threading
from typing import Any

import numpy as np
import pytest
from exact import assert_same
from test_types_classes import Plain, Step, through_pickle

import shmtree


@pytest.mark.parametrize(
    "value", [lambda: 0, threading.Lock(), (i for i in ()), sys._getframe()], ids=lambda v: type(v).__name__
)
def test_unpicklable_object_raises_in_pack(value: object) -> None:
    with pytest.raises((TypeError, AttributeError, Exception)) as caught:
        shmtree.pack({"ok": [1, 2], "bad": value})
    assert not isinstance(caught.value, SystemError)
    assert shmtree.unpack(shmtree.pack([1])) == [1]


def test_exception_inside_reduce_reaches_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        shmtree.pack([Failing()])


class Failing:
    def __reduce__(self) -> Any:
        return 1 // 0


def test_reduce_may_call_pack_itself() -> None:
    got = through_pickle([Nesting([1, 2]), {"again": Nesting("x")}])
    assert got[0].value == [1, 2] and got[1]["again"].value == "x"


class Nesting:
    def __init__(self, value: object) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        return _unnest, (bytes(shmtree.pack({"v": self.value})),)


def _unnest(frame: bytes) -> Nesting:
    return Nesting(shmtree.unpack(frame)["v"])


class Shrinks:
    """Empties its container while that is being sent."""

    def __init__(self, container: Any) -> None:
        self.container = container

    def __reduce__(self) -> Any:
        self.container.clear()
        return list, ()


@pytest.mark.parametrize("make", [list, dict, set, collections.deque, collections.OrderedDict])
def test_container_changed_during_pack_raises_or_is_sent(make: type) -> None:
    for size in (1, 2, 5, 100):
        container = make()
        items = [Shrinks(container)] + [object() for _ in range(0)] + [str(i) for i in range(size)]
        if isinstance(container, dict):
            container.update({str(i): item for i, item in enumerate(items)})
        elif isinstance(container, set):
            container.update(items)
        else:
            container.extend(items)
        try:
            shmtree.pack([container])
        except RuntimeError as error:
            assert "changed" in str(error) or "mutated" in str(error)
    assert shmtree.unpack(shmtree.pack({"still": "works"})) == {"still": "works"}


class Changing:
    """A native object that changes its set while that is being sent."""

    def __init__(self, how: str, container: set) -> None:
        self.how, self.container = how, container


def _change(it: Changing) -> int:
    if it.how == "clear":
        it.container.clear()
    elif it.how == "grow":
        it.container.update(range(1000))
    elif it.how == "remove":
        it.container.discard(5)
    elif it.how == "swap":
        it.container.discard(5)
        it.container.add(6)
    return 0


shmtree.register(Changing, _change, id)


@pytest.mark.parametrize("how", ["clear", "grow", "remove", "swap", "nothing"])
def test_set_changed_during_pack_raises_or_is_a_snapshot(how: str) -> None:
    container: set = {5, *(str(i) for i in range(20))}
    container.add(Changing(how, container))
    try:
        frame = shmtree.pack([container], allow_pickle=False)
    except RuntimeError as error:
        assert "changed" in str(error)
    else:
        assert how in ("swap", "nothing") and len(shmtree.unpack(frame)[0]) == 22


def test_removed_set_items_are_not_sent() -> None:
    value = set(range(50))
    value -= set(range(3, 49))
    got = shmtree.unpack(shmtree.pack([value, frozenset(value)], allow_pickle=False))
    assert got == [{0, 1, 2, 49}, frozenset({0, 1, 2, 49})]


def test_pickled_message_keeps_identity() -> None:
    for shared in ([1], {"k": np.arange(5)}, Step(1), bytearray(b"x")):
        got = through_pickle([shared, {"deep": shared}, Plain(0)])
        assert got[0] is got[1]["deep"] and type(got[0]) is type(shared)


def test_large_arrays_in_a_pickled_message_are_out_of_band() -> None:
    array = np.arange(100_000)
    shared: list = [array]
    frame = shmtree.pack([shared, shared, Plain(0)])
    assert frame.nbytes < array.nbytes + 20_000
    got = shmtree.unpack(frame)
    assert got[0] is got[1]
    assert_same(got[0][0].tolist()[:5], [0, 1, 2, 3, 4])
    assert np.shares_memory(got[0][0], np.frombuffer(frame, np.uint8))
