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
        self.options = core.options
        self.samplers = {name: _samplers.sampler_of(*terms) for name, *terms in self.options["samplers"]}
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
        options: dict[str, Any] = {} if limits is None else _limits(limits)
        if sampling is not None and sampling.sampler is not None:
            options["samplers"] = _samplers.terms_of(_samplers.named(sampling.sampler))
        if episodes is not None:
            options["gamma"] = float(episodes.gamma)
            options["ends_unknown"] = self.options["ends_unknown"] and episodes.done is not None
        return Spec(self.core.changed(options))

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

    def _sampled(self, leaf: int) -> Leaf:
        dtype, shape = self.rows.leaves[leaf]
        frames = dict(self.options["stack"]).get(leaf)
        return (dtype, shape) if frames is None else (dtype, (frames, *shape))

    def nests(self) -> _core._ReplayNests:
        """Returns the structures of rows, of a batch, and of last observations, which have some leaves of the rows."""
        rows, final = self.rows, None
        if self.core.next:
            own_numbers = {leaf: leaf for leaf in self.core.next}
            final = Rows(_only(rows.skeleton, own_numbers), rows.leaves).nest("final", "final")
        return rows.nest("row", "rows"), self.data().nest("out", "out"), final


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
    reward, done = (None if key is None else key_to_core(key) for key in (episodes.reward, episodes.done))
    options = {
        "samplers": _samplers.terms_of(samplers),
        "next": [key_to_core(key) for key in episodes.next],
        "n_step": int(episodes.n_step),
        "gamma": float(episodes.gamma),
        "stack": {key_to_core(key): int(frames) for key, frames in (episodes.stack or {}).items()},
        "repeats_first": episodes.stack_padding == "first",
        "reward": reward,
        "done": done,
        **_limits(limits),
    }
    return Spec(_core.ReplaySpec(_with_keys(rows.skeleton, key_to_core), leaves, options))


def _limits(limits: Limits) -> dict[str, Any]:
    rate = None if limits.rate is None else _samplers.limit_of(limits.rate)
    return {"limit": rate, "raises_on_death": limits.on_peer_death == "raise"}


def _only(skeleton: Skeleton, numbers: dict[int, int]) -> Skeleton:
    """Returns the parts of a row with only these leaves, renumbered."""
    parts: dict[Any, Skeleton] = {}
    for key, part in skeleton.items():
        found: list[int] = []
        map_nest("", part, lambda _, leaf, found=found: found.append(leaf))
        if found and all(leaf in numbers for leaf in found):
            parts[key] = map_nest("", part, lambda _, leaf: numbers[leaf])
    return parts
