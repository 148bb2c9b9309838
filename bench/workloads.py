"""The workloads: each one has a name, a message, a scenario, and sizes.

`make(i)` returns the i-th message. Equal numbers give equal messages, and different numbers different ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from bench import leaves

KB, MB, GB = 1000, 1000_000, 1000_000_000
PAGE = 4096  # bytes; the consumer reads one byte of each


class Step(NamedTuple):
    """Two counters, as in typical samples."""

    episode: int
    number: int


@dataclass(frozen=True)
class Workload:
    """A named measurement. `kind` selects the class of `bench.scenarios` that runs it."""

    name: str
    about: str
    make: Callable[[int], Any]
    nbytes: int = 0  # payload of one message; 0 for small messages, for which GB/s is not reported
    kind: str = "stream"
    producers: int = 1
    consumers: int = 1

    type: type = dict  # type of the message
    places: int = 0  # messages in the channel at once; 0: chosen by size
    pause: float = 0.0  # seconds that the receiver pauses after each get
    against: tuple[str, ...] = ()  # the only competitors; empty for all
    buffers: Callable[[Any], tuple[Any, ...]] | None = None  # those of a received message that the consumer reads

    @property
    def capacity(self) -> int:
        """Number of messages in the channel at once: many small ones, or a few large ones."""
        if self.places:
            return self.places
        for limit, capacity in ((64 * KB, 1000), (64 * MB, 8), (GB - 1, 2)):
            if self.nbytes <= limit:
                return capacity
        return 1

    @property
    def put_order(self) -> str:
        """Returns "made" if each message is built again before its put: in lent memory, or as a new copy (tensors)."""
        return "made" if self.kind in ("loan", "forward") or self.type is object else "same"

    def takes(self, competitor: str) -> bool:
        return not self.against or competitor in self.against

    @property
    def is_huge(self) -> bool:
        """True if messages are too large to have several competitors in memory at once."""
        return self.nbytes >= 64 * MB


def payload(nbytes: int) -> Callable[[int], bytes]:
    def make(i: int) -> bytes:
        block = bytes((i + k) % 251 for k in range(min(nbytes, 1000)))
        return block * (nbytes // len(block))  # all sizes are multiples of the block

    return make


def array(nbytes: int) -> Callable[[int], Any]:
    def make(i: int) -> Any:
        values = np.empty(nbytes // 4, np.float32)
        values[:] = i
        values[:: max(1, values.size // 1000)] += 0.5
        return values

    return make


def transition(i: int) -> dict[str, Any]:
    """Returns one step of an Atari-like environment."""
    frames = (np.arange(2 * 84 * 84 * 4, dtype=np.int64) + i).astype(np.uint8).reshape(2, 84, 84, 4)
    return {
        "obs": frames[0].copy(),
        "next_obs": frames[1].copy(),
        "action": i % 18,
        "reward": 0.25 * i,
        "terminated": False,
        "truncated": i % 2 == 0,
        "info": {"lives": 3, "episode": f"ep-{i}", "probabilities": np.full(18, i, np.float32)},
    }


def nested_batch(i: int) -> dict[str, Any]:
    """Returns a training batch: about 20 keys in 3 levels, 12 float32 (32, 17) arrays, a namedtuple, a set."""

    def part(k: int) -> Any:
        return np.full((32, 17), i + 0.1 * k, np.float32)

    return {
        "observations": {"state": part(0), "goal": part(1), "history": {"state": part(2), "action": part(3)}},
        "next": {"state": part(4), "goal": part(5), "history": {"state": part(6), "action": part(7)}},
        "action": part(8),
        "log_prob": part(9),
        "value": part(10),
        "advantage": part(11),
        "policy": f"policy-{i}",
        "version": i,
        "gamma": 0.99,
        "step": Step(i, 1000),
        "tags": {"train", "expert", f"seed-{i}"},
        "is_weighted": True,
    }


def nest(i: int) -> dict[str, Any]:
    """Returns a batch with a set, a namedtuple and a list in each group."""

    def with_more(group: dict[str, Any]) -> dict[str, Any]:
        deeper = {key: with_more(value) if isinstance(value, dict) else value for key, value in group.items()}
        return {**deeper, "ids": {1, 2, 3}, "at": Step(i, 17), "list": [1.0, 2.0, {"z": i}]}

    return with_more(nested_batch(i))


def references(i: int) -> list[Any]:
    """Returns 50 samples that all refer to the same dict."""
    env = {"id": "CartPole-v1", "seed": i, "frame_skip": 4}
    return [
        {"lr": 1e-3, "gamma": 0.99, "name": f"run-{i}", "layers": [64, 64, 32], "env": env, "clip": (0.1, 0.2)}
    ] * 50


def scalars(i: int) -> dict[str, Any]:
    return {"reward": 0.5 * i, "action": 3, "terminated": False, "step": i, "episode": "ep-12"}


def rollout(i: int) -> dict[str, Any]:
    """Returns 128 steps of 8 environments."""
    obs = np.empty((128, 8, 84, 84, 4), np.uint8)
    obs[:] = (np.arange(84 * 84 * 4, dtype=np.int64) + i).astype(np.uint8).reshape(84, 84, 4)
    names = ("rewards", "values", "log_probs", "advantages", "returns")
    return {"obs": obs, **{name: np.full((128, 8), i + k, np.float32) for k, name in enumerate(names)}}


def tensor(nbytes: int) -> Callable[[int], Any]:
    def make(i: int) -> Any:
        import torch

        # Made with NumPy: torch would start threads, and this process forks.
        return torch.from_numpy(np.full(nbytes // 4, i, np.float32))

    return make


ROLLOUT_BYTES = 128 * 8 * 84 * 84 * 4 + 5 * 128 * 8 * 4

_SIZES = {"10B": 10, "1KB": KB, "100KB": 100 * KB, "1MB": MB, "10MB": 10 * MB, "100MB": 100 * MB}
_SIZES |= {"1GB": GB, "10GB": 10 * GB}
_E = Workload("E", "a dict of five scalars", scalars)


# Competitors that carry the largest messages before the limit of a run. For others, see array-1GB.
_FASTEST = ("shmtree", "shmtree.Queue", "py-sharedmemory", "SPDL pool", "pyzmq", "iceoryx2", "Ray")


def _alone(message: Any) -> tuple[Any]:
    return (message,)


def _array_workload(size: str, nbytes: int) -> Workload:
    about = f"a float32 array of {size}"
    return Workload(f"array-{size}", about, array(nbytes), nbytes, type=np.ndarray, buffers=_alone)


def _bytes_workload(size: str) -> Workload:
    nbytes = _SIZES[size]
    buffers = _alone if nbytes >= PAGE else None
    return Workload(f"bytes-{size}", f"bytes, {size}", payload(nbytes), nbytes, type=bytes, buffers=buffers)


def _leaf(name: str, size: str, nbytes: int) -> Workload:
    return Workload(
        f"leaf-{name}-{size}",
        f"{leaves.LEAVES[name][0]}, about {size}",
        lambda i: leaves.made(name, nbytes),
        nbytes,
        kind="leaf",
        against=("shmtree", "shmtree.Queue", "multiprocessing.Queue"),
    )


_PAUSES = [
    ("lock", "after a get the receiver waits for the put", 0.0),
    ("2ms", "a get every 2 ms", 0.002),
    ("20ms", "a get every 20 ms", 0.02),
]


def _wake(places: int, name: str, about: str, pause: float) -> Workload:
    return replace(
        _E,
        name=f"wake-{places}-{name}",
        about=f"{places} places, full; {about}",
        kind="wake",
        places=places,
        pause=pause,
    )


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in [
        *(_bytes_workload(size) for size, n in _SIZES.items() if n < GB),
        *(_array_workload(size, n) for size, n in {"100KB": 100 * KB, "1MB": MB, "32MB": 32 * MB}.items()),
        Workload(
            "C",
            "an RL transition: two frames, scalars, an info dict",
            transition,
            2 * 84 * 84 * 4 + 72,
            buffers=itemgetter("obs", "next_obs"),
        ),
        Workload("D", "a nested batch: twelve small arrays, strings, numbers", nested_batch, 12 * 32 * 17 * 4),
        _E,
        Workload(
            "F", "a rollout of 29 MB in six arrays", rollout, ROLLOUT_BYTES, buffers=lambda item: tuple(item.values())
        ),
        Workload(
            "G",
            "a torch tensor of 32 MB",
            tensor(32 * MB),
            32 * MB,
            type=object,
            buffers=lambda item: (item.numpy(),),
        ),
        replace(_E, name="cold", about="from creation to the first E received", kind="cold"),
        replace(_E, name="latency", about="E, one way, the receiver asleep", kind="latency"),
        replace(_E, name="ping-pong", about="E, half a round trip, neither process sleeps", kind="pingpong"),
        replace(_E, name="busy", about="the same beside four processes that only compute", kind="busy"),
        replace(_E, name="codec-E", about="encode and decode E, no channel", kind="codec"),
        Workload("codec-C", "encode and decode C, no channel", transition, kind="codec"),
        Workload("codec-D", "encode and decode D, no channel", nested_batch, kind="codec"),
        Workload(
            "codec-nest", "encode and decode D with a set, a namedtuple, a list in each group", nest, kind="codec"
        ),
        Workload("shared", "50 references to one dict", references, type=list),
        *(
            replace(_array_workload(size, n), name=f"{kind}-{size}", about=f"{size}, {how}", kind=kind)
            for kind, how in (("loan", "made in place"), ("forward", "through a third process"))
            for size, n in (("1MB", MB), ("32MB", 32 * MB))
        ),
        *(
            replace(_E, name=f"many-{p}x{c}", about=f"E, {p} producers, {c} consumers", producers=p, consumers=c)
            for p, c in ((1, 1), (1, 4), (4, 1), (4, 4), (16, 16))
        ),
        replace(_E, name="deep", about="E, 10,000 put before the first is taken", kind="deep", places=10_000),
        *(_wake(n, *pause) for n in (2, 8, 64) for pause in _PAUSES),
        _wake(8, "1s", "a get every 1.2 s", 1.2),
        *(
            replace(one, name=f"{one.name}-{n}", about=f"{one.about}, {n} places", places=n)
            for one in (_bytes_workload("10B"), _bytes_workload("1KB"), _E)
            for n in (8, 64)
        ),
        _array_workload("1GB", GB),
        *(replace(_array_workload(f"{n}GB", n * GB), against=_FASTEST) for n in (4, 10)),
        _bytes_workload("1GB"),
        _bytes_workload("10GB"),
        *(_leaf(name, size, n) for name in leaves.LEAVES for size, n in (("1KB", KB), ("1MB", MB))),
    ]
}


def equal(a: Any, b: Any) -> bool:
    """Returns true if types and contents are equal, so that wrong results are not benchmarked."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and _same_elements(a.reshape(-1), b.reshape(-1))
    if type(a).__module__ == "torch":
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if not isinstance(a, (str, bytes, int, float, tuple, list, set)):
        return leaves.same(a, b)
    return bool(a == b)


def _same_elements(a: Any, b: Any, step: int = 1 << 22) -> bool:
    """Compares in parts, since the result of comparing arrays of 10 GB at once takes gigabytes itself."""
    return all(bool((a[i : i + step] == b[i : i + step]).all()) for i in range(0, len(a), step))
