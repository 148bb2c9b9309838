"""Both sides cache dict keys across messages. The cache must not change the keys of later messages."""

from __future__ import annotations

import gc
import random
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from exact import assert_same

import shmtree


def both_ways(item: object) -> Any:
    return shmtree.unpack(shmtree.pack(item))


@pytest.mark.parametrize(
    "changed",
    [
        {"reward": 1, "step": 2, "done": 3},
        {"step": 1},
        {"step": 1, "reward": 2, "done": 3, "more": 4},
        {"stop": 1, "reward": 2, "done": 3},
        {"ste": 1, "rewards": 2, "done": 3},
        {"": 1, "reward": 2, "done": 3},
        {"st\0p": 1, "reward": 2, "döne": 3},
        {"é": 1, "\ud800": 2, "日本": 3},
        {"step": {"done": {"reward": 1}}, "reward": {"step": 2}},
        {1: "step", "reward": 2, None: 3},
        {"x" * 300: 1, "x" * 2000: 2, "x" * 5000: 3},
        {f"key{i}": i for i in range(1000)},
    ],
)
def test_messages_with_alternating_keys_round_trip(changed: dict[object, object]) -> None:
    usual = {"step": 1, "reward": 2, "done": 3}
    for item in [usual, usual, usual, changed, usual, changed, changed, changed, usual]:
        got = both_ways(item)
        assert_same(got, item)
        assert list(got) == list(item)


def test_new_keys_in_every_message_round_trip() -> None:
    # Each str is freed with its message, and the next one often gets the same address.
    generator = random.Random(5)
    for _ in range(3000):
        item = {"".join(generator.choices("abc", k=3)): number for number in range(generator.randrange(8))}
        assert both_ways(item) == item


class Forgetful:
    """Frees keys that were sent already, and creates others in their place."""

    def __init__(self, sent: dict[str, int]) -> None:
        self.sent = sent


def flatten_forgetful(forgetful: Forgetful) -> dict[str, int]:
    count = len(forgetful.sent)
    forgetful.sent.clear()
    return {"".join(["later", str(i)]): i for i in range(count)}


def test_keys_freed_during_encoding_are_not_confused() -> None:
    shmtree.register(Forgetful, flatten_forgetful, Forgetful)
    for _ in range(20):
        sent = {"".join(["early", str(i)]): i for i in range(100)}
        first, second = both_ways([sent, Forgetful(sent)])
        assert first == {f"early{i}": i for i in range(100)}
        assert second.sent == {f"later{i}": i for i in range(100)}


def test_equal_keys_are_stored_once_in_a_frame() -> None:
    def fresh() -> Iterator[dict[str, int]]:
        return ({"".join(["obser", "vation"]): i} for i in range(3))

    sizes = {shmtree.pack(list(fresh())).nbytes for _ in range(5)}
    assert len(sizes) == 1  # the frame contains the name once


def test_cache_does_not_confuse_classes_and_keys() -> None:
    for item in [{"a": 1}, [{"a": 1}], [int, {"a": 1}], {"a": int}, [dict, int, {"int": 1}], {"a": 1}]:
        assert_same(both_ways(item), item)


def test_repeated_keys_are_interned() -> None:
    keys = ["".join(["some", "where"]), "".join(["else", "where"])]
    seen = [list(both_ways(dict.fromkeys(keys, 0))) for _ in range(4)]
    assert seen[2][0] is seen[3][0] is sys.intern("somewhere")
    assert seen[2][1] is seen[3][1] is sys.intern("elsewhere")


def test_messages_with_equal_keys_share_and_retain_nothing() -> None:
    for _ in range(3):
        got = both_ways([{"key": {"inner": [1.5]}, "array": np.arange(3)} for _ in range(10)])
        first, second = got[0], got[1]
        assert first is not second and first["key"] is not second["key"]
        first["key"]["inner"].append(2)
        assert second["key"] == {"inner": [1.5]}
    arrays = [weakref.ref(each["array"]) for each in got]
    del got, first, second
    gc.collect()
    assert [array() for array in arrays] == [None] * 10


def test_key_cache_is_bounded() -> None:
    def blocks() -> int:
        gc.collect()
        return sys.getallocatedblocks()

    def send(round_number: int) -> None:
        for number in range(20):
            both_ways({f"{round_number}/{number}/{i}": i for i in range(600)})

    send(0)
    before = blocks()
    for round_number in range(1, 6):
        send(round_number)
    assert blocks() - before < 5 * 20 * 600 / 10
