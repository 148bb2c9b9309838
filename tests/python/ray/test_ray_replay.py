"""Replay buffers with a shard on each of two nodes of Ray, and kills of the processes that serve them."""

from __future__ import annotations

import itertools
import os
import queue
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from ray_cluster import LONG_S, cluster_of_two, kill, on, ray
from replay_options import grouped

import shmtree
import shmtree.ray
from shmtree.ray import _actors
from shmtree.replay import Episodes, Fifo, Limits, Prioritized, RateLimit, Sampling, Uniform

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]

ROW = {"value": 0, "done": False}


class Writer:
    """An actor that adds rows on its node."""

    buffer: Any = None

    def pid(self) -> int:
        return os.getpid()

    def add(self, buffer: Any, values: list[int], priorities: list[float] | None = None, every: int = 0) -> list[int]:
        self.buffer = buffer or self.buffer
        given: Any = priorities or [None] * len(values)
        rows = [{"value": value, "done": every > 0 and value % every == every - 1} for value in values]
        return [self.buffer.add(row, priority=priority) for row, priority in zip(rows, given, strict=True)]

    def forget(self) -> None:
        self.buffer.close()
        del self.buffer


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Any, str, str]]:
    with cluster_of_two(__name__) as made:
        yield made


@pytest.fixture
def far(cluster: Any) -> Iterator[Any]:
    """Starts a writer on the other node."""
    made = on(cluster[2], Writer)
    yield made
    ray.kill(made)


@pytest.fixture
def make(cluster: Any) -> Iterator[Callable[..., Any]]:
    """Returns a function that creates buffers. They are shut down after the test."""
    made: list[Any] = []

    def new(**options: Any) -> Any:
        made.append(shmtree.ray.ReplayBuffer(1000, **grouped(**{"example": ROW, "chunk": 1, "seed": 7, **options})))
        return made[-1]

    yield new
    for each in made:
        if not each.closed:
            each.shutdown()


def add_both(buffer: Any, far: Any, here: list[int], there: list[int], *more: Any) -> list[int]:
    """Adds rows on both nodes. Returns the indices of those on the other node."""
    buffer.extend({"value": np.array(here, np.int64), "done": np.zeros(len(here), bool)})
    found: list[int] = ray.get(far.add.remote(buffer, there, *more), timeout=LONG_S)
    return found


def fits(values: Any, likely: dict[int, float]) -> bool:
    """Returns True if the values have the expected frequencies, by Pearson's chi-square test.

    It uses Wilson and Hilferty's approximation, with a limit of 6 standard deviations: it rejects correct samples once
    in 10**9.
    """
    times, total, draws = Counter(np.asarray(values).tolist()), sum(likely.values()), len(values)
    assert times.keys() <= likely.keys()
    expected = {value: draws * weight / total for value, weight in likely.items()}
    statistic = sum((times[value] - each) ** 2 / each for value, each in expected.items())
    freedom = len(likely) - 1
    spread = 2 / (9 * freedom)
    return bool(((statistic / freedom) ** (1 / 3) - (1 - spread)) / np.sqrt(spread) < 6)


@pytest.mark.guarantee("ray-shard-weights")
def test_rows_of_all_shards_are_sampled_uniformly(make: Any, far: Any) -> None:
    buffer = make(sampler=Uniform())
    add_both(buffer, far, list(range(10)), list(range(10, 40)))
    assert len(buffer) == 40
    batches = [buffer.sample(400) for _ in range(10)]
    assert fits(np.concatenate([batch.data["value"] for batch in batches]), dict.fromkeys(range(40), 1.0))
    assert np.allclose(batches[0].probability, 1 / 40) and (batches[0].weight == 1).all()
    assert len(set(batches[0].index.tolist())) == 40  # the indices of the two nodes are distinct
    distinct = buffer.sample(40, replace=False)
    assert sorted(distinct.data["value"].tolist()) == list(range(40))
    with pytest.raises(ValueError, match="n is 41, but only 40 rows"):
        buffer.sample(41, replace=False)


@pytest.mark.guarantee("ray-shard-weights")
def test_rows_are_sampled_by_priority_across_shards(make: Any, far: Any) -> None:
    buffer = make(sampler=Prioritized(alpha=1, beta=0.5, eps=0))
    there = add_both(buffer, far, [0, 1], [2, 3, 4], [2.0, 3.0, 4.0])
    here = buffer.sample(200)
    index = {int(value): int(i) for value, i in zip(here.data["value"], here.index, strict=True)}
    assert there == [index[2], index[3], index[4]]
    likely = {0: 6.0, 1: 0.5, 2: 2.0, 3: 8.0, 4: 4.0}
    changed = [0, 1, 3]
    mask = buffer.update_priorities(np.array([index[each] for each in changed]), [likely[each] for each in changed])
    assert mask.tolist() == [True, True, True]
    batches = [buffer.sample(500) for _ in range(10)]
    assert fits(np.concatenate([batch.data["value"] for batch in batches]), likely)
    batch = buffer.sample(200, weights="buffer")
    of_each = np.array([likely[value] for value in batch.data["value"].tolist()])
    assert np.allclose(batch.priority, of_each) and np.allclose(batch.probability, of_each / 20.5)
    assert np.allclose(batch.weight, (0.5 / of_each) ** 0.5, rtol=1e-5)


def test_update_priorities_masks_removed_rows_and_rejects_errors(make: Any, far: Any) -> None:
    buffer = make(sampler=Prioritized())
    (there,) = add_both(buffer, far, [0], [1])
    (old,) = ray.get(far.add.remote(buffer, [2]), timeout=LONG_S)
    buffer.clear()
    assert len(buffer) == 0
    ray.get(far.add.remote(buffer, [3]), timeout=LONG_S)
    new = int(buffer.sample(1, timeout=LONG_S).index[0])
    assert buffer.update_priorities([there, new, old], [1, 2, 3]).tolist() == [False, True, False]
    with pytest.raises(ValueError, match=r"priority has -1\.0"):
        buffer.update_priorities([new], [-1])
    with pytest.raises(ValueError, match="index has 5, which no batch or add"):
        buffer.update_priorities([5], [1])


@pytest.mark.guarantee("ray-shard-weights")
def test_each_sequence_comes_from_one_shard(make: Any, far: Any) -> None:
    buffer = make()
    ray.get(far.add.remote(buffer, list(range(40)), None, 8), timeout=LONG_S)
    for value in range(100, 120):
        buffer.add({"value": value, "done": value % 4 == 3})
    drawn = buffer.sample_sequences(300, 3, timeout=LONG_S)
    values, mask = drawn.data["value"], drawn.mask
    assert values.shape == mask.shape == drawn.index.shape == drawn.weight.shape == (300, 3)
    assert fits(values[:, 0], dict.fromkeys([*range(40), *range(100, 120)], 1.0))
    for row, there in zip(values, mask, strict=True):
        assert (np.diff(row[there]) == 1).all() and (row[~there] == 0).all()
        assert there.sum() == min(3, (8 - row[0] % 8) if row[0] < 100 else 4 - row[0] % 4)
    whole = buffer.sample_sequences(100, 6, partial="refuse")  # the episodes of this node are shorter
    assert whole.mask.all() and (whole.data["value"] < 40).all()


def test_sample_waits_for_the_first_row_up_to_its_timeout(make: Any, far: Any) -> None:
    buffer = make()
    with pytest.raises(queue.Empty):
        buffer.sample(1, timeout=0.1)
    added = far.add.remote(buffer, [5])
    assert buffer.sample(3, timeout=LONG_S).data["value"].tolist() == [5, 5, 5]
    ray.get(added, timeout=LONG_S)


def test_prefetched_batches_are_uniform_and_raise_sample_errors(make: Any, far: Any) -> None:
    buffer = make()
    add_both(buffer, far, [1], [2])
    batches = buffer.batches(64, prefetch=2)
    values = np.concatenate([batch.data["value"] for batch in itertools.islice(batches, 20)])
    assert fits(values, {1: 1.0, 2: 1.0})
    batches.close()
    with pytest.raises(ValueError, match="n is 3, but only 2 rows"):
        next(buffer.batches(3, prefetch=1, replace=False))


def test_stats_count_rows_per_shard_and_save_writes_each_shard(
    make: Any, far: Any, cluster: Any, tmp_path: Any
) -> None:
    buffer = make()
    add_both(buffer, far, [1, 2], [3])
    stats = buffer.stats()
    assert (stats["rows"], stats["capacity"], stats["lost"]) == (3, 2000, [])
    assert {node: each["rows"] for node, each in stats["shards"].items()} == {cluster[1]: 2, cluster[2]: 1}
    saved = buffer.save(tmp_path)
    assert saved.rows == 3
    loaded = [shmtree.replay.ReplayBuffer.load(folder) for folder in sorted(tmp_path.glob("shard-?"))]
    assert [sorted(set(each.sample(50).data["value"].tolist())) for each in loaded] == [[1, 2], [3]]


def test_load_restores_indices_and_priorities_and_can_save_again(
    make: Any, far: Any, cluster: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    buffer = make(sampler=Prioritized(alpha=1.0))
    there = add_both(buffer, far, [1, 2], [3], [7.0])
    monkeypatch.chdir(tmp_path)
    buffer.save("saved")
    buffer.shutdown()

    loaded = shmtree.ray.ReplayBuffer.load("saved", sampling=Sampling(seed=3), episodes=Episodes(n_step=1), example=ROW)
    assert len(loaded) == 3
    batch = loaded.sample(9000)
    assert fits(batch.data["value"], {1: 1, 2: 1, 3: 7})
    assert set(batch.index[batch.data["value"] == 3].tolist()) == set(there)
    assert loaded.update_priorities(there, [2.0]).tolist() == [True]
    assert fits(loaded.sample(9000, weights="buffer").data["value"], {1: 1, 2: 1, 3: 2})

    assert set(ray.get(far.add.remote(loaded, [4], [5.0]), timeout=LONG_S)).isdisjoint(there)
    loaded.save("saved")
    loaded.shutdown()
    with shmtree.ray.ReplayBuffer.load(tmp_path / "saved", 1) as again:
        # the newest row of each shard; either node may have loaded either shard
        values = again.sample(9000).data["value"]
        assert fits(values, {2: 1, 4: 5} if 2 in values else {3: 2, 4: 5})
        assert again.stats()["capacity"] == 2
        again.shutdown()


def test_load_rejects_mismatched_missing_or_damaged_shards(make: Any, far: Any, tmp_path: Any) -> None:
    with pytest.raises(FileNotFoundError, match="no node of 2 has shards of a replay buffer in"):
        shmtree.ray.ReplayBuffer.load(tmp_path / "nothing")
    buffer = make()
    add_both(buffer, far, [1, 2], [3])
    saved = tmp_path / "saved"
    buffer.save(saved)
    with pytest.raises(ValueError, match="n_step is 3, but the saved buffer has 1"):
        shmtree.ray.ReplayBuffer.load(saved, episodes=Episodes(n_step=3))
    with pytest.raises(ValueError, match=r"sampler 'default' is Fifo"):
        shmtree.ray.ReplayBuffer.load(saved, sampling=Sampling(Fifo()))
    with pytest.raises(ValueError, match="capacity is 0"):
        shmtree.ray.ReplayBuffer.load(saved, 0)

    shutil.copytree(saved / "shard-1", saved / "shard-9")
    with pytest.raises(
        ValueError, match="no node is left for shard 9 of 3 in .*: 2 of 2 nodes can read it, and each node loads one"
    ):
        shmtree.ray.ReplayBuffer.load(saved)
    shutil.rmtree(saved / "shard-9")
    largest = max((saved / "shard-2").iterdir(), key=lambda path: path.stat().st_size)
    largest.write_bytes(b"x" * largest.stat().st_size)
    with pytest.raises(ValueError, match=str(largest)):
        shmtree.ray.ReplayBuffer.load(saved)
    with shmtree.replay.ReplayBuffer(10, columns={"other": ((), np.int32)}) as other:
        other.add({"other": 1})
        shutil.rmtree(saved / "shard-2")
        other.save(saved / "shard-2")
    with pytest.raises(ValueError, match="shard-1 and .*shard-2 belong to different buffers"):
        shmtree.ray.ReplayBuffer.load(saved)


def test_new_rows_get_the_largest_priority_of_any_shard(make: Any, far: Any) -> None:
    buffer = make(sampler=Prioritized(alpha=1.0))
    add_both(buffer, far, [1], [2])
    buffer.update_priorities(buffer.sample(1, replace=False).index, [1.0])
    mine = buffer.add({"value": 3, "done": False})
    buffer.update_priorities([mine], [1000.0])
    deadline = time.monotonic() + LONG_S
    while True:  # a process that samples notifies the shards with a delay
        (index,) = ray.get(far.add.remote(buffer, [4]), timeout=LONG_S)
        batch = buffer.sample(3000, weights="buffer")
        if (priorities := batch.priority[batch.index == index]).size and priorities[0] == 1000:
            break
        assert time.monotonic() < deadline


def test_multi_node_buffer_rejects_unsupported_options(cluster: Any) -> None:
    with pytest.raises(ValueError, match=r"sampler 'default' is Fifo\(max_times=None\); over several nodes"):
        shmtree.ray.ReplayBuffer(10, example=ROW, sampling=Sampling(Fifo()))
    with pytest.raises(ValueError, match="max_times=1"):
        shmtree.ray.ReplayBuffer(10, example=ROW, sampling=Sampling(Uniform(max_times=1)))
    with pytest.raises(ValueError, match=r"limits has rate=RateLimit.*over several nodes is not available"):
        shmtree.ray.ReplayBuffer(10, example=ROW, limits=Limits(rate=RateLimit(1.0)))
    with pytest.raises(TypeError, match=r"pass sampling=Sampling\(Prioritized\(\)\)"):
        shmtree.ray.ReplayBuffer(10, example=ROW, sampling=Prioritized())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="capacity is -1; it must be at least 1"):
        shmtree.ray.ReplayBuffer(-1, example=ROW)
    with pytest.raises(ValueError, match="no live node"):
        shmtree.ray.ReplayBuffer(10, example=ROW, home="nowhere")


@pytest.mark.guarantee("ray-shard-lifetime")
def test_rows_outlive_their_server_keeper_and_writer(make: Any, far: Any, cluster: Any) -> None:
    buffer = make(sampler=Prioritized(alpha=1, eps=0))
    add_both(buffer, far, [0], [1, 2])
    ray.get(far.forget.remote(), timeout=LONG_S)
    server = _actors.gateway(cluster[2])
    keeper = _actors.keeper(cluster[2])
    before = sorted(set(buffer.sample(100).index.tolist()))
    kill(server)
    assert sorted(set(buffer.sample(100, timeout=LONG_S).data["value"].tolist())) == [0, 1, 2]
    number = ray.get(keeper.identify.remote(), timeout=LONG_S)
    kill(keeper)
    while not (kept := _all_kept(keeper)) or kept[0] == number or not kept[1]:
        time.sleep(0.1)
    kill(server)
    assert sorted(set(buffer.sample(100, timeout=LONG_S).index.tolist())) == before
    assert buffer.update_priorities(before, [1.0, 0.0, 1.0]).all()


def _all_kept(keeper: Any) -> Any:
    try:
        return ray.get(keeper.all.remote(), timeout=LONG_S)
    except ray.exceptions.RayActorError:
        return None


@pytest.mark.guarantee("ray-shard-lifetime")
def test_shard_of_a_writer_survives_kills_of_server_and_keeper(make: Any, far: Any, cluster: Any) -> None:
    buffer = make()
    add_both(buffer, far, [0], [1, 2])
    server = _actors.gateway(cluster[2])
    keeper = _actors.keeper(cluster[2])
    kill(keeper)
    kill(server)
    index = ray.get(far.add.remote(None, [3]), timeout=LONG_S)  # through the object that has opened the shard
    assert len(buffer) == 4
    batch = buffer.sample(200)
    assert sorted(set(batch.data["value"].tolist())) == [0, 1, 2, 3] and index[0] in batch.index


def test_shutdown_removes_all_shards_and_late_calls_raise(make: Any, far: Any, cluster: Any) -> None:
    buffer = make()
    add_both(buffer, far, [0], [1])
    late = shmtree.ray.ReplayBuffer(10, example=ROW)
    buffer.shutdown()
    with pytest.raises(shmtree.ChannelClosed):
        buffer.sample(1)
    ray.get(far.forget.remote(), timeout=LONG_S)
    for node in cluster[1:]:
        keeper = _actors.keeper(node)
        kinds = [key[0] for key in ray.get(keeper.all.remote(), timeout=LONG_S)[1]]
        assert "shard" not in kinds
    copied = ray.put(late)
    late.shutdown()
    with pytest.raises(shmtree.ChannelClosed):
        ray.get(copied).add({"value": 1, "done": False})


def sample_until(buffer: Any, deadline: float) -> None:
    while time.monotonic() < deadline:
        buffer.sample(60)


@pytest.mark.guarantee("ray-lost-shards")
def test_rows_of_a_dead_node_are_lost_and_sampling_continues(make: Any, cluster: Any) -> None:
    """Must be the last test, because it removes the other node."""
    nodes, _, there = cluster
    quiet = make()
    told = make(on_peer_death="raise")
    far = on(there, Writer)
    for each in (quiet, told):
        index = add_both(each, far, [0, 1], [2])
        assert sorted(set(each.sample(60).data["value"].tolist())) == [0, 1, 2]
    nodes.remove_node(next(each for each in nodes.list_all_nodes() if each.node_id == there))
    deadline = time.monotonic() + LONG_S
    while not quiet.stats()["lost"]:
        assert time.monotonic() < deadline
        assert set(quiet.sample(60, timeout=LONG_S).data["value"].tolist()) <= {0, 1, 2}
    assert quiet.stats()["lost"] == [there] and len(quiet) == 2
    assert sorted(set(quiet.sample(60).data["value"].tolist())) == [0, 1]
    with pytest.raises(shmtree.ray.PeerDied) as died:
        sample_until(told, deadline)
    assert died.value.peers == ((there, 0),)
    assert told.update_priorities(index, [1.0]).tolist() == [False]
    assert sorted(set(told.sample(60).data["value"].tolist())) == [0, 1]
