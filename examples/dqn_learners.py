"""The learners of dqn_replay.py: a double DQN with three layers, in torch, or in NumPy if torch is missing."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

Weights = dict[str, Any]  # w0, b0, w1, ...

RATE, LAST_RATE, UPDATES_TO_LAST = 1e-3, 1e-4, 30_000
FOLLOWING = 0.01  # share of the first network that each update mixes into the second


def values(weights: Weights, obs: Any) -> Any:
    """Returns the value of each action."""
    layers = len(weights) // 2
    for layer in range(layers):
        obs = obs @ weights[f"w{layer}"] + weights[f"b{layer}"]
        if layer < layers - 1:
            obs = np.maximum(obs, 0)
    return obs


def learner_for(sizes: list[int]) -> Any:
    try:
        import torch  # noqa: F401
    except ImportError:
        return NumpyLearner(sizes)
    return TorchLearner(sizes)


def new_weights(sizes: list[int]) -> Weights:
    random = np.random.default_rng(1)
    made: Weights = {}
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        limit = 1 / np.sqrt(inputs)
        made[f"w{layer}"] = random.uniform(-limit, limit, (inputs, outputs)).astype(np.float32)
        made[f"b{layer}"] = np.zeros(outputs, np.float32)
    return made


def rate_at(update: int) -> float:
    return RATE + (LAST_RATE - RATE) * min(update / UPDATES_TO_LAST, 1)


class NumpyLearner:
    """A hand-written gradient of the Huber loss, with Adam (D. Kingma, J. Ba, 2015)."""

    def __init__(self, sizes: list[int]) -> None:
        self._net = new_weights(sizes)
        self._target = {name: weight.copy() for name, weight in self._net.items()}
        self._first = {name: np.zeros_like(weight) for name, weight in self._net.items()}
        self._second = {name: np.zeros_like(weight) for name, weight in self._net.items()}
        self._updates = 0

    def weights(self) -> Weights:
        return self._net

    def step(self, batch: Any) -> Any:
        """One update. How wrong each row was."""
        data, rows = batch.data, np.arange(len(batch))
        after = data["next"]["obs"]
        best = np.argmax(values(self._net, after), axis=1)
        goal = data["reward"] + batch.discount * values(self._target, after)[rows, best]
        inputs = [data["obs"]]
        layers = len(self._net) // 2
        for layer in range(layers):
            out = inputs[-1] @ self._net[f"w{layer}"] + self._net[f"b{layer}"]
            inputs.append(np.maximum(out, 0) if layer < layers - 1 else out)
        wrong = inputs[-1][rows, data["action"]] - goal
        slope = np.zeros_like(inputs[-1])
        slope[rows, data["action"]] = np.clip(wrong, -1, 1) * batch.weight / len(rows)
        self._updates += 1
        for layer in reversed(range(layers)):
            gradient = {f"w{layer}": inputs[layer].T @ slope, f"b{layer}": slope.sum(axis=0)}
            slope = slope @ self._net[f"w{layer}"].T * (inputs[layer] > 0)
            for name, each in gradient.items():
                self._adam(name, each)
        for name, weight in self._net.items():
            self._target[name] += FOLLOWING * (weight - self._target[name])
        return np.abs(wrong)

    def _adam(self, name: str, gradient: Any) -> None:
        self._first[name] += 0.1 * (gradient - self._first[name])
        self._second[name] += 0.001 * (gradient * gradient - self._second[name])
        first = self._first[name] / (1 - 0.9**self._updates)
        second = self._second[name] / (1 - 0.999**self._updates)
        self._net[name] = self._net[name] - np.float32(rate_at(self._updates)) * first / (np.sqrt(second) + 1e-8)


class TorchLearner:
    """The same learner, with torch's gradients."""

    def __init__(self, sizes: list[int]) -> None:
        import torch

        torch.set_num_threads(1)
        self._torch = torch
        self._net = {name: torch.tensor(weight, requires_grad=True) for name, weight in new_weights(sizes).items()}
        self._target = {name: weight.detach().clone() for name, weight in self._net.items()}
        self._adam = torch.optim.Adam(self._net.values(), RATE)
        self._updates = 0

    def weights(self) -> Weights:
        return {name: weight.detach().numpy().copy() for name, weight in self._net.items()}

    def _values(self, net: Any, obs: Any) -> Any:
        for layer in range(len(net) // 2):
            if layer:
                obs = obs.relu()
            obs = self._torch.addmm(net[f"b{layer}"], obs, net[f"w{layer}"])
        return obs

    def step(self, batch: Any) -> Any:
        """One update. How wrong each row was."""
        torch = self._torch
        data = batch.to("cpu").data
        with torch.no_grad():
            after = data["next"]["obs"]
            best = self._values(self._net, after).argmax(1, keepdim=True)
            worth = self._values(self._target, after).gather(1, best)[:, 0]
            goal = data["reward"] + torch.from_numpy(batch.discount) * worth
        found = self._values(self._net, data["obs"]).gather(1, data["action"][:, None])[:, 0]
        loss = torch.nn.functional.smooth_l1_loss(found, goal, reduction="none")
        self._updates += 1
        for group in self._adam.param_groups:
            group["lr"] = rate_at(self._updates)
        self._adam.zero_grad()
        (loss * torch.from_numpy(batch.weight)).mean().backward()
        self._adam.step()
        with torch.no_grad():
            for name, weight in self._net.items():
                self._target[name].lerp_(weight, FOLLOWING)
        return (found - goal).abs().detach().numpy()
