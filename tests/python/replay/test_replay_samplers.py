"""Probabilities of sampled rows, with priorities that any process changes, and the memory of batches."""

from __future__ import annotations

import queue

import numpy as np
import pytest
from replay_options import grouped

import shmtree
from shmtree.replay import (
    Episodes,
    Fifo,
    Lifo,
    Limits,
    MaxPriority,
    Prioritized,
    ReplayBuffer,
    Sampling,
    SequenceBatch,
    Uniform,
)


def filled(count: int = 50, **options: object) -> ReplayBuffer:
    buffer = ReplayBuffer(100, example=0, **grouped(chunk=1, **options))
    for number in range(count):
        buffer.add(number)
    return buffer


@pytest.mark.guarantee("replay-probabilities")
def test_uniform_sampler_chooses_rows_with_equal_probability():
    buffer = filled(seed=1)
    counts = np.bincount(buffer.sample(100_000).data, minlength=50)
    assert ((counts - 2000) ** 2 / 2000).sum() < 110  # chi-square with 49 degrees of freedom: fails once in a million


@pytest.mark.guarantee("replay-probabilities")
def test_prioritized_sampler_uses_priorities_to_the_power_alpha():
    buffer = filled(0, sampler=Prioritized(alpha=0.5, eps=1e-9), seed=2)
    for number in range(20):
        buffer.add(number, priority=float(number + 1))
    batch = buffer.sample(100_000)
    expected = np.sqrt(np.arange(1, 21)) / np.sqrt(np.arange(1, 21)).sum()
    counts = np.bincount(batch.data, minlength=20)
    assert ((counts - 1e5 * expected) ** 2 / (1e5 * expected)).sum() < 65
    np.testing.assert_allclose(batch.probability, expected[batch.data], rtol=1e-5)
    np.testing.assert_allclose(batch.priority, batch.data + 1, rtol=1e-4)


def test_weights_correct_for_probability_and_are_at_most_one():
    buffer = filled(0, sampler=Prioritized(alpha=1, beta=0.5, eps=1e-9))
    for priority in (1.0, 4.0):
        buffer.add(1, priority=priority)
    batch = buffer.sample(100)
    np.testing.assert_allclose(batch.weight, np.where(batch.priority > 2, 0.5, 1.0), rtol=1e-5)
    np.testing.assert_allclose(buffer.sample(100, beta=1).weight.min(), 0.25, rtol=1e-5)


def test_weights_can_be_relative_to_the_whole_buffer():
    buffer = filled(0, sampler=Prioritized(alpha=1, beta=1, eps=1e-30))
    least = buffer.add(1, priority=1e-20)
    buffer.add(1, priority=1.0)
    batch = buffer.sample(8, weights="buffer")
    assert least not in batch.index
    np.testing.assert_allclose(batch.weight, 1e-20, rtol=1e-2)
    assert (buffer.sample(8).weight == 1).all()


def test_updated_priorities_change_the_sampled_rows():
    buffer = filled(sampler=Prioritized(alpha=1, eps=1e-30))
    index = buffer.sample(2000).index
    every = np.unique(index)
    assert buffer.update_priorities(every, np.where(every == every[3], 1.0, 0.0)).all()
    assert set(buffer.sample(1000).index.tolist()) == {int(every[3])}


@pytest.mark.guarantee("replay-update-priorities")
def test_update_priorities_returns_a_mask_of_existing_rows():
    buffer = filled(100, sampler=Prioritized())
    index = np.arange(5) + buffer.sample(100).index.min()
    first = buffer.add(1)
    mask = buffer.update_priorities([first, first - 100, first - 99], [1.0, 2.0, 3.0])
    assert mask.dtype == bool
    assert mask.tolist() == [True, False, True]
    assert index.size


def test_last_priority_of_a_repeated_index_counts():
    buffer = filled(0, sampler=Prioritized(alpha=1, eps=1e-9))
    index = buffer.add(1)
    buffer.update_priorities([index, index], [5.0, 2.0])
    np.testing.assert_allclose(buffer.sample(1).priority, [2.0], rtol=1e-5)


def test_rows_without_priority_get_the_largest_so_far():
    buffer = filled(0, sampler=Prioritized())
    assert buffer.max_priority == 1.0
    index = buffer.add(1)
    buffer.update_priorities([index], [7.5])
    assert buffer.max_priority == 7.5
    new = buffer.add(2)
    batch = buffer.sample(100)
    np.testing.assert_allclose(batch.priority[batch.index == new], 7.5, rtol=1e-4)


@pytest.mark.guarantee("replay-update-priorities")
@pytest.mark.parametrize("priority", [-1.0, float("nan"), float("inf"), 1e300])
def test_invalid_priority_is_rejected_and_changes_nothing(priority):
    buffer = filled(2, sampler=Prioritized())
    index = np.unique(buffer.sample(50).index)
    with pytest.raises(ValueError):
        buffer.update_priorities(index, [3.0, priority])
    with pytest.raises(ValueError):
        buffer.add(1, priority=priority)
    assert buffer.max_priority == 1.0
    assert len(buffer) == 2
    np.testing.assert_allclose(buffer.sample(10).priority, 1.0, rtol=1e-4)


@pytest.mark.parametrize(
    ("index", "priority", "error"),
    [
        ([10_000_000], [1.0], ValueError),
        ([-1], [1.0], ValueError),
        ([1, 2], [1.0], ValueError),
        ([0.5], [1.0], TypeError),
        (["a"], [1.0], TypeError),
        ([1], ["a"], TypeError),
    ],
)
def test_unknown_or_invalid_index_is_rejected(index, priority, error):
    buffer = filled(sampler=Prioritized())
    with pytest.raises(error):
        buffer.update_priorities(index, priority)


def test_update_priorities_accepts_tensors():
    torch = pytest.importorskip("torch")
    buffer = filled(sampler=Prioritized())
    batch = buffer.sample(10)
    assert buffer.update_priorities(torch.from_numpy(batch.index), torch.ones(10, requires_grad=True)).all()


def test_named_samplers_sample_from_the_same_rows():
    buffer = filled(sampler={"per": Prioritized(alpha=1, eps=1e-30), "all": Uniform()})
    index = np.unique(buffer.sample(5000).index)
    buffer.update_priorities(index, (index == index[0]).astype(float), sampler="per")
    assert set(buffer.sample(100, sampler="per").index.tolist()) == {int(index[0])}
    assert len(set(buffer.sample(1000, sampler="all").index.tolist())) > 40
    with pytest.raises(ValueError, match="sampler is 'more'; it must be one of 'per', 'all'"):
        buffer.sample(1, sampler="more")


@pytest.mark.parametrize("sampler", [Uniform(), Prioritized()])
def test_sampling_without_replacement_returns_each_row_once(sampler):
    buffer = filled(sampler=sampler)
    assert sorted(buffer.sample(50, replace=False).data.tolist()) == list(range(50))
    with pytest.raises(ValueError, match="51 different rows: there are 50"):
        buffer.sample(51, replace=False)
    assert len(buffer.sample(200)) == 200


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Prioritized(alpha=-1), ValueError),
        (lambda: Prioritized(eps=-1e-6), ValueError),
        (lambda: Prioritized(beta=float("nan")), ValueError),
        (lambda: Prioritized(alpha="x"), TypeError),
        (lambda: Uniform(max_times=-1), ValueError),
        (lambda: filled(sampler={}), ValueError),
        (lambda: filled(sampler="uniform"), TypeError),
        (lambda: filled(sampler={i: Uniform() for i in range(3)}), TypeError),
        (lambda: filled(sampler={str(i): Uniform() for i in range(20)}), ValueError),
    ],
)
def test_invalid_samplers_are_rejected(make, error):
    with pytest.raises(error):
        make()


def test_open_restores_the_samplers(runtime_directory, name):
    buffer = ReplayBuffer(
        10,
        example={"a": 1.0},
        name=name,
        sampling=Sampling({"p": Prioritized(0.7, 0.5, 0.1), "u": Uniform(max_times=3)}),
    )
    assert ReplayBuffer.open(name)._spec == buffer._spec


def test_batch_is_sampled_into_caller_arrays():
    buffer = ReplayBuffer(10, example={"a": np.zeros(3, np.float32), "b": 1})
    buffer.add({"a": np.ones(3), "b": 5})
    out = {"a": np.zeros((4, 3), np.float32), "b": np.zeros(4, np.int64)}
    batch = buffer.sample(4, out=out)
    assert batch.data is out
    assert out["b"].tolist() == [5] * 4
    assert (out["a"] == 1).all()


@pytest.mark.parametrize(
    ("out", "error", "text"),
    [
        ({"a": np.zeros((4, 3), np.float32)}, ValueError, r"out\['b'\] is missing"),
        ({"a": np.zeros((4, 3)), "b": np.zeros(4, np.int64)}, ValueError, r"out\['a'\] is of float64"),
        ({"a": np.zeros((5, 3), np.float32), "b": np.zeros(4, np.int64)}, ValueError, r"out\['a'\] .* shape \(5, 3\)"),
        ({"a": np.zeros((3, 4), np.float32).T, "b": np.zeros(4, np.int64)}, ValueError, "not contiguous"),
        ({"a": [1], "b": np.zeros(4, np.int64)}, TypeError, r"out\['a'\] is a list"),
        ("heap", ValueError, "out is 'heap'"),
    ],
)
def test_unfitting_out_argument_is_rejected_by_name(out, error, text):
    buffer = ReplayBuffer(10, example={"a": np.zeros(3, np.float32), "b": 1})
    buffer.add({"a": np.ones(3), "b": 5})
    with pytest.raises(error, match=text):
        buffer.sample(4, out=out)


def test_batch_in_the_arena_is_sent_without_a_copy(arena):
    buffer = ReplayBuffer(100, example=np.zeros(4096, np.uint8), arena=arena)
    buffer.add(np.ones(4096, np.uint8))
    sender, receiver = arena.create_pair()
    batch = buffer.sample(64, out="arena")
    at = batch.data.ctypes.data
    sender.put({"data": batch.data, "index": batch.index})
    received = receiver.get()
    assert received["data"].ctypes.data == at
    assert (received["data"] == 1).all()
    assert not batch.data.flags.writeable  # it was moved to the channel


def test_batch_converts_to_tensors_on_a_device():
    torch = pytest.importorskip("torch")
    buffer = ReplayBuffer(10, example={"a": np.zeros(3, np.float32), "b": (1, 2.0)})
    buffer.add({"a": np.ones(3), "b": (1, 2.0)})
    data = buffer.sample(4).to("cpu").data
    assert data["a"].dtype is torch.float32
    assert data["b"][1].tolist() == [2.0] * 4


@pytest.mark.parametrize("sampler", [Fifo(), Lifo(), MaxPriority()])
def test_ordered_sampler_repeats_its_order_beyond_all_rows(sampler):
    buffer = ReplayBuffer(100, example={"n": 0}, sampling=Sampling(sampler), limits=Limits(chunk=1))
    for number in range(3):
        buffer.add({"n": number}, priority=3.0 - number)
    order = [2, 1, 0] if isinstance(sampler, Lifo) else [0, 1, 2]
    assert buffer.sample(8).data["n"].tolist() == (order * 3)[:8]
    with pytest.raises(ValueError, match="8 different rows: there are 3"):
        buffer.sample(8, replace=False)


def test_every_field_of_a_batch_converts_to_a_tensor():
    torch = pytest.importorskip("torch")
    row = {"obs": np.zeros(2, np.float32), "reward": 0.0, "done": False}
    buffer = ReplayBuffer(100, example=row, sampling=Sampling(Prioritized()), episodes=Episodes(next="obs"))
    with buffer.writer() as writer:
        writer.version = 7
        for number in range(10):
            writer.add({**row, "reward": float(number)}, priority=number + 1.0)
    for batch in (buffer.sample(6), buffer.sample_sequences(6, 3)):
        moved = batch.to("cpu")
        assert len(moved) == 6
        names = ["index", "weight", "probability", "priority", "age", "version", "step", "writer", "discount"]
        for name in [*names, "mask"] if isinstance(batch, SequenceBatch) else names:
            assert isinstance(getattr(moved, name), torch.Tensor), name
            assert (getattr(moved, name).numpy() == getattr(batch, name)).all(), name
        with pytest.raises(AttributeError, match="no attribute 'colour'"):
            moved.colour  # noqa: B018


def test_batch_on_a_device_without_successors_has_no_discount():
    pytest.importorskip("torch")
    buffer = ReplayBuffer(10, example=0.0)
    buffer.add(1.0)
    with pytest.raises(AttributeError, match="next= and n_step="):
        buffer.sample(1).to("cpu").discount  # noqa: B018


def test_several_threads_copy_a_large_batch():
    buffer = ReplayBuffer(500, example=np.zeros(10_000, np.uint16), limits=Limits(chunk=1))
    for number in range(300):
        buffer.add(np.full(10_000, number, np.uint16))
    data = buffer.sample(400, threads=4).data
    assert (data == data[:, :1]).all()
    assert issubclass(shmtree.Error, Exception)


@pytest.mark.parametrize("sampler", [Uniform(), Uniform(max_times=9), Prioritized(), Fifo(), Lifo(), MaxPriority()])
def test_rows_without_all_their_frames_are_not_sampled(sampler):
    buffer = ReplayBuffer(
        16,
        example={"x": 0.0},
        sampling=Sampling(sampler),
        episodes=Episodes(stack={"x": 4}, done=None),
        limits=Limits(chunk=1),
    )
    with buffer.writer() as writer:
        for number in range(40):
            writer.add({"x": number}, priority=100 - number)
    stacks = buffer.sample(13, replace=False, timeout=60).data["x"]
    assert sorted(stacks[:, -1].tolist()) == list(range(27, 40))
    assert (np.diff(stacks, axis=1) == 1).all()
    with pytest.raises((ValueError, queue.Empty), match="14 different rows: there are 13|no rows|in time|rows"):
        buffer.sample(14, replace=False, timeout=0.1)
