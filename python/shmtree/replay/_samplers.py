"""The samplers of a buffer, and the rate limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .._ipc.arguments import limit
from ._numbers import not_negative, positive

# The core's numbers: src/replay/sampling/layout.h.
_UNIFORM, _PRIORITIZED, _FIFO, _LIFO, _MAX_PRIORITY = 1, 2, 3, 4, 5
_MAX_TIMES = (1 << 32) - 1

#: (kind, alpha, beta, eps, max_times)
Terms = tuple[int, float, float, float, int]


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


#: (samples_per_insert, min_size, error_buffer)
LimitTerms = tuple[float, int, float | None]


def limit_terms(limit: RateLimit | None) -> LimitTerms | None:
    """Returns the limit in the core's form."""
    if limit is None:
        return None
    buffer = None if limit.error_buffer is None else float(limit.error_buffer)
    return float(limit.samples_per_insert), int(limit.min_size), buffer


_KINDS: dict[type[Sampler], int] = {
    Uniform: _UNIFORM,
    Prioritized: _PRIORITIZED,
    Fifo: _FIFO,
    Lifo: _LIFO,
    MaxPriority: _MAX_PRIORITY,
}
_CLASSES = {kind: cls for cls, kind in _KINDS.items()}


def terms_of(sampler: Sampler) -> Terms:
    """Returns the sampler in the core's form."""
    shape = (sampler.alpha, sampler.beta, sampler.eps) if isinstance(sampler, Prioritized) else (0.0, 0.0, 1.0)
    alpha, beta, eps = map(float, shape)
    return _KINDS[type(sampler)], alpha, beta, eps, sampler.max_times or 0


def sampler_of(terms: Any) -> Sampler:
    """Returns the sampler for terms of the core.

    Another process may have written them; raises ValueError or TypeError.
    """
    kind, alpha, beta, eps, max_times = terms
    cls = _CLASSES.get(kind)
    if cls is None or not all(type(each) is float for each in (alpha, beta, eps)) or type(max_times) is not int:
        raise ValueError("the kind of a sampler is unknown to this version")
    times = max_times or None
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
