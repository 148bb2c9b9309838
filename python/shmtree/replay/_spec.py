"""What a buffer is: its rows, what is drawn of them and by which samplers. It is kept in the buffer, as a frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from .. import _core, _serialize
from .._arguments import one_of, whole
from .._dtypes import describe
from ..errors import IncompatibleArena
from . import _samplers
from ._rows import Leaf, Rows, Skeleton, checked_leaf, map_nest

Padding = Literal["zeros", "first"]

_VERSION = 1
_KEY_OF_NEXT = "next"
_MOST_FRAMES = 1024
_HERE, _SUCCESSOR, _STACK, _SUCCESSOR_STACK, _REWARD_SUM, _DISCOUNT, _STREAM, _STEP = range(8)


class Output(NamedTuple):
    """An array of a batch, as the core takes it."""

    what: int
    leaf: int = 0
    frames: int = 1
    repeats_first: bool = False
    is_double: bool = False


class Spec(NamedTuple):
    """What a buffer needs to be opened. Leaves are numbers: those of `rows`."""

    rows: Rows
    samplers: dict[str, _samplers.Sampler]
    next: tuple[int, ...] = ()
    n_step: int = 1
    gamma: float = 0.99
    stack: tuple[tuple[int, int], ...] = ()  # leaf, frames
    padding: Padding = "zeros"
    reward: int | None = None
    done: int | None = None
    limit: _samplers.RateLimit | None = None

    @property
    def has_discount(self) -> bool:
        return bool(self.next) or self.n_step > 1

    @property
    def ahead(self) -> int:
        """Successors that a row needs before it can be drawn."""
        return self.n_step if self.next else self.n_step - 1

    def table(self, name: str | None) -> int:
        """The number of a sampler by its name; None is the first."""
        if name is None:
            return 0
        if name not in self.samplers:
            raise ValueError(f"sampler is {name!r}; the buffer has {', '.join(map(repr, self.samplers))}")
        return list(self.samplers).index(name)

    # --- What a batch is

    def data(self) -> Rows:
        """The nest of a batch, and what one row of each of its arrays is."""
        skeleton, leaves = self.rows.skeleton, [self._drawn(leaf) for leaf in range(len(self.rows.leaves))]
        if self.next:
            first = len(leaves)
            successors = _only(skeleton, dict(zip(self.next, range(first, first + len(self.next)), strict=True)))
            skeleton = {**skeleton, _KEY_OF_NEXT: successors}
            leaves += [self._drawn(leaf) for leaf in self.next]
        return Rows(skeleton, tuple(leaves))

    def outputs(self) -> list[Output]:
        """The arrays of a batch: those of its data, then version, stream, step and, where there is one, discount."""
        made = [self._output(leaf, _HERE, _STACK) for leaf in range(len(self.rows.leaves))]
        if self.reward is not None and self.n_step > 1:
            is_double = self.rows.leaves[self.reward][0] == np.float64
            made[self.reward] = Output(_REWARD_SUM, self.reward, is_double=is_double)
        made += [self._output(leaf, _SUCCESSOR, _SUCCESSOR_STACK) for leaf in self.next]
        made += [Output(_HERE, len(self.rows.leaves)), Output(_STREAM), Output(_STEP)]
        return made + [Output(_DISCOUNT)] * self.has_discount

    def finals(self) -> Rows | None:
        """The nest of an episode's last observation, and what its leaves are."""
        if not self.next:
            return None
        skeleton = _only(self.rows.skeleton, {leaf: number for number, leaf in enumerate(self.next)})
        return Rows(skeleton, tuple(self.rows.leaves[leaf] for leaf in self.next))

    def _drawn(self, leaf: int) -> Leaf:
        dtype, shape = self.rows.leaves[leaf]
        frames = dict(self.stack).get(leaf)
        return (dtype, shape) if frames is None else (dtype, (frames, *shape))

    def _output(self, leaf: int, plain: int, stacked: int) -> Output:
        frames = dict(self.stack).get(leaf)
        return Output(plain, leaf) if frames is None else Output(stacked, leaf, frames, self.padding == "first")

    # --- As the core takes it, and as a frame

    def terms(self, capacity: int, chunk: int, streams: int) -> _core.ReplayTerms:
        return _core.ReplayTerms(
            capacity=capacity,
            chunk=chunk,
            streams=streams,
            ahead=self.ahead,
            finals=bool(self.next),
            tables=[_samplers.terms_of(each) for each in self.samplers.values()],
            outputs=list(self.outputs()),
            n_step=self.n_step,
            gamma=self.gamma,
            done=self.done if self.done is not None else -1,
            final=list(self.next),
            limit=_samplers.limit_terms(self.limit),
        )

    def nests(self) -> _core._ReplayNests:
        """Of one row, of many, of a batch, of an episode's last observation, and of many of these."""
        rows, finals = self.rows, self.finals()
        some = (rows.nest("row"), rows.nest_of_columns("rows"), self.data().nest("out"))
        return (*some, None, None) if finals is None else (*some, finals.nest("final"), finals.nest_of_columns("final"))

    def pack(self) -> bytes:
        kept = {
            "version": _VERSION,
            "rows": self.rows.skeleton,
            "leaves": [(describe(dtype, False), list(shape)) for dtype, shape in self.rows.leaves],
            "samplers": {name: _samplers.terms_of(each) for name, each in self.samplers.items()},
            "next": list(self.next),
            "n_step": self.n_step,
            "gamma": self.gamma,
            "stack": dict(self.stack),
            "padding": self.padding,
            "reward": self.reward,
            "done": self.done,
            "limit": _samplers.limit_terms(self.limit),
        }
        return bytes(_serialize.pack(kept, allow_pickle=False))

    @classmethod
    def unpack(cls, note: bytes) -> Spec:
        """Of bytes that anybody may have written."""
        try:
            found = _serialize.unpack(note, copy=True, allow_pickle=False)
            if found["version"] != _VERSION:
                raise IncompatibleArena(f"this replay buffer is of version {found['version']!r}")
            return cls._checked(found)
        except (ValueError, TypeError, KeyError, SyntaxError, OverflowError, AttributeError, RecursionError) as error:
            raise IncompatibleArena(f"what this replay buffer is made of cannot be read: {error}") from error

    @classmethod
    def _checked(cls, found: dict[str, Any]) -> Spec:
        leaves = tuple(checked_leaf(*leaf) for leaf in found["leaves"])
        numbers: list[Any] = []

        def noted(_: str, number: Any) -> Any:
            numbers.append(number)
            return number

        rows = Rows(map_nest("row", found["rows"], noted), leaves)
        if numbers != list(range(len(leaves))) or not leaves:
            raise ValueError("leaves that are not where they should be")
        samplers = {str(name): _samplers.sampler_of(each) for name, each in found["samplers"].items()}
        every = [*found["next"], *found["stack"], *(found[key] for key in ("reward", "done") if found[key] is not None)]
        if not all(type(leaf) is int and 0 <= leaf < len(leaves) for leaf in every):
            raise ValueError("a leaf that there is not")
        if sorted(set(found["next"])) != found["next"] or (found["next"] and not isinstance(rows.skeleton, dict)):
            raise ValueError("successors of no such leaves")
        spec = cls(
            rows,
            _samplers.named(None, samplers),
            tuple(found["next"]),
            _steps(found["n_step"]),
            _samplers.check_number("gamma", found["gamma"]),
            tuple((leaf, _frames("stack", frames)) for leaf, frames in found["stack"].items()),
            one_of("padding", found["padding"], "zeros", "first"),  # type: ignore[arg-type]
            found["reward"],
            found["done"],
            None if found["limit"] is None else _samplers.RateLimit(*found["limit"]),
        )
        spec._check_numbers()
        return spec

    def _check_numbers(self) -> None:
        if self.n_step > 1 and self.reward is None:
            raise ValueError(f"n_step is {self.n_step}, and rows have no leaf of rewards to be summed")
        if self.reward is not None and self.n_step > 1:
            dtype, shape = self.rows.leaves[self.reward]
            if shape != () or dtype not in (np.float32, np.float64):
                raise ValueError(f"rewards are of {dtype}, shape {shape}; their sums need a float32 or float64")
        if self.done is not None:
            dtype, shape = self.rows.leaves[self.done]
            if shape != () or dtype.kind not in "biuf":
                raise ValueError(f"the leaf that ends episodes is of {dtype}, shape {shape}; it must be one number")


def make(
    rows: Rows,
    samplers: dict[str, _samplers.Sampler],
    next: str | Iterable[str],
    n_step: int,
    gamma: float,
    stack: Mapping[str, int] | None,
    padding: str,
    reward: str | None,
    done: str | None,
    limit: _samplers.RateLimit | None,
) -> Spec:
    """From what a buffer is made with: leaves by the keys of a row, a name for all that lie below it."""
    keys = [next] if isinstance(next, str) else list(next)
    if keys and isinstance(rows.skeleton, dict) and _KEY_OF_NEXT in rows.skeleton:
        raise ValueError(f"row[{_KEY_OF_NEXT!r}] is where batches have successors: give the leaf another name")
    stacks = {
        leaf: _frames(f"stack[{key!r}]", k) for key, k in (stack or {}).items() for leaf in _below(rows, "stack", key)
    }
    spec = Spec(
        rows,
        samplers,
        tuple(sorted({leaf for key in keys for leaf in _below(rows, "next", key)})),
        _steps(n_step),
        _samplers.check_number("gamma", gamma),
        tuple(stacks.items()),
        one_of("stack_padding", padding, "zeros", "first"),  # type: ignore[arg-type]
        _one_leaf(rows, "reward", reward, "reward"),
        _one_leaf(rows, "done", done, "done"),
        limit,
    )
    spec._check_numbers()
    return spec


def _steps(value: Any) -> int:
    if (steps := whole("n_step", value)) < 1:
        raise ValueError(f"n_step is {value}; it must be at least 1")
    return steps


def _frames(what: str, value: Any) -> int:
    if not 1 <= (frames := whole(what, value)) <= _MOST_FRAMES:
        raise ValueError(f"{what} is {value}; it must be 1 to {_MOST_FRAMES} frames")
    return frames


def _below(rows: Rows, what: str, key: str) -> list[int]:
    """The leaves under a key of a row."""
    if not isinstance(rows.skeleton, dict) or key not in rows.skeleton:
        raise ValueError(f"{what} has {key!r}, which rows do not have")
    found: list[int] = []
    map_nest("", rows.skeleton[key], lambda _, leaf: found.append(leaf))
    return found


def _one_leaf(rows: Rows, what: str, key: str | None, default: str) -> int | None:
    if key is None or (key == default and not (isinstance(rows.skeleton, dict) and key in rows.skeleton)):
        return None
    if len(leaves := _below(rows, what, key)) != 1:
        raise ValueError(f"{what} is {key!r}, which has {len(leaves)} leaves; it must be one")
    return leaves[0]


def _only(skeleton: Skeleton, numbers: dict[int, int]) -> Skeleton:
    """The parts of a row that have leaves of these, with other numbers."""
    parts: dict[Any, Skeleton] = {}
    for key, part in skeleton.items():
        found: list[int] = []
        map_nest("", part, lambda _, leaf, found=found: found.append(leaf))
        if found and all(leaf in numbers for leaf in found):
            parts[key] = map_nest("", part, lambda _, leaf: numbers[leaf])
    return parts
