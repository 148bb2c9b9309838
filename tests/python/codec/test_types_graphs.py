"""Random object graphs, with sharing and cycles, arrive unchanged."""

from __future__ import annotations

import collections
import random
from typing import Any

import numpy as np
import pytest
from exact import assert_same
from test_types_classes import through, through_pickle
from test_types_shared import Node, Pair, Registered

import shmtree


class Graph:
    """A random graph of objects."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.objects: list[Any] = []
        for tag in range(self.random.randrange(2, 14)):
            self.objects.append(self.new(tag))
        for item in self.objects:
            for _ in range(self.random.randrange(4)):
                self.fill(item)

    def any(self) -> Any:
        return self.random.choice([1, "text", None, *self.objects])

    def new(self, tag: int) -> Any:
        makers = [list, dict, set, collections.deque, collections.OrderedDict]
        makers += [lambda: collections.defaultdict(list), lambda: Node(tag), lambda: {tag: 1}, lambda: np.arange(tag)]
        makers += [lambda: (self.any(), self.any()), lambda: Pair(tag, self.any()), lambda: bytearray([tag])]
        makers += [lambda: Registered(self.any()), lambda: frozenset({tag, *self.nodes()})]
        return self.random.choice(makers)()

    def nodes(self) -> list[Node]:
        nodes = [item for item in self.objects if isinstance(item, Node)]
        return self.random.sample(nodes, min(2, len(nodes)))

    def fill(self, item: Any) -> None:
        if isinstance(item, (list, collections.deque)):
            item.append(self.any())
        elif isinstance(item, dict):
            item[self.random.choice(["a", "b", 7, *self.nodes()])] = self.any()
        elif isinstance(item, set):
            item.update(self.nodes(), [7])
        elif isinstance(item, Node):
            item.link = self.any()


def assert_same_graph(a: Any, b: Any) -> None:
    """Asserts that two graphs are equal except for the addresses of their objects."""
    to: dict[int, Any] = {}
    back: dict[int, Any] = {}
    left = [(a, b)]

    def by_tag(items: Any) -> list:
        return sorted(items, key=lambda item: (type(item).__name__, item.tag if isinstance(item, Node) else str(item)))

    while left:
        a, b = left.pop()
        assert type(a) is type(b)
        if a is None or isinstance(a, (int, str)):
            assert a == b
            continue
        if isinstance(a, frozenset) and not a:
            continue
        if id(a) in to or id(b) in back:
            assert to.get(id(a)) is b and back.get(id(b)) is a
            continue
        to[id(a)], back[id(b)] = b, a
        if isinstance(a, (np.ndarray, bytearray)):
            assert_same(a, b)
        elif isinstance(a, dict):
            assert len(a) == len(b)
            left += [*zip(a.keys(), b.keys()), *zip(a.values(), b.values())]
        elif isinstance(a, (Node, Registered)):
            assert vars(a).keys() == vars(b).keys()
            left += zip(vars(a).values(), vars(b).values())
        else:
            assert len(a) == len(b)
            left += zip(by_tag(a), by_tag(b)) if isinstance(a, (set, frozenset)) else zip(a, b)


@pytest.mark.guarantee("shared-references")
def test_random_graphs_round_trip() -> None:
    outcomes: collections.Counter = collections.Counter()
    for seed in range(3000):
        value = Graph(seed).objects
        try:
            got = through(value)
            outcomes["native"] += 1
        except shmtree.PickleRefused:
            got = through_pickle(value)
            outcomes["pickled"] += 1
        try:
            assert_same_graph(value, got)
        except AssertionError:
            raise AssertionError(f"with seed {seed}") from None
    assert outcomes["native"] > 2000 and outcomes["pickled"] > 20
