"""A refused pickle raises an error with the object that needs it, its path, and the call that refuses it."""

from __future__ import annotations

import collections
import dataclasses
import enum
import subprocess
import sys
import types
from typing import Any, NamedTuple

import numpy as np
import pytest

import shmtree


@dataclasses.dataclass
class Config:
    name: str
    fn: Any


class Pair(NamedTuple):
    first: Any
    second: Any


class Boxed:
    """A class without a native kind."""

    def __repr__(self) -> str:  # has no address, because test names contain it
        return "Boxed()"


class Tagged:
    """A registered class, sent as its content."""

    def __init__(self, held: object) -> None:
        self.held = held

    def __repr__(self) -> str:
        return f"Tagged({self.held!r})"


class Choice(enum.Enum):
    ONE = 1


shmtree.register(Tagged, lambda tagged: tagged.held, Tagged)


def refusal(value: object) -> shmtree.PickleRefused:
    with pytest.raises(shmtree.PickleRefused) as caught:
        shmtree.pack(value, allow_pickle=False)
    return caught.value


@pytest.mark.guarantee("refused-pickle")
@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Boxed(), ""),
        ([1, 2, 3, {"cfg": Config("a", Boxed())}], '[3]["cfg"].fn'),
        ({"obs": (Boxed(), 2)}, '["obs"][0]'),
        ({"a": Pair(1, collections.deque([0, Boxed()]))}, '["a"].second[1]'),
        ({1: 2, (3, "x"): [Boxed()]}, "[<tuple>][0]"),
        ({"it's": {"x" * 100: Boxed()}}, '["it\'s"]["' + "x" * 59 + "...]"),
        (collections.OrderedDict(a=collections.Counter()), None),
        ({Boxed(): 1}, ".keys()[0]"),
        (collections.OrderedDict({1: 2, 2.5: [Boxed()]}), "[2.5][0]"),
        (collections.OrderedDict({1: 2, Boxed(): 3}), ".keys()[1]"),
        ({"c": collections.Counter({"x": Boxed()})}, '["c"]["x"]'),
        ({Choice.ONE: Boxed()}, "[<Choice.ONE: 1>]"),
        ([np.ma.MaskedArray([None])], "[0]"),
        ([{1, 2}, frozenset([Boxed()])], "[1][0]"),
        ({"c": np.array([None])}, '["c"]'),
        ([0, slice(0, Boxed())], "[1].stop"),
        ({"tag": Tagged([1, Boxed()])}, '["tag"]'),
        ([Choice.ONE, Boxed()], "[1]"),
        ([types.SimpleNamespace(a=1, b={"x": Boxed()})], '[0].b["x"]'),
    ],
    ids=str,
)
def test_pickle_refusal_names_the_path_of_the_object(value: Any, path: str | None) -> None:
    if path is None:
        shmtree.pack(value, allow_pickle=False)
        return
    error = refusal(value)
    assert error.path == path
    assert (f"at {path} of the message" if path else "the message itself") in str(error)


def test_tuple_in_itself_is_refused_with_its_path() -> None:
    loop: tuple[Any, ...] = ([],)
    loop[0].append(loop)
    shared = [1]
    assert refusal(loop).path == ""
    assert refusal({"a": [shared, shared], "b": loop}).path == '["b"]'


def test_refusal_inside_a_registered_class_names_the_object() -> None:
    error = refusal([Tagged({"deep": Boxed()})])
    assert "Boxed" in str(error) and error.path == "[0]"


def test_path_is_shown_if_a_refused_key_was_removed() -> None:
    class Drops:
        pass

    def flatten(value: Drops) -> object:
        held.clear()
        return Boxed()

    shmtree.register(Drops, flatten, lambda flat: Drops())
    held: dict[Any, Any] = {f"key {len(sys.argv)}": Drops()}
    assert refusal([held]).path == "[0]"


class Bad(enum.Enum):
    KEY = 1

    def __repr__(self) -> str:
        raise ValueError


def test_key_without_a_repr_is_shown_by_its_type() -> None:
    assert refusal({Bad.KEY: [Boxed()]}).path == "[<Bad>][0]"
    assert refusal({10**5000: [Boxed()]}).path == "[<int>][0]" or not hasattr(sys, "set_int_max_str_digits")


def test_refusal_raised_by_user_code_is_not_changed() -> None:
    class Refuses:
        def __init__(self) -> None:
            self.error = shmtree.PickleRefused("by its own code")

    def flatten(value: Refuses) -> object:
        raise value.error

    shmtree.register(Refuses, flatten, lambda flat: Refuses())
    value = Refuses()
    assert refusal([value]) is value.error
    with pytest.raises(shmtree.PickleRefused) as caught:
        shmtree.pack([value])
    assert caught.value is value.error
    assert caught.value.path is None


@pytest.mark.guarantee("refused-pickle")
def test_refusal_names_the_call_or_end_that_refuses(arena: shmtree.Arena, name: str, runtime_directory: object) -> None:
    assert "allow_pickle=False of this call" in str(refusal(Boxed()))
    sender, _ = arena.create_pair(allow_pickle=False)
    with pytest.raises(
        shmtree.PickleRefused, match=r"allow_pickle=False of the process that created the channel"
    ) as caught:
        sender.put([Boxed()])
    assert caught.value.path == "[0]"
    with pytest.raises(shmtree.PickleRefused, match="process that created the channel") as caught:
        sender.put_many([1, {"x": Boxed()}])
    assert caught.value.path == '["x"]'
    assert caught.value.sent == 1
    kept = shmtree.create_pair(name=name, allow_pickle=True)
    with pytest.raises(shmtree.PickleRefused, match="allow_pickle=False of this end"):
        shmtree.open_sender(name).put([Boxed()])
    with shmtree.open_sender(name, allow_pickle=True) as opened:
        opened.put([print])
    with pytest.raises(shmtree.PickleRefused, match="allow_pickle=False of this end") as caught:
        shmtree.open_receiver(name).get(timeout=60)
    assert caught.value.path == ""
    kept[0].close()


SENDS_A_CLASS = """
import dataclasses, shmtree, sys, types
elsewhere = types.ModuleType("shmtree_test_elsewhere")
exec("import dataclasses\\n@dataclasses.dataclass\\nclass Point:\\n    x: int\\n", elsewhere.__dict__)
sys.modules["shmtree_test_elsewhere"] = elsewhere
elsewhere.Point.__module__ = "shmtree_test_elsewhere"
frame = shmtree.pack({"n": 1, "obs": [0, {2: elsewhere.Point(1)}]}, allow_pickle=False)
sys.stdout.buffer.write(frame)
"""


@pytest.mark.guarantee("refused-pickle")
def test_receiver_names_the_path_of_a_class_it_does_not_load() -> None:
    frame = subprocess.run([sys.executable, "-c", SENDS_A_CLASS], check=True, capture_output=True).stdout
    with pytest.raises(shmtree.PickleRefused, match="shmtree_test_elsewhere") as caught:
        shmtree.unpack(frame)
    assert caught.value.path == '["obs"][1][2]'
    assert "allow_pickle=False of this call" in str(caught.value)


def test_receiver_reports_that_the_whole_message_is_a_pickle() -> None:
    frame = bytes(shmtree.pack({"f": print}))
    with pytest.raises(shmtree.PickleRefused, match="It is the message itself") as caught:
        shmtree.unpack(frame)
    assert caught.value.path == ""
