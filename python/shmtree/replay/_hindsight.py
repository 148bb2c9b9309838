"""Hindsight experience replay: the goals of sampled rows are replaced by goals that their episodes achieved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .. import _core
from .._ipc.arguments import one_of
from . import _rows
from ._numbers import not_negative
from ._spec import Spec, key_to_core

Array = np.ndarray[Any, Any]
Strategy = Literal["future", "final", "episode"]

_STRATEGIES = ("future", "final", "episode")  # in the order of the core's numbers: src/replay/buffer/hindsight.h


@dataclass(frozen=True)
class Hindsight:
    """Replaces the desired goals of some sampled rows by goals that their episodes achieved (HER).

    The method is that of M. Andrychowicz et al., "Hindsight Experience Replay", NeurIPS 2017. A row is relabelled with
    the probability k / (k + 1). Its desired goal, in ``data`` and in ``data["next"]``, becomes the goal that a row of
    its episode achieved, and `reward` computes its reward. The goal that a row achieved is the achieved goal of the
    observation after it. Therefore the buffer needs `Episodes.next` with the key of the achieved goal.

    In an unfinished episode, only rows that can be sampled give goals. Rows that were overwritten give none. A sampled
    row keeps its goal if no goal could be read.

    Attributes:
        reward: Function ``reward(achieved, desired, rows)``, such as ``compute_reward`` of a Gymnasium environment with
            goals. `achieved` and `desired` are arrays of shape (m, ...) with the goals of the m relabelled rows. `rows`
            is a copy of their `Batch.data`, with the new goals. The function returns the m rewards, or a pair of the
            rewards and a mask of shape (m,) that is true where the goal ends the episode. The mask sets
            `Batch.discount`, and ``terminated`` (or ``done``) in the data. Without a mask, these stay as they are.
        strategy: Rows of the episode from which the goal is chosen, all with the same probability: "future" for the row
            itself and those after it, "final" for the last one, "episode" for all.
        k: Number of relabelled rows for each row that keeps its goal, on average.
        achieved: Key of the achieved goal in a row, or a path such as "obs/achieved_goal".
        desired: Key or path of the desired goal, which has the same dtype and shape.

    Raises:
        TypeError: `reward` is not callable, or `k` is not a number.
        ValueError: `strategy` or `k` is outside its limits.

    Example::

        her = Hindsight(lambda achieved, desired, _: -(np.abs(achieved - desired).max(1) > 0.05).astype(np.float32))
        batch = buffer.sample(256, hindsight=her)
    """

    reward: Callable[[Any, Any, Any], Any]
    strategy: Strategy = "future"
    k: float = 4.0
    achieved: str = "obs/achieved_goal"
    desired: str = "obs/desired_goal"

    def __post_init__(self) -> None:
        if not callable(self.reward):
            raise TypeError(
                f"reward is {self.reward!r}; it must be a function of achieved goals, desired goals and rows"
            )
        one_of("strategy", self.strategy, *_STRATEGIES)
        not_negative("k", self.k)

    def _core(self) -> tuple[int, float, str | bytes, str | bytes]:
        """Returns the options in the core's form."""
        strategy = _STRATEGIES.index(self.strategy)
        return strategy, float(self.k), key_to_core(self.achieved), key_to_core(self.desired)


def checked(given: Any) -> Hindsight:
    """Returns the argument of `ReplayBuffer.sample`."""
    if not isinstance(given, Hindsight):
        raise TypeError(f"hindsight is {given!r}; pass hindsight=Hindsight(reward), or None")
    return given


def set_rewards(how: Hindsight, spec: Spec, form: Any, data: Any, drawn: _core.ReplayBatch) -> None:
    """Computes the rewards of the relabelled rows. `form` is the structure of `data`."""
    relabelled = np.flatnonzero(drawn.goals() >= 0)
    if not len(relabelled):
        return
    leaves = [_numpy(leaf)[relabelled] for leaf in _rows.flatten("data", form, data)]
    desired, achieved = (spec.core.leaf(name, key_to_core(getattr(how, name))) for name in ("desired", "achieved"))
    next = len(spec.rows.leaves) + spec.core.next.index(achieved)
    given = how.reward(leaves[next], leaves[desired], _rows.map_leaves(form, leaves))
    n = len(relabelled)
    if isinstance(given, tuple) and len(given) != 2:
        raise ValueError(f"the function of Hindsight returned a tuple of {len(given)}; it must be (rewards, mask)")
    reward, ends = given if isinstance(given, tuple) else (given, None)
    drawn.set_rewards(
        _one_each("reward", reward, n, np.float64, "biuf"),
        ends if ends is None else _one_each("mask", ends, n, bool, "b"),
    )


def _numpy(leaf: Any) -> Array:
    return leaf if isinstance(leaf, np.ndarray) else leaf.detach().numpy()


def _one_each(what: str, given: Any, n: int, dtype: Any, kinds: str) -> Array:
    array = np.asarray(given)
    if array.shape != (n,) or array.dtype.kind not in kinds:
        text = f"the function of Hindsight returned a {what} of shape {array.shape} and dtype {array.dtype}"
        each = "bool" if kinds == "b" else "number"
        raise ValueError(f"{text}; it must have one {each} for each of the {n} relabelled rows")
    return np.ascontiguousarray(array, dtype)
