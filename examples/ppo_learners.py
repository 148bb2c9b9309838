"""The learners of ppo_workers.py: clipped policy gradients (PPO), in torch, or in NumPy if torch is missing.

A learner makes versions of its weights for a `Latest`, and a player plays with them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy_policy

import shmtree

try:
    import torch

    import shmtree.torch
except ImportError:
    torch = None  # type: ignore[assignment]

INPUTS, ACTIONS, WIDTH = 4, 2, 64
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2
ROUNDS, ROWS = 8, 128  # passes over the rollouts, and rows per step


class NumpyPlayer:
    """Plays with the shared version itself, without a copy."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def load(self, value: Any) -> None:
        self._weights = value

    def choose(self, obs: Any) -> tuple[int, float]:
        return numpy_policy.choose(self._weights, obs, self._random)


class NumpyLearner:
    def __init__(self, rows: int) -> None:
        random = np.random.default_rng(1)
        self._trainer = numpy_policy.Trainer(numpy_policy.new_weights(random, INPUTS, ACTIONS), 1, random, rows)

    def publish(self, latest: shmtree.Latest) -> int:
        return latest.publish(self._trainer.weights)

    def learn(self, rollouts: list[Any]) -> None:
        names = ("obs", "action", "log_prob", "reward", "next_obs", "terminated", "truncated")
        for rollout in rollouts:
            for row in zip(*(rollout[name] for name in names), strict=True):
                self._trainer.add(0, dict(zip(names, row, strict=True)))


class TorchPlayer:
    """Copies each version in place into its own module."""

    def __init__(self, seed: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self._policy = new_policy()

    def load(self, value: Any) -> None:
        shmtree.torch.load_into(self._policy, value)

    def choose(self, obs: Any) -> tuple[int, float]:
        with torch.no_grad():
            chances = self._policy["actor"](torch.from_numpy(obs)).log_softmax(0)
            action = int(torch.rand(()) > chances[0].exp())
        return action, float(chances[action])


class TorchLearner:
    def __init__(self, rows: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(1)
        self._policy = new_policy()
        self._adam = torch.optim.Adam(self._policy.parameters(), 1e-3)

    def publish(self, latest: shmtree.Latest) -> int:
        return shmtree.torch.publish(latest, self._policy)

    def learn(self, rollouts: list[Any]) -> None:
        parts = [self._judged(rollout) for rollout in rollouts]
        obs, action, log_prob, gain, goal = (torch.cat(column) for column in zip(*parts, strict=True))
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        for _ in range(ROUNDS):
            for rows in torch.randperm(len(obs)).split(ROWS):
                logs = self._policy["actor"](obs[rows]).log_softmax(1)
                ratio = (logs.gather(1, action[rows, None])[:, 0] - log_prob[rows]).exp()
                clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
                surprise = -(logs * logs.exp()).sum(1).mean()
                worth = self._policy["critic"](obs[rows])[:, 0]
                loss = -torch.minimum(ratio * gain[rows], clipped * gain[rows]).mean()
                self._adam.zero_grad()
                (loss + 0.5 * (worth - goal[rows]).square().mean() - 0.01 * surprise).backward()
                torch.nn.utils.clip_grad_norm_(self._policy.parameters(), 0.5)
                self._adam.step()

    def _judged(self, rollout: Any) -> tuple[Any, ...]:
        """Returns the rows with the advantage of each action over the critic's value (J. Schulman and others, 2016)."""
        obs, after = torch.tensor(rollout["obs"]), torch.tensor(rollout["next_obs"])
        reward, terminated = torch.tensor(rollout["reward"]), torch.tensor(rollout["terminated"])
        over = terminated | torch.tensor(rollout["truncated"])
        with torch.no_grad():
            worth = self._policy["critic"](obs)[:, 0]
            surprise = reward + GAMMA * ~terminated * self._policy["critic"](after)[:, 0] - worth
        gain, running = torch.zeros_like(worth), 0.0
        for row in reversed(range(len(worth))):
            running = float(surprise[row]) + GAMMA * LAMBDA * (0.0 if over[row] else running)
            gain[row] = running
        return obs, torch.tensor(rollout["action"]), torch.tensor(rollout["log_prob"]), gain, gain + worth


def new_policy() -> Any:
    def net(outputs: int) -> Any:
        return torch.nn.Sequential(torch.nn.Linear(INPUTS, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, outputs))

    return torch.nn.ModuleDict({"actor": net(ACTIONS), "critic": net(1)})


def new_player(seed: int) -> Any:
    return NumpyPlayer(seed) if torch is None else TorchPlayer(seed)


def new_learner(rows: int) -> Any:
    """Returns a learner for `rows` rows at a time."""
    return NumpyLearner(rows) if torch is None else TorchLearner(rows)
