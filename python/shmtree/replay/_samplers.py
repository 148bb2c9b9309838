"""The samplers of a buffer, and the rate limit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .._ipc.arguments import limit
from ._numbers import not_negative, positive

_MAX_TIMES = (1 << 32) - 1


@dataclass(frozen=True)
class Sampler:
    """Base of all samplers.

    Attributes:
        max_times: Number of times that this sampler returns a row, over all processes; None means no limit.
    """

    max_times: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if limit("max_times", self.max_times) > _MAX_TIMES:
            raise ValueError(f"max_times is {self.max_times}; it must be below 2**32")


@dataclass(frozen=True)
class Uniform(Sampler):
    """Samples all rows with equal probability."""


@dataclass(frozen=True)
class Fifo(Sampler):
    """Samples the oldest rows in order. With `max_times`, it moves on to newer ones."""


@dataclass(frozen=True)
class Lifo(Sampler):
    """Samples the newest rows, the newest first."""


@dataclass(frozen=True)
class MaxPriority(Sampler):
    """Samples the rows with the largest priorities, the largest first."""


@dataclass(frozen=True)
class Prioritized(Sampler):
    """Samples a row with a probability proportional to (priority + eps)^alpha.

    Attributes:
        alpha: 0 makes all rows equally likely.
        beta: Exponent of `Batch.weight`, which corrects the bias; 1 corrects it fully. Each call of `sample` may pass
            another one.
        eps: Added to priorities. With 0, rows of priority 0 are sampled only if there are no others.
    """

    alpha: float = 0.6
    beta: float = 0.4
    eps: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        for what in ("alpha", "beta", "eps"):
            not_negative(what, getattr(self, what))


@dataclass(frozen=True)
class RateLimit:
    """Keeps the ratio of samples to inserts within bounds, like Reverb's SampleToInsertRatio.

    Attributes:
        samples_per_insert: Average number of times that a row is sampled.
        min_size: Number of rows before the first sample.
        error_buffer: Tolerance. The difference (inserts x samples_per_insert - samples) stays within samples_per_insert
            x min_size plus or minus `error_buffer`. None is a tenth of samples_per_insert x min_size, or, if that is
            more, twice the larger of 1 and samples_per_insert.
    """

    samples_per_insert: float
    min_size: int = 1
    error_buffer: float | None = None

    def __post_init__(self) -> None:
        if not_negative("samples_per_insert", self.samples_per_insert) == 0:
            raise ValueError("samples_per_insert is 0; it must be positive")
        positive("min_size", self.min_size)
        if self.error_buffer is not None:
            not_negative("error_buffer", self.error_buffer)


def limit_of(rate: RateLimit) -> tuple[float, int, float]:
    """Returns the limit in the core's form."""
    buffer = math.nan if rate.error_buffer is None else float(rate.error_buffer)
    return float(rate.samples_per_insert), int(rate.min_size), buffer


# In the order of the core's numbers: src/replay/sampling/layout.h.
_KINDS: tuple[type[Sampler], ...] = (Uniform, Prioritized, Fifo, Lifo, MaxPriority)


def terms_of(samplers: Mapping[str, Sampler]) -> list[tuple[Any, ...]]:
    """Returns the samplers in the core's form: name, kind, alpha, beta, eps, max_times."""
    terms: list[tuple[Any, ...]] = []
    for name, each in samplers.items():
        shape = (each.alpha, each.beta, each.eps) if isinstance(each, Prioritized) else (0, 0, 1)
        terms.append((name, _KINDS.index(type(each)) + 1, *map(float, shape), each.max_times or 0))
    return terms


def sampler_of(kind: int, alpha: float, beta: float, eps: float, max_times: int) -> Sampler:
    """Returns the sampler for the terms of the core, which has checked them."""
    cls, times = _KINDS[kind - 1], max_times or None
    return Prioritized(alpha, beta, eps, max_times=times) if cls is Prioritized else cls(max_times=times)


def named(given: Sampler | Mapping[str, Sampler] | None) -> dict[str, Sampler]:
    """Returns the samplers of a new buffer by name, from the argument of `Sampling`."""
    samplers = dict(given) if isinstance(given, Mapping) else {"default": Uniform() if given is None else given}
    if not samplers:
        raise ValueError("sampler is an empty dict; a replay buffer needs at least one sampler")
    for name, each in samplers.items():
        if not isinstance(name, str):
            raise TypeError(f"sampler has the name {name!r}; it must be a str")
        if type(each) not in _KINDS:
            kinds = ", ".join(f"{cls.__name__}()" for cls in _KINDS)
            raise TypeError(f"sampler is {each!r}; it must be one of {kinds}, or a dict of them by name")
    return samplers
