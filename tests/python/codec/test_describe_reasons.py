"""`describe` reports which part of an object needs a pickle, and `stats` counts the pickled messages."""

from __future__ import annotations

import io
import queue

import numpy as np
import pytest
from test_refusals import Boxed, Config, Tagged

import shmtree


def described(value: object) -> list[str]:
    text = io.StringIO()
    shmtree.describe(value, file=text)
    return text.getvalue().splitlines()


class Holds:
    """A class without a native kind, with large parts."""

    def __init__(self) -> None:
        self.arrays = [np.zeros(1000), np.zeros(500)]


def reasons(value: object) -> list[str]:
    lines = described(value)
    return lines[lines.index("needs a pickle:") + 1 :] if "needs a pickle:" in lines else []


def test_object_without_a_pickle_has_no_reasons() -> None:
    assert described([1, {"a": np.zeros(3)}, Config("x", 1)])[1] == "list of 3"
    assert reasons([1, {"a": np.zeros(3)}, Config("x", 1)]) == []


@pytest.mark.guarantee("why-pickled")
def test_each_part_that_needs_a_pickle_is_listed_with_its_size() -> None:
    shared = [1]
    value = {"f": print, "obs": [0, Config("a", Holds())], "a": shared, "b": (shared, Tagged(Boxed()))}
    lines = reasons(value)
    assert [line.split(",")[0] for line in lines] == [
        '  ["f"]: builtin_function_or_method',
        f'  ["obs"][1].fn: {__name__}.Holds',
        f'  ["b"][1]: {Tagged.__module__}.Tagged',
    ]
    assert "bytes in the pickle, 12000 in 2 buffers next to it" in lines[1]


def test_pickled_object_is_its_own_reason() -> None:
    (line,) = reasons(Holds())
    assert line.startswith(f"  the object itself: {__name__}.Holds, ")


def test_repeated_objects_neither_add_nor_hide_reasons() -> None:
    shared = {"a": [1]}
    cycle: list[object] = [shared]
    cycle.append((cycle, shared))
    (line,) = reasons([*[shared] * 200, cycle, cycle, print])
    assert line.startswith("  [202]: builtin_function_or_method, ")


def test_tuple_in_itself_is_a_reason() -> None:
    inner: list[object] = []
    pair = ("x", inner)
    inner.append(pair)
    value = {"a": pair}
    assert reasons(value) == ['  ["a"][1][0]: the tuple at ["a"], which contains itself']
    with pytest.raises(shmtree.PickleRefused) as refused:
        shmtree.pack({"b": [[]] * 2, **value}, allow_pickle=False)
    assert refused.value.path == '["a"]'


def test_parts_of_a_registered_object_are_no_reasons_elsewhere() -> None:
    pair = (1, [Boxed()])
    lines = reasons([Tagged([pair]), (pair, 2), pair])
    assert [line.split(":")[0] for line in lines] == ["  [0]", "  [1][0][1][0]"]


def test_reasons_are_limited_to_100() -> None:
    lines = reasons([Boxed() for _ in range(1000)])
    assert len(lines) == 101 and lines[-1] == "  ..."


@pytest.mark.guarantee("why-pickled")
def test_stats_count_messages_whose_object_needed_a_pickle(arena: shmtree.Arena) -> None:
    sender, receiver = arena.create_pair(capacity=4)
    assert sender.stats()["pickled"] == 0
    sender.put([1, np.zeros(3)])
    sender.put([print])
    sender.put_many([Boxed(), 2])
    assert sender.stats()["pickled"] == 2
    assert "pickled" not in receiver.stats()
    with pytest.raises(queue.Full):
        sender.put_nowait(1)
    made = arena.Queue()
    made.put(print)
    assert made.stats()["pickled"] == 1


def test_described_ends_are_not_in_transit_and_no_reason(arena, capsys) -> None:
    sender, receiver = arena.create_pair()
    for _ in range(3):
        shmtree.describe({"end": sender, "log": [print], "shared": arena.array((4,), "f4")})
    assert '["end"]' not in capsys.readouterr().out.partition("needs a pickle:")[2]
    assert receiver.stats()["senders_in_transit"] == 0
    sender.close()
    assert list(receiver) == []
