"""A policy small enough to train in NumPy: two one-layer networks and clipped policy gradients (PPO)."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Weights = dict[str, dict[str, Array]]


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def hidden(net: dict[str, Array], obs: Array) -> Array:
    return np.tanh(obs @ net["w1"] + net["b1"])


def output(net: dict[str, Array], activations: Array) -> Array:
    return activations @ net["w2"] + net["b2"]


def new_weights(rng: np.random.Generator, inputs: int, actions: int, width: int = 64) -> Weights:
    def net(outputs: int, scale: float) -> dict[str, Array]:
        return {
            "w1": rng.normal(0, 1 / np.sqrt(inputs), (inputs, width)).astype(np.float32),
            "b1": np.zeros(width, np.float32),
            "w2": (scale * rng.normal(0, 1 / np.sqrt(width), (width, outputs))).astype(np.float32),
            "b2": np.zeros(outputs, np.float32),
        }

    return {"actor": net(actions, 0.01), "critic": net(1, 1.0)}


def choose(weights: Weights, obs: Array, rng: np.random.Generator) -> tuple[int, float]:
    """Returns an action sampled from the policy, and the logarithm of its probability."""
    chances = softmax(output(weights["actor"], hidden(weights["actor"], obs)))
    action = int(rng.random() > chances[0]) if len(chances) == 2 else int(rng.choice(len(chances), p=chances))
    return action, float(np.log(chances[action] + 1e-9))


class Trainer:
    """Collects transitions per actor, and improves the weights when it has `batch` of them."""

    def __init__(self, weights: Weights, actors: int, rng: np.random.Generator, batch: int = 1024) -> None:
        self.weights = weights
        self.updates = 0
        self._rng = rng
        self._batch = batch
        self._rollouts: list[list[dict[str, Any]]] = [[] for _ in range(actors)]
        self._moments = {
            name: {key: (np.zeros_like(a), np.zeros_like(a)) for key, a in net.items()} for name, net in weights.items()
        }
        self._adam_steps = 0

    def add(self, actor: int, transition: dict[str, Any]) -> bool:
        """Adds a transition. Returns true if it completed a batch, so that the weights are new."""
        self._rollouts[actor].append(transition)
        if sum(map(len, self._rollouts)) < self._batch:
            return False
        parts = [self._advantages(rollout) for rollout in self._rollouts if rollout]
        obs, actions, log_probs, advantages, targets = (np.concatenate(column) for column in zip(*parts))
        self._rollouts = [[] for _ in self._rollouts]
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        for _ in range(8):
            for part in np.array_split(self._rng.permutation(len(obs)), len(obs) // 128):
                self._improve(obs[part], actions[part], log_probs[part], advantages[part], targets[part])
        self.updates += 1
        return True

    def _value(self, obs: Array) -> Array:
        return output(self.weights["critic"], hidden(self.weights["critic"], obs))[:, 0]

    def _advantages(self, rollout: list[dict[str, Any]], gamma: float = 0.99, lam: float = 0.95) -> tuple[Array, ...]:
        """Returns generalised advantage estimates of one actor's steps. A truncated episode continues with its
        value."""
        obs = np.array([t["obs"] for t in rollout], np.float32)
        rewards = np.array([t["reward"] for t in rollout], np.float32)
        terminated = np.array([t["terminated"] for t in rollout])
        ended = terminated | np.array([t["truncated"] for t in rollout])
        values = self._value(obs)
        following = self._value(np.array([t["next_obs"] for t in rollout], np.float32))
        surprise = rewards + gamma * np.where(terminated, 0, following) - values
        advantages = np.zeros_like(values)
        running = 0.0
        for i in reversed(range(len(rollout))):
            running = surprise[i] + gamma * lam * (0.0 if ended[i] else running)
            advantages[i] = running
        actions = np.array([t["action"] for t in rollout])
        log_probs = np.array([t["log_prob"] for t in rollout], np.float32)
        return obs, actions, log_probs, advantages, advantages + values

    def _improve(self, obs: Array, actions: Array, old: Array, advantages: Array, targets: Array) -> None:
        rows = np.arange(len(obs))
        actor = self.weights["actor"]
        activations = hidden(actor, obs)
        chances = softmax(output(actor, activations))
        logs = np.log(chances + 1e-9)
        ratio = np.exp(logs[rows, actions] - old)
        # The gradient of min(ratio * A, clip(ratio) * A) is that of ratio * A, or zero where the clip is active.
        active = np.where(advantages > 0, ratio < 1.2, ratio > 0.8)
        taken = np.zeros_like(chances)
        taken[rows, actions] = 1
        entropy = -(chances * logs).sum(axis=1, keepdims=True)
        slope = -(active * ratio * advantages)[:, None] * (taken - chances) + 0.01 * chances * (logs + entropy)
        self._descend("actor", obs, activations, slope / len(obs), rate=1e-3)

        critic = self.weights["critic"]
        activations = hidden(critic, obs)
        slope = (output(critic, activations)[:, 0] - targets)[:, None]
        self._descend("critic", obs, activations, slope / len(obs), rate=3e-3)

    def _descend(self, name: str, obs: Array, activations: Array, slope: Array, rate: float) -> None:
        """Makes one step of Adam on a network, from the slope of the loss at its outputs."""
        net = self.weights[name]
        inner = (slope @ net["w2"].T) * (1 - activations**2)
        gradients = {"w1": obs.T @ inner, "b1": inner.sum(0), "w2": activations.T @ slope, "b2": slope.sum(0)}
        self._adam_steps += 1
        correction = np.sqrt(1 - 0.999**self._adam_steps) / (1 - 0.9**self._adam_steps)
        for key, gradient in gradients.items():
            first, second = self._moments[name][key]
            first += 0.1 * (gradient - first)
            second += 0.001 * (gradient**2 - second)
            net[key] -= (rate * correction * first / (np.sqrt(second) + 1e-8)).astype(np.float32)


class PixelReader:
    """Learns online to read the cart's position from a rendered frame: a linear model on coarse dark pixels.

    `coarse`: rendered pixels per pixel of the frame, in each direction; 1, 2, 4 or 8.
    """

    def __init__(self, coarse: int = 1) -> None:
        self._rows = slice(150 // coarse, 310 // coarse, 8 // coarse)
        self._columns = slice(None, None, 8 // coarse)
        self._model = np.zeros(2 + 20 * 75, np.float32)
        self.error = 0.0  # running mean of |position read - true position|, in the environment's metres

    def learn(self, frame: Array, position: float) -> None:
        dark = 1 - frame[self._rows, self._columns, 0].astype(np.float32) / 255
        features = np.concatenate([(1.0, 1.0), dark.ravel()], dtype=np.float32)
        wrong = position - float(features @ self._model)
        self._model += 0.5 * wrong / float(features @ features) * features
        self.error += 0.005 * (abs(wrong) - self.error)
