"""Kills writers, samplers and updaters of a replay buffer at random moments, and checks all other processes.

    python tests/chaos_replay.py --seconds 600 --method spawn --seed 7

One process of each kind runs from the beginning to the end. Four more writers, two samplers and an updater are killed
and replaced. Kills hit them in add, in sample, between calls, while they are stopped, and while they start.

- no survivor waits long for rows or for space under the rate limit, and calls with a timeout return in time;
- no sampled row is torn, nor its successor, which is a later row of the same episode;
- priority sums, chunks and credits are right at the end, and all remaining rows can be sampled;
- shared memory, descriptors and memory of the processes return to their initial levels.
"""

from __future__ import annotations

import gc
import queue
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from chaos import Chaos, parser_of, run
from chaos_processes import GETTING, PUTTING, WORKING, Life, guarded

from shmtree.replay import Episodes, Limits, Prioritized, RateLimit, ReplayBuffer, Sampling, Uniform

sys.path.append(str(Path(__file__).parent / "python" / "support"))

from shared_state import violated, violated_by

ROWS = 20_000
WORDS = 512  # 8-byte words per row
WRITE, SAMPLE, UPDATE = "write", "sample", "update"
SAMPLERS = {"by priority": Prioritized(), "any": Uniform()}


def row_of(life: Life, number: int) -> dict[str, Any]:
    key = life.number << 40 | number
    return {"key": key, "payload": np.full(WORDS, key), "reward": 1.0, "done": number % 13 == 12}


def final_of(life: Life, number: int) -> dict[str, Any]:
    return {"payload": np.full(WORDS, life.number << 40 | number)}


def check(batch: Any) -> None:
    key, after = batch.data["key"], batch.data["next"]["payload"]
    if np.any(batch.data["payload"] != key[:, None]) or np.any(after != after[:, :1]):
        raise AssertionError(f"torn rows: {batch.data}")
    later = after[:, 0] - key
    if np.any(later < 0) or np.any(later > 3):
        raise AssertionError(f"rows with wrong successors: {key} {after[:, 0]}")


def write(directory: str, number: int, seed: int, survives: bool, buffer: ReplayBuffer) -> None:
    guarded(_write, Life(directory, number, seed, survives), buffer)


def _write(life: Life, buffer: ReplayBuffer) -> None:
    writer = buffer.writer()
    done = 0
    life.phase[life.number] = WORKING
    while not life.board.stop[0]:
        try:
            life.call(PUTTING, life.timeout(), partial(writer.add, row_of(life, done)))
        except queue.Full:
            continue
        life.went(PUTTING)
        done += 1
        life.note("done", done)
        chance = life.random.random()
        if chance < 0.02:
            writer.end(final=final_of(life, done), truncated=chance < 0.01)
        elif chance < 0.025:
            writer.close()
            writer = buffer.writer()
        life.rest()


def draw(directory: str, number: int, seed: int, survives: bool, buffer: ReplayBuffer, updates: bool) -> None:
    guarded(_draw, Life(directory, number, seed, survives), buffer, updates)


def _draw(life: Life, buffer: ReplayBuffer, updates: bool) -> None:
    drawn = 0
    life.phase[life.number] = WORKING
    while not life.board.stop[1]:
        sampler = life.random.choice(list(SAMPLERS))
        n = life.random.choice((1, 16, 64))
        try:
            batch = life.call(GETTING, life.timeout(), partial(buffer.sample, n, sampler=sampler))
        except queue.Empty:
            continue
        life.went(GETTING)
        check(batch)
        if updates:
            buffer.update_priorities(batch.index, np.abs(np.sin(batch.index + drawn)))
        drawn += n
        life.note("done", drawn)
        life.rest()


class ReplayChaos(Chaos):
    def make_ends(self) -> None:
        limit = RateLimit(4.0, min_size=1_000, error_buffer=4_000.0) if self.random.random() < 0.5 else None
        print(f"with {limit}")
        row = {"key": 0, "payload": np.zeros(WORDS, "i8"), "reward": 0.0, "done": False}
        self.buffer = ReplayBuffer(
            ROWS,
            example=row,
            sampling=Sampling(SAMPLERS),
            episodes=Episodes(next=("payload",), n_step=2),
            limits=Limits(rate=limit, streams=8),
        )

    def processes(self) -> Iterator[tuple[str, bool, int]]:
        yield WRITE, False, self.options.writers
        yield SAMPLE, True, self.options.samplers
        yield UPDATE, True, self.options.updaters

    def begin(self, name: str, consumes: bool, *common: Any) -> Any:
        if name == WRITE:
            return self._process(write, *common, self.buffer)
        return self._process(draw, *common, self.buffer, name == UPDATE)

    def judge_messages(self) -> None:
        rows = dict.fromkeys((WRITE, SAMPLE, UPDATE), 0)
        for (name, _), done in zip(self.lives, self.board.lives["done"], strict=False):
            rows[name] += int(done)
        for name, total in rows.items():
            print(f"{name}: {total} rows by {sum(does == name for does, _ in self.lives)} processes")
        stats = self.buffer.stats()
        print(f"the buffer: {stats}")
        wrong = violated_by(self.buffer)
        if wrong:
            self.board.fail(f"the buffer is inconsistent at the end: {wrong}")
        self.sample_all()
        lost = 4 * len(self.lives)  # upper bound for the killed writers: rows without successors
        if not min(rows[WRITE], ROWS) // 2 - lost <= len(self.buffer) <= ROWS:
            self.board.fail(f"{len(self.buffer)} rows are left of {rows[WRITE]} that were added to {ROWS} places")

    def sample_all(self) -> None:
        """Samples until the rate limiter allows no more."""
        for sampler in list(SAMPLERS) * 50:
            try:
                check(self.buffer.sample(256, sampler=sampler, timeout=0))
            except queue.Empty:
                break

    def judge_arena(self) -> None:
        arena = self.buffer._replay.arena
        arena.stats()  # stats() runs recovery
        wrong = violated(arena)
        print(f"left: {arena.stats()}")
        if wrong:
            self.board.fail(f"the arena of the buffer is inconsistent at the end: {wrong}")
        self.buffer.close()
        gc.collect()


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--writers", type=int, default=4, help="writers that are killed (default 4)")
    parser.add_argument("--samplers", type=int, default=2, help="samplers that are killed (default 2)")
    parser.add_argument("--updaters", type=int, default=1, help="updaters that are killed (default 1)")
    return run(parser, ReplayChaos)


if __name__ == "__main__":
    sys.exit(main())
