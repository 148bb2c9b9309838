"""Environments with any spaces and samples as observations, for tests of vector environments."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Letters(gymnasium.Space[str]):
    """A space that Gymnasium does not know."""

    def __init__(self) -> None:
        super().__init__(None, None)

    def sample(self, *_: Any, **__: Any) -> str:
        return "abc"[int(self.np_random.integers(3))]

    def contains(self, x: Any) -> bool:
        return x in {"a", "b", "c"}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Letters)

    __hash__ = None  # type: ignore[assignment]


BOX = spaces.Box(-1, 1, (3,), np.float32)

#: Observation spaces by name.
OBSERVATIONS: dict[str, Any] = {
    "box": BOX,
    "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
    "half": spaces.Box(-1, 1, (2, 1), np.float16),
    "scalar": spaces.Box(-1, 1, (), np.float64),
    "discrete": spaces.Discrete(5, start=2),
    "binary": spaces.MultiBinary((2, 3)),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "dict": spaces.Dict({"b": BOX, "a": spaces.Dict({"x": spaces.Discrete(3), "y": spaces.MultiBinary(2)})}),
    "dict_of_arrays": spaces.Dict({"x": BOX, "n": spaces.Discrete(3)}),
    "tuple": spaces.Tuple((BOX, spaces.Tuple((spaces.Discrete(3),)), spaces.Dict({"z": BOX}))),
    "text": spaces.Text(5),
    "sequence": spaces.Sequence(spaces.Discrete(4)),
    "stacked": spaces.Sequence(BOX, stack=True),
    "graph": spaces.Graph(BOX, spaces.Discrete(3)),
    "one_of": spaces.OneOf((BOX, spaces.Discrete(3))),
    "custom": Letters(),
    "mixed": spaces.Dict({"image": BOX, "text": spaces.Text(4), "more": spaces.Tuple((Letters(), BOX))}),
}
#: Action spaces by name.
ACTIONS: dict[str, Any] = {
    name: OBSERVATIONS[name] for name in ("box", "discrete", "binary", "multi_discrete", "dict", "tuple", "text")
} | {"mixed": spaces.Dict({"force": BOX, "text": spaces.Text(4)})}


class Sampled(gymnasium.Env[Any, Any]):
    """Its observations are samples of a space. Episode k of environment i ends after ``1 + (i + k) % 4`` steps.

    Rewards depend on the actions since the last reset, which it keeps.
    """

    def __init__(self, number: int, observation: str = "box", action: str = "discrete") -> None:
        self.number = number
        # Copies, since spaces have random generators.
        self.observation_space = type(self)._copy(OBSERVATIONS[observation])
        self.action_space = type(self)._copy(ACTIONS[action])
        self.episode, self.at = -1, 0
        self.actions: list[Any] = []
        self.bonus = 0.5

    @staticmethod
    def _copy(space: Any) -> Any:
        import copy

        return copy.deepcopy(space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.observation_space.seed(seed)
        self.episode, self.at, self.actions = self.episode + 1, 0, []
        return self.observation_space.sample(), {"seed": -1 if seed is None else seed, "options": str(options)}

    def step(self, action: Any) -> Any:
        self.at += 1
        self.actions.append(action)
        ends = self.at > (self.number + self.episode) % 4
        reward = self.bonus + len(str(self.actions))  # differs if a kept action has changed
        info: dict[str, Any] = {}
        if self.at % 2:
            info = {"at": self.at, "mean": np.float32(self.at / 3), "nested": {"row": np.arange(3) * self.at}}
        if self.number == 1:
            info["text"] = f"step {self.at} with {type(action).__name__}"
        return self.observation_space.sample(), reward, ends and bool(self.number % 2), ends, info

    def last_action(self) -> Any:
        return self.actions[-1] if self.actions else None

    def render(self) -> Any:
        return np.full((2, 2, 3), 10 * self.number + self.at, np.uint8)


def makers(count: int, observation: str = "box", action: str = "discrete") -> list[Any]:
    return [lambda number=number: Sampled(number, observation, action) for number in range(count)]


def same(one: Any, other: Any) -> bool:
    """Returns True if two results have the same structure, types and bits."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        if one.dtype == object:
            return all(map(same, one.ravel().tolist(), other.ravel().tolist()))
        return one.tobytes() == other.tobytes()
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)
