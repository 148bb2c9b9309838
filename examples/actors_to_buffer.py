"""The actors of actors_to_learner.py write their transitions into one replay buffer, and a learner samples it.

Every row contains a frame at a quarter of the rendered width and height. The buffer is prioritised and sums rewards
over three steps. The newest weights go back by a `Latest`, which actors may read at any time. `./dev demo` ends with
this program.

    python examples/actors_to_buffer.py [--seconds 60] [--actors 2]
"""

from __future__ import annotations

import os

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import collections
import multiprocessing
import queue
import random
import time

import numpy as np
from dqn_learners import NumpyLearner, values
from numpy_policy import PixelReader

import shmtree
from shmtree.replay import Episodes, Lifo, Limits, Prioritized, ReplayBuffer, Sampling

COARSE = 4  # keep every fourth pixel of every fourth line
EXAMPLE = {
    "obs": np.zeros(4, np.float32),
    "frame": np.zeros((400 // COARSE, 600 // COARSE, 3), np.uint8),
    "action": 0,
    "reward": 0.0,
    "terminated": False,
    "truncated": False,
}
ROWS, BATCH, FIRST_ROWS = 10_000, 64, 1_000
UPDATES_PER_VERSION, RANDOM_VERSIONS = 32, 40


def act(number: int, buffer: ReplayBuffer, latest: shmtree.Latest, scores: shmtree.Queue) -> None:
    """Runs one actor process until it is killed: steps and renders the environment, and adds the transitions."""
    import gymnasium

    dice = random.Random(number)
    environment = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    writer = buffer.writer()
    version, weights = latest.get(timeout=60)
    obs, _ = environment.reset(seed=number)
    score = 0.0
    while True:
        frame = environment.render()[::COARSE, ::COARSE]
        explores = dice.random() < max(0.02, 1 - version / RANDOM_VERSIONS)
        action = dice.randrange(2) if explores else int(np.argmax(values(weights, obs)))
        after, reward, terminated, truncated, _ = environment.step(action)
        ends = {"terminated": terminated, "truncated": truncated}
        row = {"obs": obs, "frame": frame, "action": action, "reward": float(reward), **ends}
        writer.add(row, final={"obs": after})  # `final` is used if the episode ends here
        obs, score = after, score + float(reward)
        if terminated or truncated:
            scores.put(score)
            obs, _ = environment.reset()
            score = 0.0
        if latest.version != version:
            version, weights = latest.get()
            writer.version = version


def collect(scores: shmtree.Queue, recent: collections.deque[float]) -> None:
    while True:
        try:
            recent.append(scores.get_nowait())
        except queue.Empty:
            return


def tell(
    buffer: ReplayBuffer, updates: int, seconds: float, recent: collections.deque[float], reader: PixelReader
) -> None:
    newest = buffer.sample(1, sampler="newest").index[0]
    drawn = BATCH * updates
    print(
        f"{'replay buffer':>21} {(newest + 1) / seconds:5.0f} rows added/s, {drawn / seconds:6.0f} drawn/s"
        f" {drawn * buffer.stats()['row_bytes'] / seconds / 1e9:5.2f} GB/s  mean return {np.mean(recent):5.1f}"
        f"  cart read from pixels within {reader.error:.2f} m",
        flush=True,
    )


def run(actors: int, seconds: float) -> None:
    """Prints the traffic of the buffer and the scores of the actors, every few seconds and at the end."""
    context = multiprocessing.get_context("spawn")
    samplers = {"by priority": Prioritized(), "newest": Lifo()}
    buffer = ReplayBuffer(
        ROWS,
        example=EXAMPLE,
        sampling=Sampling(samplers),
        episodes=Episodes(next=("obs",), n_step=3),
        limits=Limits(streams=actors),
    )
    latest, scores = shmtree.Latest(), shmtree.Queue()
    learner, reader = NumpyLearner([4, 128, 128, 2]), PixelReader(COARSE)
    latest.publish(learner.weights())
    crew = [context.Process(target=act, args=(i, buffer, latest, scores), daemon=True) for i in range(actors)]
    for process in crew:
        process.start()
    buffer.sample(1, timeout=120)  # waits for the first row of the actors
    recent: collections.deque[float] = collections.deque([0.0], maxlen=30)
    began, told, updates = time.monotonic(), 0.0, 0
    while (took := time.monotonic() - began) < seconds:
        collect(scores, recent)
        if took > told + 5:
            told = took
            tell(buffer, updates, took, recent, reader)
        if len(buffer) < FIRST_ROWS:
            time.sleep(0.01)
            continue
        batch = buffer.sample(BATCH)
        buffer.update_priorities(batch.index, learner.step(batch))
        reader.learn(batch.data["frame"][0], float(batch.data["obs"][0, 0]))
        updates += 1
        if updates % UPDATES_PER_VERSION == 0:
            latest.publish(learner.weights())
    tell(buffer, updates, took, recent, reader)
    for process in crew:
        process.kill()
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, default=max(2, os.cpu_count() or 2))
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    run(options.actors, options.seconds)


if __name__ == "__main__":
    main()
