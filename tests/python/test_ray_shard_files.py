"""Which node loads which saved shard of a replay buffer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shmtree.ray._shard_files import Found, Loading, assign, folder_of
from shmtree.replay import ReplayBuffer

HOW = Loading(None, None, None, None, None, 1, None)


@pytest.fixture
def saved(tmp_path: Path) -> dict[int, Found]:
    """Three shards of one buffer."""
    for shard, capacity in ((1, 10), (2, 30), (5, 20)):
        with ReplayBuffer(capacity, columns={"value": ((), np.int32)}) as buffer:
            buffer.add({"value": shard})
            buffer.save(folder_of(str(tmp_path), shard))
    (tmp_path / "shard-of-somebody-else").mkdir()
    return HOW.find(str(tmp_path))


def only(saved: dict[int, Found], *shards: int) -> dict[int, Found]:
    return {shard: saved[shard] for shard in shards}


def test_each_shard_goes_to_a_node_that_sees_it_and_later_ones_are_as_the_largest(saved: dict[int, Found]) -> None:
    loads = assign("path", {"a": only(saved, 5), "b": only(saved, 1), "c": only(saved, 2), "d": {}}, HOW)
    assert loads.nodes == {5: "a", 1: "b", 2: "c"}
    assert loads.plan.room.capacity == 30


def test_nodes_that_see_more_leave_to_others_what_only_these_see(saved: dict[int, Found]) -> None:
    loads = assign("path", {"all": saved, "first": only(saved, 1), "two": only(saved, 1, 2)}, HOW)
    assert loads.nodes == {1: "first", 2: "two", 5: "all"}


def test_shards_that_too_few_nodes_see_are_told(saved: dict[int, Found]) -> None:
    with pytest.raises(ValueError, match="3 shards were saved in 'path', .* number 5: of 3 nodes 1 can read it"):
        assign("path", {"a": saved, "b": only(saved, 1), "c": only(saved, 1)} | {"a": only(saved, 2, 5)}, HOW)
    with pytest.raises(FileNotFoundError, match="none of 2 nodes has shards"):
        assign("path", {"a": {}, "b": {}}, HOW)
