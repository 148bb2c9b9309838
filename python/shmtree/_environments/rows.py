"""The batch of a vector environment in shared memory: a row per environment in each of several columns.

There are columns for rewards, terminations and truncations, and for the leaves of the observation space and the action
space that have a fixed shape and dtype. Text, sequences, graphs and custom spaces have no column: their values are sent
in messages.

A worker writes only the rows of its environments, and only between a command and its answer. The main process reads
and writes rows only outside of that time. So the messages order all accesses, and the rows need no lock.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from .._ipc.shared_array import SharedArray
from .._process import arenas

_FIXED = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)
_ALIGNMENT = 64  # bytes: a column begins on a cache line of its own

Path = tuple[Any, ...]
Array = np.ndarray[Any, Any]


def _leaves(space: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yields the path and the space of each leaf."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        yield path, space
        return
    for key, inner in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
        yield from _leaves(inner, (*path, key))


def _build(space: Any, values: Iterator[Any]) -> Any:
    """Returns a structure like a sample of the space, with one value for each leaf."""
    if isinstance(space, spaces.Dict):
        return {key: _build(inner, values) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_build(inner, values) for inner in space.spaces)
    return next(values)


def _at(path: Path, value: Any) -> Any:
    for key in path:
        value = value[key]
    return value


class Rows:
    """The columns of `count` environments.

    There are `halves` copies of the observations' columns, 1 or 2. With 2, steps alternate between them, so that a view
    of observations stays valid during the next step.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        count: int,
        halves: int,
        half: int = 0,
        memory: SharedArray | None = None,
    ) -> None:
        self._spaces = observation_space, action_space
        self.count, self.halves = count, halves
        self.half = half  # the one that the current step writes
        self._leaves = list(_leaves(observation_space))
        leaves = [leaf for _, leaf in self._leaves if isinstance(leaf, _FIXED)]
        actions = list(_leaves(action_space))
        self._action_paths = [path for path, _ in actions]
        self._shares_actions = all(isinstance(leaf, _FIXED) for _, leaf in actions)
        shapes: list[tuple[Any, Any]] = [(leaf.shape, leaf.dtype) for leaf in leaves * halves]
        shapes += [((), np.dtype(kind)) for kind in (np.float64, np.bool_, np.bool_)]
        shapes += [(leaf.shape, leaf.dtype) for _, leaf in actions if self._shares_actions]
        sizes = [count * math.prod(shape) * dtype.itemsize for shape, dtype in shapes]
        starts = [0, *itertools.accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)]
        self._memory = memory or SharedArray._make(arenas.default_arena(), starts[-1], np.uint8, None)
        columns = (
            np.ndarray((count, *shape), dtype, self._memory.array, start)
            for (shape, dtype), start in zip(shapes, starts, strict=False)
        )
        self._columns = [
            [next(columns) if isinstance(leaf, _FIXED) else None for _, leaf in self._leaves] for _ in range(halves)
        ]
        self.rewards, self.terminations, self.truncations = next(columns), next(columns), next(columns)
        self._actions = list(columns)
        self._objects: list[list[Any]] = [[None] * count for column in self._columns[0] if column is None]
        self.has_objects = bool(self._objects)  # some parts of observations have no column

    def __reduce__(self) -> tuple[Any, ...]:
        return Rows, (*self._spaces, self.count, self.halves, self.half, self._memory)

    # --- Main process

    def write_actions(self, actions: Any, numbers: Sequence[int] | None = None) -> bool:
        """Writes the actions of some environments. Returns False if they do not have exactly the columns' dtypes.

        They then go by message, because an environment must get the dtypes that the caller passed.
        """
        if not self._shares_actions:
            return False
        for path, column in zip(self._action_paths, self._actions, strict=True):
            value = _at(path, actions)
            shape = column.shape if numbers is None else (len(numbers), *column.shape[1:])
            if type(value) is not np.ndarray or value.dtype != column.dtype or value.shape != shape:
                return False
            column[slice(None) if numbers is None else numbers] = value
        return True

    def keep_objects(self, number: int, objects: Sequence[Any]) -> None:
        """Stores the observations of one environment that came by message."""
        for values, value in zip(self._objects, objects, strict=True):
            values[number] = value

    def observations(self, numbers: Sequence[int] | Array | None, copies: bool) -> Any:
        """Returns the observations of some environments, or of all; without `copies`, all as views of the columns."""
        columns = self._columns[self.half]
        if len(columns) == 1 and (only := columns[0]) is not None and not self._leaves[0][0]:
            return only[numbers] if numbers is not None else only.copy() if copies else only
        objects = iter(self._objects)
        which = range(self.count) if numbers is None else numbers

        def value(column: Array | None) -> Any:
            if column is None:
                values = next(objects)
                batch = tuple(values[number] for number in which)
                return copy.deepcopy(batch) if copies else batch
            return column[numbers] if numbers is not None else column.copy() if copies else column

        return _build(self._spaces[0], map(value, columns))

    # --- Workers

    def actions(self, numbers: Any) -> Any:
        """Returns copies of the actions of some environments, which an environment may keep."""
        taken = [column[numbers].copy() for column in self._actions]
        if self._action_paths == [()]:
            return taken[0]
        return [_build(self._spaces[1], iter(row)) for row in zip(*taken, strict=True)]

    def write(self, number: int, observation: Any) -> list[Any]:
        """Writes an observation of one environment, by the rules of NumPy's `stack`. Returns the values by message."""
        objects = []
        for (path, _), column in zip(self._leaves, self._columns[self.half], strict=True):
            value = _at(path, observation) if path else observation
            if column is None:
                objects.append(value)
                continue
            array = np.asarray(value)
            if array.dtype == column.dtype and array.shape == column.shape[1:]:
                column[number] = array
            else:
                np.stack([array], out=column[number : number + 1])
        return objects
