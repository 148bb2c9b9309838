"""Options of a buffer in three groups: its samplers, the episodes of its rows, and its limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from .._ipc.arguments import one_of
from . import _samplers
from ._numbers import not_negative, positive, seed_of

Padding = Literal["zeros", "first"]
OnPeerDeath = Literal["wait", "raise"]

_MAX_FRAMES = _MAX_STEPS = 1024
_MAX_CHUNK = 64  # rows


@dataclass(frozen=True)
class Sampling:
    """The samplers of a buffer, and the seed of one object.

    Attributes:
        sampler: `Uniform`, `Prioritized`, `Fifo`, `Lifo` or `MaxPriority`. Or a dict of several samplers by name, of
            which the first one is the default. A single sampler has the name "default". None: a new buffer has a
            `Uniform` sampler, and `ReplayBuffer.load` keeps the saved ones.
        seed: Seed for the samples of the object that is made, an int of which the low 64 bits count. None chooses a
            random one. Other objects of the buffer, such as those of other processes, have seeds of their own.

    Raises:
        TypeError: `sampler` is neither a sampler nor a dict of samplers by name, or `seed` is not an int.
        ValueError: The dict is empty.

    Example::

        Sampling(Prioritized(alpha=0.6), seed=1)
        Sampling({"per": Prioritized(), "all": Uniform()})
    """

    sampler: _samplers.Sampler | Mapping[str, _samplers.Sampler] | None = None
    seed: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        named = _samplers.named(self.sampler)
        if isinstance(self.sampler, Mapping):
            object.__setattr__(self, "sampler", named)  # a copy, which later changes of the dict do not reach
        object.__setattr__(self, "seed", None if self.seed is None else seed_of(self.seed))


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """What a batch has of the other rows of an episode, and which keys end episodes.

    Attributes:
        next: Keys whose values a batch also has for each row's successor, in ``data["next"]``. The buffer stores the
            values once. The successor is the row `n_step` rows later. At the end of an episode, ``data["next"]`` has
            the `final` that was passed to `Writer.end`, or the values of the last row if there is none
            (`Batch.discount` is then 0).
        n_step: Number of rewards that are summed in a batch, from 1 to 1024; later ones are multiplied by `gamma`,
            `gamma` squared, and so on. The sum stops at the end of the episode.
        gamma: Discount factor per row.
        stack: Number of stacked frames, from 1 to 1024, per key of a row, or path such as "obs/image". The last frame
            is the row's own; the frames before it come from earlier rows of the episode.
        stack_padding: Frames before the first one of an episode: "zeros", or the "first" frame.
        reward: Key or path of the rewards that `n_step` sums.
        done: Key or path that ends episodes, in addition to Gymnasium's ``"terminated"`` and ``"truncated"``. A true
            ``terminated`` ends the episode, and its `Batch.discount` is 0. A true ``truncated`` ends it as well; with
            `next`, the row needs the observation after it (`final`), and its value counts. If rows have all three keys,
            `done` must be true exactly where one of the others is; otherwise `add` raises a ValueError with the row and
            the values. If rows lack one of the two, `done` replaces it; if they lack both, `done` replaces
            ``terminated``. None: no key ends an episode, only calls such as `Writer.end` do.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: `n_step`, `gamma`, `stack` or `stack_padding` is outside its limits. `ReplayBuffer` raises it for a
            key that the rows do not have.

    Example::

        Episodes(next=("obs",), n_step=3, gamma=0.98, stack={"obs": 4})
    """

    next: str | Iterable[str] = ()
    n_step: int = 1
    gamma: float = 0.99
    stack: Mapping[str, int] | None = None
    stack_padding: Padding = "zeros"
    reward: str | None = "reward"
    done: str | None = "done"

    def __post_init__(self) -> None:
        if not isinstance(self.next, Iterable):
            raise TypeError(f"next is {self.next!r}; it must be a key of a row, or several keys")
        if self.stack is not None and not isinstance(self.stack, Mapping):
            raise TypeError(f"stack is {self.stack!r}; it must be a dict from keys of a row to numbers of frames")
        positive("n_step", self.n_step, _MAX_STEPS)
        not_negative("gamma", self.gamma)
        one_of("stack_padding", self.stack_padding, "zeros", "first")
        for key, frames in (self.stack or {}).items():
            positive(f"stack[{key!r}]", frames, _MAX_FRAMES)
        # Copies, which later changes of a list or a dict do not reach.
        object.__setattr__(self, "next", (self.next,) if isinstance(self.next, str) else tuple(self.next))
        object.__setattr__(self, "stack", None if self.stack is None else dict(self.stack))


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How fast a buffer is filled and sampled, and how it stores and frees rows.

    Attributes:
        rate: A `RateLimit`: writers wait for samplers, and samplers for rows. None: neither waits for the other.
        chunk: Number of rows that are dropped together, a power of two up to 64. None chooses it from the capacity.
            With 1, a full buffer has exactly `capacity` rows.
        streams: Approximate number of writers. More writers work, too.
        on_peer_death: What a call that waits for rows, or for space under `rate`, does when all other processes were
            killed. "wait" (default): wait for new ones. "raise": raise PeerDied with their `pids`, until another
            process comes.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is outside its limits.

    Example::

        Limits(rate=RateLimit(samples_per_insert=8.0, min_size=20_000), streams=16)
    """

    rate: _samplers.RateLimit | None = None
    chunk: int | None = None
    streams: int = 1
    on_peer_death: OnPeerDeath = "wait"

    def __post_init__(self) -> None:
        if self.rate is not None and not isinstance(self.rate, _samplers.RateLimit):
            raise TypeError(f"rate is {self.rate!r}; it must be a RateLimit, or None")
        if self.chunk is not None:
            chunk = positive("chunk", self.chunk)
            if chunk > _MAX_CHUNK or chunk & (chunk - 1):
                raise ValueError(f"chunk is {chunk} rows; it must be a power of two, at most {_MAX_CHUNK}")
        positive("streams", self.streams)
        one_of("on_peer_death", self.on_peer_death, "wait", "raise")


class _RingOptions(TypedDict):
    episodes: Episodes
    limits: Limits


#: Options of a buffer for the interfaces of other libraries, which number rows by their place in a ring.
RING: _RingOptions = {"episodes": Episodes(reward=None, done=None), "limits": Limits(chunk=1)}


def check_classes(sampling: Any, episodes: Any, limits: Any) -> None:
    """Raises TypeError, with the remedy, for an option that is neither None nor of its class."""
    for name, given, cls, remedy in (
        ("sampling", sampling, Sampling, _sampling_for),
        ("episodes", episodes, Episodes, _episodes_for),
        ("limits", limits, Limits, _limits_for),
    ):
        if given is not None and not isinstance(given, cls):
            raise TypeError(f"{name} is {given!r}; pass {name}={remedy(given)}")


def _sampling_for(given: Any) -> str:
    if isinstance(given, Mapping):
        return "Sampling({...})"
    return f"Sampling({type(given).__name__ if isinstance(given, _samplers.Sampler) else 'Prioritized'}())"


def _episodes_for(given: Any) -> str:
    return f"Episodes(next={given!r})" if isinstance(given, str | tuple | list) else "Episodes(next=..., n_step=...)"


def _limits_for(given: Any) -> str:
    rate = "RateLimit(...)" if isinstance(given, _samplers.RateLimit) else "..."
    return f"Limits(rate={rate})"
