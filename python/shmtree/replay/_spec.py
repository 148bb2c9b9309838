"""The spec of a buffer: its rows, the form of batches, and the samplers. The core stores it in the buffer."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

from .. import _core
from .._codec.dtypes import describe
from .._codec.frames import pack, unpack
from ..errors import IncompatibleArena
from . import _samplers
from ._options import Episodes, Limits, OnPeerDeath, Padding
from ._rows import Leaf, Rows, Skeleton, checked_leaf, map_nest

_KEY_OF_NEXT = "next"


class Spec(NamedTuple):
    """All data that is needed to open a buffer. A leaf is given by its number in `rows`."""

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
    on_peer_death: OnPeerDeath = "wait"
    terminated: int | None = None
    truncated: int | None = None
    ends_unknown: bool = False  # rows have no key that ends an episode, and done=None was not given

    @property
    def has_discount(self) -> bool:
        return bool(self.next) or self.n_step > 1

    def table(self, name: str | None) -> int:
        """Returns the number of a sampler by its name; None is the first one."""
        if name is None:
            return 0
        if name not in self.samplers:
            raise ValueError(f"sampler is {name!r}; it must be one of {', '.join(map(repr, self.samplers))}")
        return list(self.samplers).index(name)

    # --- Form of a batch

    def data(self) -> Rows:
        """Returns the structure of a batch, and the dtype and shape per row of each of its arrays."""
        skeleton, leaves = self.rows.skeleton, [self._sampled(leaf) for leaf in range(len(self.rows.leaves))]
        if self.next:
            first = len(leaves)
            successors = _only(skeleton, dict(zip(self.next, range(first, first + len(self.next)), strict=True)))
            skeleton = {**skeleton, _KEY_OF_NEXT: successors}
            leaves += [self._sampled(leaf) for leaf in self.next]
        return Rows(skeleton, tuple(leaves))

    def finals(self) -> Rows | None:
        """Returns the structure of an episode's last observation, or None."""
        if not self.next:
            return None
        skeleton = _only(self.rows.skeleton, {leaf: number for number, leaf in enumerate(self.next)})
        return Rows(skeleton, tuple(self.rows.leaves[leaf] for leaf in self.next))

    def _sampled(self, leaf: int) -> Leaf:
        dtype, shape = self.rows.leaves[leaf]
        frames = dict(self.stack).get(leaf)
        return (dtype, shape) if frames is None else (dtype, (frames, *shape))

    # --- The core's form

    def core(self) -> _core.ReplaySpec:
        """Returns the spec in the core's form. Raises ValueError if no buffer can have it."""
        return _core.ReplaySpec(
            _to_core(self.rows.skeleton),
            [(str(describe(dtype, False)), dtype.itemsize, shape) for dtype, shape in self.rows.leaves],
            [(name, _samplers.terms_of(each)) for name, each in self.samplers.items()],
            self.next,
            self.n_step,
            self.gamma,
            self.stack,
            self.padding == "first",
            self.reward,
            self.done,
            _samplers.limit_terms(self.limit),
            self.on_peer_death == "raise",
            self.terminated,
            self.truncated,
            self.ends_unknown,
        )

    def nests(self) -> _core._ReplayNests:
        """Returns the structures of a row, many rows, a batch, a last observation, and many last observations."""
        rows, finals = self.rows, self.finals()
        some = (rows.nest("row"), rows.nest_of_columns("rows"), self.data().nest("out"))
        return (*some, None, None) if finals is None else (*some, finals.nest("final"), finals.nest_of_columns("final"))

    @classmethod
    def unpack(cls, note: bytes) -> Spec:
        """Returns the spec in these bytes, which another process may have written."""
        return cls.of(_core.ReplaySpec.unpack(note))

    @classmethod
    def of(cls, core: _core.ReplaySpec) -> Spec:
        """Returns the spec for the core's form."""
        try:
            parts = core.parts()
            rows, leaves, samplers, next, n_step, gamma, stack, repeats_first, reward, done, limit, raises = parts[:12]
            return cls(
                Rows(_from_core(rows), tuple(checked_leaf(*leaf) for leaf in leaves)),
                {name: _samplers.sampler_of(terms) for name, terms in samplers},
                tuple(next),
                n_step,
                gamma,
                tuple(stack),
                "first" if repeats_first else "zeros",
                reward,
                done,
                None if limit is None else _samplers.RateLimit(*limit),
                "raise" if raises else "wait",
                *parts[12:],
            )
        except (ValueError, TypeError, KeyError, SyntaxError, OverflowError, AttributeError, RecursionError) as error:
            raise IncompatibleArena(f"the description of this replay buffer cannot be read: {error}") from error


def _to_core(skeleton: Skeleton) -> Skeleton:
    """Returns the structure with keys in the core's form: a str stays a str, and any other key becomes a frame."""
    if isinstance(skeleton, dict):
        return {_key_to_core(key): _to_core(part) for key, part in skeleton.items()}
    if isinstance(skeleton, list | tuple):
        return type(skeleton)(map(_to_core, skeleton))
    return skeleton


def _from_core(skeleton: Skeleton) -> Skeleton:
    if isinstance(skeleton, dict):
        return {_key_from_core(key): _from_core(part) for key, part in skeleton.items()}
    if isinstance(skeleton, list | tuple):
        return type(skeleton)(map(_from_core, skeleton))
    return skeleton


def _key_to_core(key: Any) -> str | bytes:
    if type(key) is str:
        with contextlib.suppress(UnicodeEncodeError):
            key.encode()
            return key
    return bytes(pack(key, allow_pickle=False))


def _key_from_core(key: str | bytes) -> Any:
    return key if isinstance(key, str) else unpack(key, copy=True, allow_pickle=False)


def make(rows: Rows, samplers: dict[str, _samplers.Sampler], episodes: Episodes, limits: Limits) -> Spec:
    """Returns the spec for the options of a buffer. A key of a row stands for all leaves below it."""
    if episodes.next and isinstance(rows.skeleton, dict) and _KEY_OF_NEXT in rows.skeleton:
        raise ValueError(f"row[{_KEY_OF_NEXT!r}] is where batches have the next rows; give the column another name")
    stack = {leaf: int(k) for key, k in (episodes.stack or {}).items() for leaf in _below(rows, "stack", key)}
    done, terminated, truncated = _ends(rows, episodes.done)
    return Spec(
        rows,
        samplers,
        tuple(sorted({leaf for key in episodes.next for leaf in _below(rows, "next", key)})),
        int(episodes.n_step),
        float(episodes.gamma),
        tuple(stack.items()),
        episodes.stack_padding,
        _one_leaf(rows, "reward", episodes.reward, "reward"),
        done,
        limits.rate,
        limits.on_peer_death,
        terminated,
        truncated,
        episodes.done is not None and done is terminated is truncated is None,
    )


def _ends(rows: Rows, done: str | None) -> tuple[int | None, int | None, int | None]:
    """Returns the leaves that end episodes: `done`, ``terminated``, ``truncated``. All are None if `done` is None."""
    if done is None:
        return None, None, None
    keys = {"done": done, "terminated": "terminated", "truncated": "truncated"}
    leaves = [_one_leaf(rows, what, key, what) for what, key in keys.items()]
    return leaves[0], leaves[1], leaves[2]


def _below(rows: Rows, what: str, key: str) -> list[int]:
    """Returns the leaves under a key of a row."""
    keys = list(rows.skeleton) if isinstance(rows.skeleton, dict) else []
    if key not in keys:
        has = ", ".join(map(repr, keys)) or "no keys"
        raise ValueError(f"{what} has {key!r}, which is not a key of the rows; they have {has}")
    found: list[int] = []
    map_nest("", rows.skeleton[key], lambda _, leaf: found.append(leaf))
    return found


def _one_leaf(rows: Rows, what: str, key: str | None, default: str) -> int | None:
    if key is None or (key == default and not (isinstance(rows.skeleton, dict) and key in rows.skeleton)):
        return None
    if len(leaves := _below(rows, what, key)) != 1:
        remedy = "; or make the buffer with Episodes(done=None)" if what != "reward" else ""
        raise ValueError(f"{what} is {key!r}, which has {len(leaves)} columns; it must have one{remedy}")
    return leaves[0]


def _only(skeleton: Skeleton, numbers: dict[int, int]) -> Skeleton:
    """Returns the parts of a row with only these leaves, renumbered."""
    parts: dict[Any, Skeleton] = {}
    for key, part in skeleton.items():
        found: list[int] = []
        map_nest("", part, lambda _, leaf, found=found: found.append(leaf))
        if found and all(leaf in numbers for leaf in found):
            parts[key] = map_nest("", part, lambda _, leaf: numbers[leaf])
    return parts
