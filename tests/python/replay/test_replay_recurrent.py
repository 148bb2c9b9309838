"""Sequences with burn-in and stored state, and whole episodes, compared with a list of episodes."""

from __future__ import annotations

import queue
import re
import threading

import numpy as np
import pytest

from shmtree.replay import Episodes, Limits, Prioritized, ReplayBuffer, Sampling

ROW = {"n": 0, "hidden": (np.zeros(2, np.float32), 0.0), "done": False}
ROWS = 20_000


def filled(capacity: int, chunk: int | None, rows: int = ROWS, **options: object) -> tuple[ReplayBuffer, list[range]]:
    """Adds episodes of random lengths, and returns them with the buffer. The last one has not ended."""
    random = np.random.default_rng(11)
    buffer = ReplayBuffer(capacity, example=ROW, limits=Limits(chunk=chunk), **options)  # type: ignore[arg-type]
    episodes, first = [], 0
    while first < rows:
        episode = range(first, min(first + int(random.choice([1, 2, 9, 64, 130])), rows))
        n = np.asarray(episode)
        state = (np.stack([n, -n], axis=1).astype(np.float32), n / 2)
        done = (n == episode.stop - 1) & (episode.stop < rows)
        buffer.extend({"n": n, "hidden": state, "done": done})
        episodes.append(episode)
        first = episode.stop
    return buffer, episodes


@pytest.mark.guarantee("replay-sequences")
@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize(("capacity", "chunk"), [(2 * ROWS, None), (5000, 1), (5000, 64)])
def test_burn_in_equals_that_of_a_list_of_episodes(capacity, chunk, stride):
    buffer, episodes = filled(capacity, chunk, sampling=Sampling(seed=1))
    oldest = int(buffer.sample(len(buffer), replace=False).data["n"].min())
    episode_of = {n: episode for episode in episodes for n in episode}
    burn_in, length, count = 20, 10, 670
    batch = buffer.sample_sequences(count, length, burn_in=burn_in, stride=stride, stored_state="hidden")
    n, mask = batch.data["n"], batch.mask
    assert n.shape == mask.shape == (count, burn_in + length)
    assert mask.size > ROWS
    wrong = 0
    for i in range(count):
        chosen = int(n[i, burn_in])
        wanted = chosen + stride * (np.arange(burn_in + length) - burn_in)
        there = np.array([k in episode_of[chosen] and k >= oldest for k in wanted.tolist()])
        wrong += not ((mask[i] == there).all() and (n[i] == np.where(there, wanted, 0)).all())
        state, half = batch.stored_state["hidden"]
        first = wanted[there][0]
        wrong += not (state[i].tolist() == [first, -first] and half[i] == first / 2)
    assert wrong == 0
    assert (~mask[:, :burn_in]).any()
    assert (~mask[:, burn_in:]).any()


def test_priorities_belong_to_the_row_after_the_burn_in():
    buffer, _ = filled(500, 1, 400, sampling=Sampling(Prioritized(alpha=1, eps=0)))
    index = buffer.sample(400, replace=False).index
    buffer.update_priorities(index, np.zeros(400))
    buffer.update_priorities(index[:1], np.ones(1))
    batch = buffer.sample_sequences(30, 2, burn_in=3, sampler="default")
    assert (batch.index[:, 3] == index[0]).all()
    assert (batch.priority == 1).all()
    whole = buffer.sample_sequences(30, 2, burn_in=3, partial="refuse")
    assert whole.mask[:, 3:].all()


@pytest.mark.parametrize("chunk", [1, 64])
def test_whole_episodes_equal_those_of_a_list_of_episodes(chunk):
    buffer, episodes = filled(5000, chunk)
    oldest = int(buffer.sample(len(buffer), replace=False).data["n"].min())
    whole = [episode for episode in episodes[:-1] if episode.start >= oldest and len(episode) <= 64]
    batch = buffer.sample_episodes(len(whole), 64, replace=False)
    sampled = [batch.data["n"][i][batch.mask[i]].tolist() for i in range(len(batch))]
    assert sorted(sampled) == [list(episode) for episode in whole]
    assert (batch.mask.sum(axis=1) == np.argmin(np.pad(batch.mask, ((0, 0), (0, 1))), axis=1)).all()
    assert (batch.data["n"][~batch.mask] == 0).all()
    text = f"cannot sample {len(whole) + 1} different episodes of at most 64 rows: there are only {len(whole)}"
    with pytest.raises(ValueError, match=text):
        buffer.sample_episodes(len(whole) + 1, 64, replace=False)


def test_sample_episodes_waits_for_the_end_of_an_episode():
    buffer = ReplayBuffer(100, example=ROW, episodes=Episodes(done=None))
    row = {"n": 7, "hidden": (np.zeros(2), 0.0), "done": False}
    with buffer.writer() as writer:
        writer.add(row)
        with pytest.raises(queue.Empty, match="no whole episode of at most 5 rows"):
            buffer.sample_episodes(1, 5, timeout=0)
        found: list[list[int]] = []
        waits = threading.Thread(target=lambda: found.append(buffer.sample_episodes(2, 5).data["n"][1].tolist()))
        waits.start()
        writer.add(row)
        writer.end()
        waits.join(60)
    assert found == [[7, 7, 0, 0, 0]]


def test_arguments_of_sequences_are_checked():
    buffer, _ = filled(100, 1, 50)
    with pytest.raises(ValueError, match="burn_in is -1; it must be at least 0"):
        buffer.sample_sequences(1, 2, burn_in=-1)
    text = "stored_state has 'state', but rows of the buffer have ['n', 'hidden', 'done']"
    with pytest.raises(ValueError, match=re.escape(text)):
        buffer.sample_sequences(1, 2, stored_state=("hidden", "state"))
    with pytest.raises(AttributeError, match="sampled without stored_state="):
        _ = buffer.sample_sequences(1, 2).stored_state
    with pytest.raises(ValueError, match="partial is 'whole'"):
        buffer.sample_sequences(1, 2, partial="whole")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="length is 0"):
        buffer.sample_episodes(1, 0)
