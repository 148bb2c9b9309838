"""Workers play CartPole and send rollouts to a learner, which publishes its newest weights: PPO.

Rollouts go through one pair, and weights through a `Latest`. A worker reads the newest weights before each rollout, and
the rollout contains their version. The learner drops, and counts, rollouts that are older than the allowed lag. It uses
torch, or NumPy if torch is missing.

    python examples/ppo_workers.py [--updates 60] [--workers 3] [--lag 1]
"""

from __future__ import annotations

import os

os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # set before NumPy is imported: threads do not pay for small matrices
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import collections
import multiprocessing
import time
from typing import Any

import numpy as np
from dqn_replay import CartPole
from ppo_learners import new_learner, new_player

import shmtree

STEPS, ROLLOUTS = 256, 4  # steps per rollout, and rollouts per update


def work(number: int, latest: shmtree.Latest, rollouts: shmtree.Sender[Any]) -> None:
    """Plays rollouts with the newest weights until the learner closes the channel."""
    environment, player = CartPole(number), new_player(number)
    obs, version, total = environment.reset(), 0, 0.0
    while True:
        if latest.version > version or version == 0:
            version, weights = latest.get(newer_than=version, timeout=60)
            player.load(weights)
        rollout = new_rollout(version)
        for row in range(STEPS):
            action, log_prob = player.choose(obs)
            after, reward, fell, late = environment.step(action)
            total += reward
            for name, each in zip(NAMES, (obs, after, action, log_prob, reward, fell, late), strict=True):
                rollout[name][row] = each
            if fell or late:
                rollout["returns"].append(total)
                after, total = environment.reset(), 0.0
            obs = after
        try:
            rollouts.put(rollout)
        except shmtree.ChannelClosed:
            return


NAMES = ("obs", "next_obs", "action", "log_prob", "reward", "terminated", "truncated")


def new_rollout(version: int) -> dict[str, Any]:
    return {
        "version": version,
        "returns": [],  # returns of the episodes that ended in this rollout
        "obs": np.empty((STEPS, 4), np.float32),
        "next_obs": np.empty((STEPS, 4), np.float32),
        "action": np.empty(STEPS, np.int64),
        "log_prob": np.empty(STEPS, np.float32),
        "reward": np.empty(STEPS, np.float32),
        "terminated": np.empty(STEPS, bool),
        "truncated": np.empty(STEPS, bool),
    }


class Rollouts:
    """The rollouts of the workers, except outdated ones."""

    def __init__(self, receiver: shmtree.Receiver[Any], lag: int) -> None:
        self._receiver, self._lag = receiver, lag
        self.used = self.dropped = 0
        self.returns: collections.deque[float] = collections.deque(maxlen=50)

    def take(self, count: int, version: int) -> list[Any]:
        """Takes `count` rollouts for an update of `version`."""
        taken: list[Any] = []
        while len(taken) < count:
            rollout = self._receiver.get(timeout=60)
            if version - rollout["version"] > self._lag:
                self.dropped += 1
                continue
            self.returns.extend(rollout["returns"])
            taken.append(rollout)
        self.used += count
        return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--lag", type=int, default=1, help="versions that a rollout may be behind")
    given = parser.parse_args()

    latest = shmtree.Latest()
    sender, receiver = shmtree.create_pair(capacity=given.workers)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=work, args=(number, latest, sender)) for number in range(given.workers)]
    for worker in workers:
        worker.start()
    sender.close()

    learner, rollouts, began = new_learner(ROLLOUTS * STEPS), Rollouts(receiver, given.lag), time.monotonic()
    version = learner.publish(latest)
    while version <= given.updates:
        learner.learn(rollouts.take(ROLLOUTS, version))
        version = learner.publish(latest)
        if version % 10 == 0 and rollouts.returns:
            mean = sum(rollouts.returns) / len(rollouts.returns)
            print(f"version {version}: mean return {mean:.0f}, {rollouts.dropped} rollouts dropped", flush=True)
    seconds = time.monotonic() - began
    receiver.close()
    for worker in workers:
        worker.join()
    print(f"{rollouts.used} rollouts used, {rollouts.dropped} too old, {rollouts.used * STEPS / seconds:.0f} steps/s")


if __name__ == "__main__":
    main()
