"""Several actors play CartPole into one replay buffer, and a learner trains a network on samples of it.

The buffer is prioritised and sums rewards over three steps. The newest weights go back to the actors by a `Latest`. The
program kills actors and starts new ones, without a message to any other process. The learner uses torch, or NumPy if
torch is missing. By Gymnasium's definition, the task is solved at a mean return of 475 over the last 100 greedy
episodes.

    python examples/dqn_replay.py [--minutes 5] [--actors 3] [--kill-every 5] [--curve dqn.png]
"""

from __future__ import annotations

import os

os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # set before NumPy is imported: threads do not pay for small matrices
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import collections
import math
import multiprocessing
import queue
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
from dqn_learners import Weights, learner_for, values

import shmtree
from shmtree.replay import Episodes, Limits, Prioritized, ReplayBuffer, Sampling

EXAMPLE = {"obs": np.zeros(4, np.float32), "action": 0, "reward": 0.0, "terminated": False, "truncated": False}
GAMMA, STEPS_SUMMED = 0.99, 3
BATCH = 64
UPDATES_PER_VERSION, STEPS_PER_VERSION = 64, 128  # updates of the learner, and steps of all actors together
RANDOM_VERSIONS = 60  # versions over which actors become less random
SOLVED, EPISODES = 475.0, 100


class CartPole:
    """A pole on a cart: CartPole-v1 of Gymnasium (A. Barto, R. Sutton, C. Anderson, 1983)."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def reset(self) -> Any:
        self._state = [self._random.uniform(-0.05, 0.05) for _ in range(4)]
        self._steps = 0
        return np.array(self._state, np.float32)

    def step(self, action: int) -> tuple[Any, float, bool, bool]:
        """Returns the observation, the reward, whether the pole fell, and whether time is over."""
        x, speed, angle, turning = self._state
        force = 10.0 if action == 1 else -10.0
        sine, cosine = math.sin(angle), math.cos(angle)
        push = (force + 0.05 * turning * turning * sine) / 1.1
        turns = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine * cosine / 1.1))
        moves = push - 0.05 * turns * cosine / 1.1
        self._state = [x + 0.02 * speed, speed + 0.02 * moves, angle + 0.02 * turning, turning + 0.02 * turns]
        self._steps += 1
        fell = abs(self._state[0]) > 2.4 or abs(self._state[2]) > 12 * 2 * math.pi / 360
        return np.array(self._state, np.float32), 1.0, fell, not fell and self._steps >= 500


def greedy(weights: Weights, obs: Any) -> int:
    return int(np.argmax(values(weights, obs)))


def act(number: int, buffer: ReplayBuffer, latest: shmtree.Latest, steps_per_version: int, exploring: float) -> None:
    """Runs an actor until it is killed. Plays `steps_per_version` steps with each version of the weights."""
    dice = random.Random(number)
    environment, writer = CartPole(number), buffer.writer()
    obs, version = environment.reset(), 0
    while True:
        version, weights = latest.get(newer_than=version, timeout=60)
        writer.version = version
        chance = max(exploring, 1 - version / RANDOM_VERSIONS)
        for _ in range(steps_per_version):
            action = dice.randrange(2) if dice.random() < chance else greedy(weights, obs)
            after, reward, fell, late = environment.step(action)
            row = {"obs": obs, "action": action, "reward": reward, "terminated": fell, "truncated": late}
            writer.add(row, final={"obs": after})  # `final` is used if the episode ends here
            if fell or late:
                after = environment.reset()
            obs = after


def judge(latest: shmtree.Latest, returns: Any) -> None:
    """Plays an episode with each version that it receives, and reports the return."""
    environment, version = CartPole(12345), 0
    while True:
        version, weights = latest.get(newer_than=version, timeout=60)
        obs, total, over = environment.reset(), 0.0, False
        while not over:
            obs, reward, fell, late = environment.step(greedy(weights, obs))
            total, over = total + reward, fell or late
        returns.put((version, total))


class Crew:
    """The actors and their replacements."""

    def __init__(self, size: int, buffer: ReplayBuffer, latest: shmtree.Latest) -> None:
        self._context = multiprocessing.get_context("fork")
        self._started = self.killed = 0
        self._arguments = (buffer, latest, STEPS_PER_VERSION // size)
        self._size = size
        self.actors = [self._new() for _ in range(size)]

    def _new(self) -> Any:
        exploring = (0.05, 0.1, 0.3)[self._started % 3]
        actor = self._context.Process(target=act, args=(self._started, *self._arguments, exploring), daemon=True)
        actor.start()
        self._started += 1
        return actor

    def kill_one(self) -> None:
        random.choice(self.actors).kill()
        self.killed += 1

    def replace_the_dead(self) -> None:
        for place, actor in enumerate(self.actors):
            if not actor.is_alive():
                actor.join()
                self.actors[place] = self._new()

    def end(self) -> None:
        for actor in self.actors:
            actor.kill()
            actor.join()


def newest_returns(returns: Any, curve: list[tuple[int, float]]) -> None:
    while True:
        try:
            curve.append(returns.get_nowait())
        except queue.Empty:
            return


def train(minutes: float, actors: int, kill_every: float) -> tuple[list[tuple[int, float]], bool]:
    """Returns the return of each judged version, and whether the last 100 solve the task."""
    buffer = ReplayBuffer(
        50_000,
        example=EXAMPLE,
        sampling=Sampling(Prioritized()),
        episodes=Episodes(next=("obs",), n_step=STEPS_SUMMED, gamma=GAMMA),
        limits=Limits(streams=actors),
    )
    latest, returns = shmtree.Latest(), shmtree.Queue()
    learner = learner_for([4, 128, 128, 2])
    latest.publish(learner.weights())
    crew = Crew(actors, buffer, latest)
    judging = multiprocessing.get_context("fork").Process(target=judge, args=(latest, returns), daemon=True)
    judging.start()
    curve: list[tuple[int, float]] = []
    recent: collections.deque[float] = collections.deque(maxlen=EPISODES)
    end, last_kill = time.monotonic() + 60 * minutes, time.monotonic()
    while len(buffer) < 1000:
        time.sleep(0.01)
        latest.publish(learner.weights())
    while time.monotonic() < end and not (len(recent) == EPISODES and sum(recent) >= SOLVED * EPISODES):
        for _ in range(UPDATES_PER_VERSION):
            batch = buffer.sample(BATCH)
            buffer.update_priorities(batch.index, learner.step(batch))
        version = latest.publish(learner.weights())
        judged = len(curve)
        newest_returns(returns, curve)
        recent.extend(total for _, total in curve[judged:])
        if time.monotonic() > last_kill + kill_every:
            crew.kill_one()
            last_kill = time.monotonic()
        crew.replace_the_dead()
        if version % 50 == 0 and recent:
            print(f"version {version}: mean return {sum(recent) / len(recent):.0f}, {len(buffer)} rows", flush=True)
    crew.end()
    judging.kill()
    judging.join()
    solved = len(recent) == EPISODES and sum(recent) >= SOLVED * EPISODES
    outcome = "solved" if solved else "not solved"
    print(f"{outcome}: {latest.version} versions, {crew.killed} actors killed and replaced")
    return curve, solved


def draw(curve: list[tuple[int, float]], path: Path) -> None:
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no curve was drawn, because matplotlib is not installed")
        return
    versions, totals = zip(*curve, strict=True)
    means = [np.mean(totals[max(0, at - EPISODES + 1) : at + 1]) for at in range(len(totals))]
    figure, axes = pyplot.subplots(figsize=(8, 4))
    axes.plot(versions, totals, ".", color="0.7", markersize=2, label="an episode")
    axes.plot(versions, means, label=f"mean of the last {EPISODES}")
    axes.axhline(SOLVED, linestyle=":", color="0.3")
    axes.set_xlabel("version of the weights")
    axes.set_ylabel("return")
    axes.legend()
    figure.savefig(path, dpi=100, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="stop after this time if the task is not solved")
    parser.add_argument("--actors", type=int, default=3)
    parser.add_argument("--kill-every", type=float, default=5.0, help="seconds between two actors that are killed")
    parser.add_argument("--curve", type=Path, help="PNG file for the learning curve")
    given = parser.parse_args()
    began = time.monotonic()
    curve, _ = train(given.minutes, given.actors, given.kill_every)
    print(f"{time.monotonic() - began:.0f} s")
    if given.curve and curve:
        draw(curve, given.curve)


if __name__ == "__main__":
    main()
