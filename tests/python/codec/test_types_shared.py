"""Objects that occur twice in one message, and cycles: they arrive as one object, without pickle."""

from __future__ import annotations

import array
import collections
import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest
from exact import assert_same
from test_pack import described
from test_types_classes import Step, through, through_pickle

import shmtree


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass(eq=False)
class Node:
    tag: int
    link: Any = None


class Registered:
    def __init__(self, value: Any) -> None:
        self.value = value


shmtree.register(Registered, lambda it: it.value, Registered)

SHARED: dict[str, Any] = {
    "list": [1],
    "empty list": [],
    "int list": [1, 2, 3, 4, 5],
    "float list": [0.5] * 9,
    "tuple": ([], 1),
    "tuple of scalars": (84, 84),
    "str dict": {"a": 1},
    "dict": {1: 2, "b": None},
    "set": {1, 2},
    "frozenset": frozenset({1, 2}),
    "deque": collections.deque([1, [2]], 5),
    "OrderedDict": collections.OrderedDict(b=1, a=2),
    "defaultdict": collections.defaultdict(list, a=[1]),
    "Counter": collections.Counter("abca"),
    "namedtuple": Pair(1, [2]),
    "dataclass": Step(1, 0.5),
    "registered": Registered([1]),
    "slice": slice([1], 2, None),
    "bytearray": bytearray(b"abc"),
    "long bytearray": bytearray(10_000),
    "array": np.arange(5),
    "large array": np.arange(10_000.0),
    "records": np.zeros(3, [("a", "i4"), ("b", "S3")]),
    "masked array": np.ma.array([1, 2, 3], mask=[0, 1, 0]),
    "memoryview": memoryview(b"abc"),
    "Python array": array.array("d", [1.0]),
}


@pytest.mark.guarantee("shared-references")
@pytest.mark.parametrize("name", SHARED)
def test_object_sent_twice_in_a_message_arrives_as_one(name: str) -> None:
    value = SHARED[name]
    got = through({"first": value, "deep": [value, {"k": (value,)}], 7: Step(value)})
    first = got["first"]
    assert type(first) is type(value)
    assert got["deep"][0] is first and got["deep"][1]["k"][0] is first and got[7].obs is first
    if name != "registered":
        assert_same(first, value)


@pytest.mark.guarantee("shared-references")
@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("make", [shmtree.create_pair, lambda: [shmtree.Queue()] * 2], ids=["pair", "queue"])
def test_sharing_survives_a_channel(make: Any, name: str) -> None:
    sender, receiver = make()
    sender.put([SHARED[name]] * 3)
    got = receiver.get(timeout=60)
    assert got[0] is got[1] is got[2] and type(got[0]) is type(SHARED[name])


def test_sharing_survives_a_file(tmp_path: Any) -> None:
    shared = {"a": [1]}
    shmtree.dump([shared, shared], tmp_path / "file", allow_pickle=False)
    got = shmtree.load(tmp_path / "file")
    assert got[0] is got[1] and got[0] == shared


def test_equal_objects_stay_separate() -> None:
    got = through([[1], [1], {"a": 1}, {"a": 1}, np.zeros(3), np.zeros(3)])
    assert len({id(item) for item in got}) == 6


def test_empty_tuples_need_no_reference() -> None:
    assert "reference" not in described([(), (), ((), ())])


def test_message_with_many_references_is_small() -> None:
    config = {f"key {i}": [i, float(i)] for i in range(10)}
    once, often = (shmtree.pack([config] * n, allow_pickle=False).nbytes for n in (1, 51))
    assert often - once <= 200


def test_references_reach_far_back() -> None:
    shared: list = []
    got = through([None] * 300 + [shared] + [None] * 70_000 + [shared, shared])
    assert got[300] is got[-1] is got[-2]


def fill_list(it: list, item: Any) -> None:
    it.append(item)


def fill_dict(it: dict, item: Any) -> None:
    it["k"] = item


def fill_node(it: Node, item: Any) -> None:
    it.link = item


CYCLES: dict[str, tuple[Any, Any, Any]] = {
    "list": (list, fill_list, lambda it: it[0]),
    "dict": (dict, fill_dict, lambda it: it["k"]),
    "dict with other keys": (lambda: {1: 2}, fill_dict, lambda it: it["k"]),
    "OrderedDict": (collections.OrderedDict, fill_dict, lambda it: it["k"]),
    "defaultdict": (lambda: collections.defaultdict(int), fill_dict, lambda it: it["k"]),
    "Counter": (collections.Counter, fill_dict, lambda it: it["k"]),
    "deque": (collections.deque, fill_list, lambda it: it[0]),
    "dataclass": (lambda: Node(1), fill_node, lambda it: it.link),
}


@pytest.mark.guarantee("shared-references")
@pytest.mark.parametrize("name", CYCLES)
def test_cycle_keeps_its_identity(name: str) -> None:
    make, fill, item_of = CYCLES[name]
    direct = make()
    fill(direct, direct)
    got = through(direct)
    assert type(got) is type(direct) and item_of(got) is got
    for between, back in (
        (lambda it: [it], lambda it: it[0]),
        (lambda it: (1, (it,)), lambda it: it[1][0]),
        (lambda it: {"a": it}, lambda it: it["a"]),
        (lambda it: Pair(it, 1), lambda it: it.a),
        (lambda it: slice(it), lambda it: it.stop),
    ):
        outer = make()
        fill(outer, between(outer))
        got = through([outer, outer])
        assert got[0] is got[1] is back(item_of(got[0]))


def test_set_may_contain_itself_through_an_object() -> None:
    members: set = set()
    members.add(Node(1, members))
    got = through(members)
    assert next(iter(got)).link is got


def in_a_tuple() -> Any:
    inner: list = []
    knot = (inner,)
    inner.append(knot)
    return knot, lambda it: it[0][0]


def in_a_namedtuple() -> Any:
    inner: list = []
    knot = Pair(inner, 1)
    inner.append(knot)
    return knot, lambda it: it.a[0]


def in_a_registered_object() -> Any:
    inner: list = []
    knot = Registered(inner)
    inner.append(knot)
    return knot, lambda it: it.value[0]


@pytest.mark.parametrize("make", [in_a_tuple, in_a_namedtuple, in_a_registered_object])
def test_immutable_object_in_itself_is_pickled(make: Any) -> None:
    knot, back = make()
    got = through_pickle(knot)
    assert type(got) is type(knot) and back(got) is got
    got = through_pickle([knot])[0]
    assert back(got) is got
    with pytest.raises(shmtree.PickleRefused, match="contains itself"):
        shmtree.pack(knot, allow_pickle=False)


def test_registered_object_in_a_cycle_goes_through_pickle() -> None:
    outer: list = ["before"]
    outer += [Registered({"outer": outer}), "after"]
    got = through_pickle(outer)
    assert got[1].value["outer"] is got and got[2] == "after"
    with pytest.raises(shmtree.PickleRefused, match="contains itself"):
        shmtree.pack(outer, allow_pickle=False)
    beside: list = [1]
    got = through([beside, Registered({"beside": beside, "loop": SHARED["list"]}), Registered(beside)])
    assert got[1].value["beside"] is got[0] is got[2].value


def test_cycle_may_be_longer_than_the_depth_limit() -> None:
    def ring(length: int) -> Node:
        nodes = [Node(i) for i in range(length)]
        for i, node in enumerate(nodes):
            node.link = (nodes[i - 1], nodes[(i + 1) % length])
        return nodes[0]

    def length_of(node: Node) -> int:
        at, length = node.link[1], 1
        while at is not node:
            assert at.link[0].link[1] is at
            at, length = at.link[1], length + 1
        return length

    assert length_of(through(ring(400))) == 400
    straight: Any = None
    for _ in range(1001):
        straight = [straight]
    with pytest.raises(ValueError, match="deeper"):
        shmtree.pack([straight])


@dataclasses.dataclass(eq=False)
class Meddling:
    """Changes its container while that is being read."""

    target: Any
    how: str

    def __hash__(self) -> int:
        if self.how == "clear":
            self.target.clear()
        elif self.how == "grow":
            self.target.extend(range(1000))
        elif self.how == "fail":
            raise RuntimeError("no hash")
        return 1


@pytest.mark.guarantee("bad-references")
@pytest.mark.parametrize("how", ["clear", "grow", "fail"])
@pytest.mark.parametrize("make", [list, collections.deque])
def test_code_that_runs_while_its_container_is_unpacked_is_safe(make: Any, how: str) -> None:
    target = make()
    meddling = Meddling(target, "")
    target.extend(["before", {meddling: 1}, "after", target])
    meddling.how = how
    frame = bytes(shmtree.pack(target, allow_pickle=False))
    try:
        got = shmtree.unpack(frame)
    except shmtree.CorruptMessage as error:
        assert how == "fail" and "no hash" in str(error.__cause__ or error.__context__)
    else:
        assert type(got) is make and got[-1] is got


def test_describe_shows_the_path_of_a_reference() -> None:
    shared = {"lr": 0.5}
    loop: list = []
    loop.append(loop)
    text = described({"samples": [{"config": shared}, {"config": shared}], "loop": loop})
    assert 'reference to message["samples"][0]["config"]' in text
    assert 'reference to message["loop"]' in text
    assert "reference to message\n" in described(loop)


# --- hostile frames --------------------------------------------------------------------------------------------------


def every_change_of(frame: bytes) -> collections.Counter:
    """Sets each metadata byte to each value in turn. Returns how often each outcome occurred."""
    outcomes: collections.Counter = collections.Counter()
    changed = bytearray(frame)
    for at in range(16 + 72, 16 + int.from_bytes(frame[4:8], "little")):
        for value in range(256):
            changed[at] = value
            try:
                shmtree.unpack(bytes(changed), allow_pickle=False)
                outcomes["read"] += 1
                described(bytes(changed))
            except (shmtree.CorruptMessage, shmtree.PickleRefused) as error:
                outcomes[str(error)] += 1
        changed[at] = frame[at]
    return outcomes


@pytest.mark.guarantee("bad-references")
def test_every_changed_reference_is_refused_or_read() -> None:
    items: list = [0.5]
    pair = (items, 1)
    plain = (1, 2)
    loop: dict = {"p": pair, "i": items}
    loop["self"] = [loop, pair, {plain: frozenset({plain, Pair(1, 2)})}, items, {plain, 3}, Node(1, pair), plain]
    outcomes = every_change_of(bytes(shmtree.pack(loop, allow_pickle=False)))
    for reason in ("a reference does not point to an earlier", "a node that is not built yet", "cannot be hashed"):
        assert any(reason in outcome for outcome in outcomes), reason
    assert outcomes["read"] > 100


@pytest.mark.guarantee("bad-references")
def test_exponentially_shared_lists_stay_small() -> None:
    value: Any = [1]
    for _ in range(900):
        value = [value, value]
    frame = shmtree.pack(value, allow_pickle=False)
    assert frame.nbytes < 10_000
    got = shmtree.unpack(frame)
    assert got[0] is got[1]
    assert described(frame).count("reference") == 900


def set_of_last(value: Any) -> bytes:
    """Returns the frame of `value`, with its last item changed from a list of a reference to a set of it."""
    frame = bytes(shmtree.pack(value, allow_pickle=False))
    at = frame.index(b"\x14\x11", 96)  # search the kinds, which come first
    return frame[:at] + b"\x18" + frame[at + 1 :]


@pytest.mark.guarantee("bad-references")
def test_hash_of_an_exponentially_shared_key_is_refused() -> None:
    value: Any = ()
    for _ in range(40):
        value = (value, value)
    assert shmtree.unpack(shmtree.pack([value])) is not None
    with pytest.raises(shmtree.CorruptMessage, match="traversed is too large"):
        shmtree.unpack(set_of_last([value, [value]]))


@pytest.mark.guarantee("bad-references")
def test_hash_of_a_deeply_nested_key_is_refused() -> None:
    chain: list[Any] = [()]
    for _ in range(5000):
        chain.append((chain[-1],))
    assert len(shmtree.unpack(shmtree.pack(chain))) == 5001
    with pytest.raises(shmtree.CorruptMessage, match="too deep"):
        shmtree.unpack(set_of_last([*chain, [chain[-1]]]))
    assert len(shmtree.unpack(set_of_last([*chain, [chain[900]]]))) == 5002


def test_keys_that_share_large_parts_are_read() -> None:
    shared = tuple(range(50))
    value = {(shared, number): {shared, number} for number in range(1000)}
    assert_same(shmtree.unpack(shmtree.pack(value, allow_pickle=False)), value)


def test_chain_of_defaultdicts_is_limited_in_depth() -> None:
    chain: list[Any] = [collections.defaultdict(list)]
    for _ in range(2000):
        chain.append(collections.defaultdict(list, {0: chain[-1]}))
    with pytest.raises(shmtree.CorruptMessage, match="too many levels"):
        shmtree.unpack(shmtree.pack(chain, allow_pickle=False))
    assert len(shmtree.unpack(shmtree.pack(chain[:900], allow_pickle=False))) == 900
