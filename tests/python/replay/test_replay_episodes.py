"""Columns of a batch that depend on neighbouring rows: successors, sums of rewards and stacks; and ends of episodes."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
import pytest
from replay_options import grouped

from shmtree.replay import Episodes, Limits, ReplayBuffer, Sampling, Writer

GAMMA = 0.5


def row(number: int, done: bool = False) -> dict[str, Any]:
    return {"obs": np.full(2, number, np.float32), "reward": float(number), "done": done, "n": number}


def buffer_with(**options: Any) -> ReplayBuffer:
    return ReplayBuffer(256, example=row(0), **grouped(**{"chunk": 8, "gamma": GAMMA, **options}))


def add_episode(writer: Writer, first: int, length: int, done: bool = True) -> None:
    for number in range(first, first + length):
        writer.add(row(number, done and number == first + length - 1))


def drawn(buffer: ReplayBuffer, n: int = 2000) -> dict[int, dict[str, Any]]:
    """Returns the sampled values of each row, by its number."""
    batch = buffer.sample(n, timeout=0)
    data = batch.data
    found = {}
    for i, number in enumerate(data["n"].tolist()):
        found[number] = {
            "reward": float(data["reward"][i]),
            "discount": float(batch.discount[i]) if buffer._spec.has_discount else None,
            "next": data["next"]["obs"][i].tolist() if "next" in data else None,
            "obs": data["obs"][i].tolist(),
        }
    return found


def test_next_is_the_following_row_of_the_episode():
    buffer = buffer_with(next="obs")
    with buffer.writer() as writer:
        add_episode(writer, 10, 20, done=False)
    found = drawn(buffer)
    assert set(found) == set(range(10, 29))  # the last one has no successor yet
    assert all(part["next"] == [number + 1] * 2 for number, part in found.items())
    assert all(part["discount"] == GAMMA for part in found.values())


@pytest.mark.guarantee("replay-episode-bounds")
def test_final_is_the_successor_of_the_last_row():
    buffer = buffer_with(next=("obs",))
    with buffer.writer() as writer:
        add_episode(writer, 0, 3)
        writer.end(final={"obs": np.full(2, 99, np.float32)})
        add_episode(writer, 10, 3, done=False)
        writer.end(final={"obs": np.full(2, 77, np.float32)}, truncated=True)
    found = drawn(buffer)
    assert set(found) == {0, 1, 2, 10, 11, 12}
    assert (found[2]["next"], found[2]["discount"]) == ([99, 99], 0)
    assert (found[12]["next"], found[12]["discount"]) == ([77, 77], GAMMA)


def test_last_row_without_final_is_its_own_successor():
    buffer = buffer_with(next="obs")
    with buffer.writer() as writer:
        add_episode(writer, 0, 3)
        assert set(drawn(buffer)) == {0, 1}
        writer.add(row(10))
        found = drawn(buffer)
    assert set(found) == {0, 1, 2}
    assert (found[2]["next"], found[2]["discount"]) == ([2, 2], 0)


def test_close_completes_the_last_done_row():
    buffer = buffer_with(next="obs")
    with buffer.writer() as writer:
        add_episode(writer, 0, 3)
    assert set(drawn(buffer)) == {0, 1, 2}


@pytest.mark.guarantee("replay-episode-bounds")
def test_rewards_are_summed_up_to_the_end_of_the_episode():
    buffer = buffer_with(n_step=3)
    with buffer.writer() as writer:
        add_episode(writer, 1, 5)
        add_episode(writer, 100, 4, done=False)
    found = drawn(buffer)
    assert set(found) == {1, 2, 3, 4, 5, 100, 101}
    assert [found[1]["reward"], found[4]["reward"], found[5]["reward"]] == [1 + 1 + 0.75, 4 + 2.5, 5]
    assert [found[n]["discount"] for n in (1, 2, 3, 4, 5, 100)] == [0.125, 0.125, 0, 0, 0, 0.125]


def test_successor_is_n_steps_ahead_with_n_step():
    buffer = buffer_with(next="obs", n_step=3)
    with buffer.writer() as writer:
        add_episode(writer, 0, 5, done=False)
        writer.end(final={"obs": np.full(2, 50, np.float32)}, truncated=True)
    found = drawn(buffer)
    assert [found[n]["next"][0] for n in range(5)] == [3, 4, 50, 50, 50]
    assert [found[n]["discount"] for n in range(5)] == [0.125, 0.125, 0.125, 0.25, 0.5]


@pytest.mark.guarantee("replay-episode-bounds")
def test_stacks_contain_earlier_frames_or_padding():
    for padding, before in (("zeros", 0), ("first", 5)):
        buffer = buffer_with(stack={"obs": 3}, stack_padding=padding, next="obs")
        with buffer.writer() as writer:
            add_episode(writer, 5, 4)
            writer.end(final={"obs": np.full(2, 9, np.float32)})
        batch = buffer.sample(500)
        assert batch.data["obs"].shape == (500, 3, 2)
        stacks = {
            n: [frame[0] for frame in obs] for n, obs in zip(batch.data["n"], batch.data["obs"].tolist(), strict=True)
        }
        assert stacks == {5: [before, before, 5], 6: [before, 5, 6], 7: [5, 6, 7], 8: [6, 7, 8]}
        after = {n: obs[:, 0].tolist() for n, obs in zip(batch.data["n"], batch.data["next"]["obs"], strict=True)}
        assert after == {5: [before, 5, 6], 6: [5, 6, 7], 7: [6, 7, 8], 8: [7, 8, 9]}


def test_every_row_has_its_stream_and_step():
    buffer = buffer_with()
    writers = [buffer.writer() for _ in range(3)]
    for number in range(60):
        writers[number % 3].add(row(number))
    batch = buffer.sample(1000)
    assert (batch.step == batch.data["n"] // 3).all()
    streams = {writer.stream: i for i, writer in enumerate(writers)}
    assert [streams[stream] for stream in batch.writer.tolist()] == (batch.data["n"] % 3).tolist()


def test_nested_columns_have_successors_and_stacks():
    example = {"obs": {"a": 0.0, "b": (np.zeros(2), 1)}, "act": 0}
    buffer = ReplayBuffer(64, example=example, episodes=Episodes(next="obs", stack={"obs": 2}, done=None))
    with buffer.writer() as writer:
        for number in range(5):
            writer.add({"obs": {"a": float(number), "b": (np.full(2, number), number)}, "act": number})
        writer.end(final={"obs": {"a": 5.0, "b": (np.full(2, 5.0), 5)}}, truncated=True)
    data = buffer.sample(200).data
    assert set(data) == {"obs", "act", "next"}
    assert (data["next"]["obs"]["b"][1][:, 1] == data["act"] + 1).all()
    assert (data["obs"]["b"][0][:, 1, 0] == data["act"]).all()


def test_options_take_paths_of_nested_columns():
    example = {"obs": {"a": 0.0, "b": 0.0}, "step": {"reward": 0.0, "over": False}}
    episodes = Episodes(n_step=2, gamma=1.0, stack={"obs/a": 3}, reward="step/reward", done="step/over")
    buffer = ReplayBuffer(64, example=example, episodes=episodes)
    for number in range(4):
        row = {"obs": {"a": float(number), "b": float(number)}, "step": {"reward": 1.0, "over": number == 3}}
        buffer.add(row)
    data = buffer.sample(100).data
    assert (data["obs"]["a"].shape, data["obs"]["b"].shape) == ((100, 3), (100,))
    assert (data["step"]["reward"] == np.where(data["obs"]["b"] == 3, 1, 2)).all()


def test_a_batch_without_successors_has_no_discount():
    buffer = buffer_with()
    buffer.add(row(1))
    with pytest.raises(AttributeError, match="next= and n_step="):
        _ = buffer.sample(1).discount


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"next": "what"}, 'next has "what", which is not a key of the rows'),
        ({"stack": {"what": 2}}, 'stack has "what"'),
        ({"stack": {"obs": 0}}, "is 0; it must be at least 1"),
        ({"n_step": 0}, "n_step is 0"),
        ({"n_step": 2, "reward": "n"}, "rewards are of int64"),
        ({"n_step": 2, "reward": None}, "no reward leaf"),
        ({"reward": "score"}, 'reward has "score"'),
        ({"done": "obs"}, "it must be one number"),
        ({"gamma": -1}, "gamma is -1"),
        ({"stack_padding": "last"}, "stack_padding is 'last'"),
        ({"n_step": 100_000}, "n_step is 100000; it must be at most 1024"),
    ],
)
def test_constructor_rejects_options_that_rows_do_not_support(options, text):
    with pytest.raises(ValueError, match=text):
        ReplayBuffer(100, example=row(0), **grouped(**options))


def test_column_named_next_is_rejected_with_next_option():
    with pytest.raises(ValueError, match=r'row\["next"\]'):
        ReplayBuffer(100, example={"obs": 1.0, "next": 1.0, "done": False}, episodes=Episodes(next="obs"))
    ReplayBuffer(100, example={"obs": 1.0, "next": 1.0})


def test_unfitting_final_is_rejected_by_name():
    buffer = buffer_with(next="obs")
    writer = buffer.writer()
    writer.add(row(1))
    with pytest.raises(ValueError, match=r"final\['obs'\] has the shape \(3,\)"):
        writer.end(final={"obs": np.zeros(3, np.float32)})
    with pytest.raises(ValueError, match=r"final\['obs'\] is missing"):
        writer.end(final={})
    with pytest.raises(ValueError):
        writer.end(truncated=True)
    plain = buffer_with().writer()
    with pytest.raises(ValueError, match="next="):
        plain.end(final={"obs": np.zeros(2, np.float32)})
    writer.end(final={"obs": np.zeros(2, np.float32)}, truncated=True)
    assert set(drawn(buffer)) == {1}


@pytest.mark.guarantee("replay-len")
@pytest.mark.parametrize("chunk", [1, 2, 8])
@pytest.mark.parametrize("frames", [2, 3, 20])
def test_len_counts_the_rows_that_can_be_sampled(chunk, frames):
    """With a stack, rows cannot be sampled after their earlier frames have left the buffer, so they do not count."""
    rng = np.random.default_rng(100 * chunk + frames)
    buffer = ReplayBuffer(
        24,
        example={"x": np.zeros(1, np.float32), "done": False},
        sampling=Sampling(seed=1),
        episodes=Episodes(stack={"x": frames}),
        limits=Limits(chunk=chunk, streams=4),
    )
    writers = [buffer.writer() for _ in range(4)]
    for step in range(400):
        writer = writers[0 if rng.random() < 0.5 else int(rng.integers(4))]  # the other writers add rarely
        writer.add({"x": np.full(1, step, np.float32), "done": rng.random() < 0.1})
        if step % 10:
            continue
        rows = len(buffer)
        assert rows == buffer.stats()["rows"] <= 24
        if rows == 0:
            with pytest.raises(queue.Empty):
                buffer.sample(1, timeout=0)
        else:
            batch = buffer.sample(rows, replace=False)
            assert len(set(batch.index.tolist())) == rows
        with pytest.raises((ValueError, queue.Empty)):
            buffer.sample(rows + 1, replace=False, timeout=0)


@pytest.mark.guarantee("replay-len")
def test_len_is_0_if_no_row_has_all_its_frames():
    buffer = ReplayBuffer(
        6,
        example={"x": np.zeros(1, np.float32), "done": False},
        episodes=Episodes(stack={"x": 3}),
        limits=Limits(chunk=1),
    )
    with buffer.vector_writer(3) as writer:
        for step in range(10):
            writer.add({"x": np.full((3, 1), step, np.float32), "done": np.zeros(3, bool)})
            assert len(buffer) == (3, 6, 0)[min(step, 2)]
