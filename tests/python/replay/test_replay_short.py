"""Writers that live for a few rows only: the next writers get the unused rows of their chunks."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import replay_peers
from shared_state import violated_by
from starts import START_METHODS

from shmtree.replay import Episodes, Fifo, Limits, Prioritized, ReplayBuffer, Sampling

ROW = {"obs": np.zeros(1, np.float32), "reward": 0.0, "done": False}


def in_threads(count: int, at_once: int, act) -> None:
    for first in range(0, count, at_once):
        threads = [threading.Thread(target=act, args=(i,)) for i in range(first, min(first + at_once, count))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.guarantee("replay-chunk-reuse")
def test_threads_that_add_one_row_each_fill_the_buffer():
    buffer = ReplayBuffer(1000, example=0)
    assert buffer.chunk > 8
    in_threads(1000, 1, buffer.add)
    assert len(buffer) >= 1000 - 3 * buffer.chunk
    drawn = buffer.sample(20_000)
    rows = set(drawn.data.tolist())
    assert len(rows) == len(buffer) and rows <= set(range(1000))
    assert len(set(drawn.writer.tolist())) == len(buffer)  # a stream each
    assert set(drawn.step.tolist()) == {0}
    assert violated_by(buffer) == ""


def test_concurrent_threads_that_add_one_row_each_lose_none():
    buffer = ReplayBuffer(4000, example=0, sampling=Sampling(Fifo(max_times=1)))
    in_threads(1600, 8, buffer.add)
    assert len(buffer) == 1600
    assert sorted(buffer.sample(1600).data.tolist()) == list(range(1600))
    assert buffer.stats()["chunks"] <= 1600 // buffer.chunk + 16
    assert violated_by(buffer) == ""


@pytest.mark.guarantee("replay-chunk-reuse")
@pytest.mark.parametrize("method", START_METHODS)
def test_successive_processes_share_one_chunk(start, method):
    buffer = ReplayBuffer(1000, example=0)
    for number in range(6):
        start(replay_peers.add_numbers, buffer, 5 * number, 5, method=method).join(60)
    assert sorted(set(buffer.sample(1000).data.tolist())) == list(range(30))
    assert buffer.stats()["chunks"] == 1
    assert violated_by(buffer) == ""


def test_successive_writers_share_a_chunk_and_have_own_streams():
    buffer = ReplayBuffer(1000, example=0)
    for number in range(10):
        with buffer.writer() as writer:
            for step in range(3):
                writer.add(10 * number + step)
    assert buffer.stats()["chunks"] == 1
    batch = buffer.sample(1000)
    assert (batch.step == batch.data % 10).all()
    streams = dict(zip((batch.data // 10).tolist(), batch.writer.tolist(), strict=True))
    assert len(set(streams.values())) == 10
    assert all(streams[each // 10] == stream for each, stream in zip(batch.data, batch.writer, strict=True))


def test_stream_number_of_a_writer_does_not_change():
    buffer = ReplayBuffer(1000, example=0)
    numbers = {}
    for row in range(6):
        with buffer.writer() as writer:
            if row % 2:
                numbers[row] = writer.stream
            writer.add(row)
            numbers.setdefault(row, writer.stream)
            assert writer.stream == numbers[row]
            writer.add(row)
    batch = buffer.sample(500)
    assert all(numbers[row] == stream for row, stream in zip(batch.data.tolist(), batch.writer.tolist(), strict=True))


def test_sequences_and_stacks_do_not_cross_streams():
    buffer = ReplayBuffer(1000, columns={"x": np.int64}, episodes=Episodes(stack={"x": 3}, done=None))
    for number in range(6):
        with buffer.writer() as writer:
            for step in range(5):
                writer.add({"x": 100 * number + step + 1})
    assert buffer.stats()["chunks"] == 1
    batch = buffer.sample_sequences(200, 10)
    for rows, mask in zip(batch.data["x"][..., -1], batch.mask, strict=True):
        there = rows[mask]
        assert (np.diff(there) == 1).all()
        assert there[-1] % 100 == 5
    for frames in buffer.sample(200).data["x"]:
        known = frames[frames != 0]
        assert (np.diff(known) == 1).all()
        assert known[-1] // 100 == known[0] // 100


def test_episodes_are_correct_in_chunks_of_several_writers():
    buffer = ReplayBuffer(
        1000, example=ROW, sampling=Sampling(Prioritized()), episodes=Episodes(next=("obs",), n_step=2, gamma=0.5)
    )
    for number in range(20):
        with buffer.writer() as writer:
            for step in range(3):
                obs = np.full(1, 100 * number + step, np.float32)
                writer.add({"obs": obs, "reward": 1.0, "done": step == 2 and number % 2 == 0})
            if number % 2:
                writer.end(final={"obs": np.full(1, 100 * number + 3, np.float32)}, truncated=True)
    assert len(buffer) == 60
    assert buffer.stats()["chunks"] <= 80 // buffer.chunk + 2
    batch = buffer.sample(1000)
    here, after = batch.data["obs"][:, 0], batch.data["next"]["obs"][:, 0]
    assert (here // 100 == after // 100).all()
    steps = np.minimum(here % 100 + 2, np.where(here // 100 % 2 == 1, 3, 2))
    assert (after % 100 == steps).all()
    assert set(batch.step.tolist()) == {0, 1, 2}


def test_incomplete_rows_do_not_count_and_block_chunk_reuse():
    buffer = ReplayBuffer(1000, example=ROW, episodes=Episodes(n_step=3))
    for number in range(4):
        with buffer.writer() as writer:
            for _ in range(5):
                writer.add({**ROW, "obs": np.full(1, number, np.float32)})
    assert len(buffer) == 4 * 3
    assert buffer.stats()["chunks"] == 4


def test_load_restores_streams_that_share_a_chunk(tmp_path):
    buffer = ReplayBuffer(1000, example=0)
    for number in range(40):
        with buffer.writer() as writer:
            writer.add(2 * number)
            writer.add(2 * number + 1)
    buffer.save(tmp_path)

    def known(of: ReplayBuffer) -> dict[int, tuple[int, int]]:
        batch = of.sample(4000)
        streams = zip(batch.writer.tolist(), batch.step.tolist(), strict=True)
        return dict(zip(batch.data.tolist(), streams, strict=True))

    assert known(ReplayBuffer.load(tmp_path)) == known(buffer)
    in_parts = ReplayBuffer.load(tmp_path, limits=Limits(chunk=4))
    assert in_parts.chunk == 4
    assert known(in_parts) == known(buffer)
    with buffer.writer() as writer:
        writer.add(99)
    buffer.save(tmp_path)
    assert known(ReplayBuffer.load(tmp_path)) == known(buffer)
