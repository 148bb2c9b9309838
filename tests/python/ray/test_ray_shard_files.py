"""Assignment of saved shards of a replay buffer to the nodes that load them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shmtree.ray._shard_files import Found, Loading, Saving, assign, folder_of
from shmtree.replay import ReplayBuffer

HOW = Loading(None, None, None, None)


@pytest.fixture
def saved(tmp_path: Path) -> dict[int, Found]:
    """Saves three shards of one buffer."""
    for shard, capacity in ((1, 10), (2, 30), (5, 20)):
        with ReplayBuffer(capacity, columns={"value": ((), np.int32)}) as buffer:
            buffer.add({"value": shard})
            buffer.save(folder_of(str(tmp_path), shard))
            Saving(7, 100, [1, 2, 5]).write(str(tmp_path), shard)
    (tmp_path / "shard-of-another-buffer").mkdir()
    return HOW.find(str(tmp_path))


def only(saved: dict[int, Found], *shards: int) -> dict[int, Found]:
    return {shard: saved[shard] for shard in shards}


def test_each_shard_is_assigned_to_a_node_that_can_read_it(saved: dict[int, Found]) -> None:
    loads = assign("path", {"a": only(saved, 5), "b": only(saved, 1), "c": only(saved, 2), "d": {}}, HOW, False)
    assert loads.nodes == {5: "a", 1: "b", 2: "c"}
    assert loads.buffer == 7
    assert loads.plan.size.capacity == 30


def test_assignment_prefers_the_node_with_fewer_choices(saved: dict[int, Found]) -> None:
    loads = assign("path", {"all": saved, "first": only(saved, 1), "two": only(saved, 1, 2)}, HOW, False)
    assert loads.nodes == {1: "first", 2: "two", 5: "all"}


def test_shards_that_too_few_nodes_can_read_raise(saved: dict[int, Found]) -> None:
    with pytest.raises(ValueError, match="no node is left for shard 5 of 3 in 'path': 1 of 3 nodes can read it"):
        assign("path", {"a": saved, "b": only(saved, 1), "c": only(saved, 1)} | {"a": only(saved, 2, 5)}, HOW, False)
    with pytest.raises(FileNotFoundError, match="no node of 2 has shards"):
        assign("path", {"a": {}, "b": {}}, HOW, False)


def test_unreadable_shard_of_the_last_save_raises_unless_allowed(saved: dict[int, Found]) -> None:
    seen = {"a": only(saved, 1), "b": only(saved, 5)}
    with pytest.raises(
        ValueError, match="no node of 2 has shard-2, one of the 3 shards that were saved last in 'path'"
    ):
        assign("path", seen, HOW, False)
    assert assign("path", seen, HOW, True).nodes == {1: "a", 5: "b"}
    again = {shard: each._replace(saving=Saving(7, 200, [1, 5])) for shard, each in only(saved, 1, 5).items()}
    nodes = {"a": only(saved, 2), "b": only(again, 1), "c": only(again, 5)}
    assert assign("path", nodes, HOW, False).nodes == {2: "a", 1: "b", 5: "c"}  # the assignment of an earlier save
    assert assign("path", {node: only(shards, 1, 5) for node, shards in {"b": again, "c": again}.items()}, HOW, False)


def test_shards_of_different_buffers_raise(saved: dict[int, Found]) -> None:
    saved[2] = saved[2]._replace(saving=Saving(8, 100, [2]))
    with pytest.raises(ValueError, match="shard-1 and .*shard-2 belong to different buffers"):
        assign("path", {"a": saved, "b": saved, "c": saved}, HOW, False)


def test_find_names_both_versions_of_a_note(saved: dict[int, Found], tmp_path: Path) -> None:
    (tmp_path / "shard-5.json").write_text('{"version": 2, "others": []}')
    with pytest.raises(ValueError, match=r"shard-5\.json has version 2; this library reads version 1"):
        HOW.find(str(tmp_path))


def test_damaged_note_raises(saved: dict[int, Found], tmp_path: Path) -> None:
    (tmp_path / "shard-5.json").write_text('{"buffer": 7')
    with pytest.raises(ValueError, match=r"shard-5\.json is damaged"):
        HOW.find(str(tmp_path))
    (tmp_path / "shard-5.json").unlink()
    assert HOW.find(str(tmp_path))[5].saving is None  # a first save that was interrupted
