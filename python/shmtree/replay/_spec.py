"""The spec of a buffer: its rows, the form of batches, and the samplers. The core stores it in the buffer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from .. import _core
from .._codec.dtypes import describe
from .._codec.frames import pack, unpack
from ..errors import IncompatibleArena
from . import _samplers
from ._options import Episodes, Limits, Sampling
from ._rows import Leaf, Rows, Skeleton, checked_leaf, map_nest

_KEY_OF_NEXT = "next"


class Spec:
    """The core's description of a buffer, with its rows and samplers in the types of Python.

    Attributes:
        core: all data that is needed to open a buffer. A leaf is given by its number in `rows`.
    """

    def __init__(self, core: _core.ReplaySpec) -> None:
        self.core = core
        try:
            self.rows = Rows(_with_keys(core.rows, _key_from_core), tuple(checked_leaf(*leaf) for leaf in core.leaves))
        except (ValueError, TypeError, KeyError, SyntaxError, OverflowError, AttributeError, RecursionError) as error:
            raise IncompatibleArena(f"the description of this replay buffer cannot be read: {error}") from error
        self.samplers = {name: _samplers.sampler_of(table) for name, table in core.samplers}
        self.has_discount = core.has_discount

    @classmethod
    def unpack(cls, note: bytes) -> Spec:
        """Returns the spec in these bytes, which another process may have written."""
        return cls(_core.ReplaySpec.unpack(note))

    def __reduce__(self) -> tuple[Any, ...]:
        return Spec.unpack, (self.core.note,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spec) and self.core.note == other.core.note

    __hash__ = None  # type: ignore[assignment]

    def changed(self, sampling: Sampling | None, episodes: Episodes | None, limits: Limits | None) -> Spec:
        """Returns the spec of a saved buffer, with the given options in place of the saved ones."""
        core = _core.ReplaySpec.unpack(self.core.note)
        if sampling is not None and sampling.sampler is not None:
            core.samplers = _samplers.tables_of(_samplers.named(sampling.sampler))
        if limits is not None:
            _set_limits(core, limits)
        if episodes is not None:
            core.gamma = float(episodes.gamma)
            core.ends_unknown = core.ends_unknown and episodes.done is not None
        return Spec(core)

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
        if next := self.core.next:
            numbers = {leaf: len(leaves) + number for number, leaf in enumerate(next)}
            skeleton = {**skeleton, _KEY_OF_NEXT: _only(skeleton, numbers)}
            leaves += [self._sampled(leaf) for leaf in next]
        return Rows(skeleton, tuple(leaves))

    def finals(self) -> Rows | None:
        """Returns the structure of an episode's last observation, or None."""
        if not self.core.next:
            return None
        skeleton = _only(self.rows.skeleton, {leaf: number for number, leaf in enumerate(self.core.next)})
        return Rows(skeleton, tuple(self.rows.leaves[leaf] for leaf in self.core.next))

    def _sampled(self, leaf: int) -> Leaf:
        dtype, shape = self.rows.leaves[leaf]
        frames = dict(self.core.stack).get(leaf)
        return (dtype, shape) if frames is None else (dtype, (frames, *shape))

    def nests(self) -> _core._ReplayNests:
        """Returns the structures of a row, many rows, a batch, a last observation, and many last observations."""
        rows, finals = self.rows, self.finals()
        some = (rows.nest("row"), rows.nest_of_columns("rows"), self.data().nest("out"))
        return (*some, None, None) if finals is None else (*some, finals.nest("final"), finals.nest_of_columns("final"))


def _with_keys(skeleton: Skeleton, convert: Callable[[Any], Any]) -> Skeleton:
    """Returns the structure with converted keys. The core has a str for a str, and a frame for any other key."""
    if isinstance(skeleton, dict):
        return {convert(key): _with_keys(part, convert) for key, part in skeleton.items()}
    if isinstance(skeleton, list | tuple):
        return type(skeleton)(_with_keys(part, convert) for part in skeleton)
    return skeleton


def key_to_core(key: Any) -> str | bytes:
    """Returns a key in the core's form: a str, or the frame of another key."""
    if type(key) is str:
        with contextlib.suppress(UnicodeEncodeError):
            key.encode()
            return key
    return bytes(pack(key, allow_pickle=False))


def _key_from_core(key: str | bytes) -> Any:
    return key if isinstance(key, str) else unpack(key, copy=True, allow_pickle=False)


def make(rows: Rows, samplers: Mapping[str, _samplers.Sampler], episodes: Episodes, limits: Limits) -> Spec:
    """Returns the spec for the options of a buffer. Raises ValueError if rows lack a key."""
    leaves = [(str(describe(dtype, False)), dtype.itemsize, shape) for dtype, shape in rows.leaves]
    core = _core.ReplaySpec(_with_keys(rows.skeleton, key_to_core), leaves)
    core.samplers = _samplers.tables_of(samplers)
    _set_limits(core, limits)
    core.n_step, core.gamma = int(episodes.n_step), float(episodes.gamma)
    core.repeats_first = episodes.stack_padding == "first"
    stack = {key_to_core(key): int(frames) for key, frames in (episodes.stack or {}).items()}
    reward, done = (None if key is None else key_to_core(key) for key in (episodes.reward, episodes.done))
    core.set_leaves([key_to_core(key) for key in episodes.next], stack, reward, done)
    return Spec(core)


def _set_limits(core: _core.ReplaySpec, limits: Limits) -> None:
    core.limit = None if limits.rate is None else _samplers.limit_of(limits.rate)
    core.raises_on_death = limits.on_peer_death == "raise"


def _only(skeleton: Skeleton, numbers: dict[int, int]) -> Skeleton:
    """Returns the parts of a row with only these leaves, renumbered."""
    parts: dict[Any, Skeleton] = {}
    for key, part in skeleton.items():
        found: list[int] = []
        map_nest("", part, lambda _, leaf, found=found: found.append(leaf))
        if found and all(leaf in numbers for leaf in found):
            parts[key] = map_nest("", part, lambda _, leaf: numbers[leaf])
    return parts
