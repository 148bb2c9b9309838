"""Runs the same random operations on other libraries' classes and on ours with their interfaces."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from queue import Empty, Full
from typing import Any

import numpy as np
import pytest

SEEDS = [1, 2, 3]
OPERATIONS = 1500  # per seed


def outcome(call: Callable[[], Any]) -> Any:
    """Returns the result of a call, or the type of its exception."""
    try:
        return call()
    except (ValueError, KeyError, TypeError, IndexError, RuntimeError, Empty, Full) as error:
        return type(error)


def assert_same(ours: Any, theirs: Any, where: str = "") -> None:
    if isinstance(theirs, type) and issubclass(theirs, Exception):
        assert isinstance(ours, type) and issubclass(ours, theirs), (where, ours, theirs)
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs), where
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{where}[{key!r}]")
    elif hasattr(theirs, "shape"):
        assert tuple(ours.shape) == tuple(theirs.shape), (where, ours.shape, theirs.shape)
        assert ours.dtype == theirs.dtype, (where, ours.dtype, theirs.dtype)
        assert np.array_equal(np.asarray(ours), np.asarray(theirs)), (where, ours, theirs)
    else:
        assert type(ours) is type(theirs) and ours == theirs, (where, ours, theirs)


def compare(seed: int, make: Callable[[random.Random], Any]) -> None:
    """Runs OPERATIONS random operations, 100 on each pair of buffers that `make` returns."""
    chance = random.Random(seed)
    for _ in range(0, OPERATIONS, 100):
        both = make(chance)
        for _ in range(100):
            both.step()


# --- Stable-Baselines3


class SB3:
    """A buffer of Stable-Baselines3 and one of ours, which get the same calls."""

    def __init__(self, chance: random.Random) -> None:
        from gymnasium import spaces
        from stable_baselines3.common import buffers

        from shmtree.replay import sb3

        self.chance, self.numbers = chance, np.random.default_rng(chance.randrange(1 << 30))
        parts: list[Any] = [
            spaces.Box(-10, 10, (3,), np.float32),
            spaces.Box(-10, 10, (2, 2), np.float64),
            spaces.Box(0, 255, (1, 4, 4), np.uint8),
            spaces.Discrete(5),
            spaces.MultiDiscrete([3, 4]),
            spaces.MultiBinary(3),
        ]
        is_dict = chance.random() < 0.3
        self.observations = spaces.Dict({"a": chance.choice(parts), "b": chance.choice(parts)})
        if not is_dict:
            self.observations = chance.choice(parts)
        self.actions = chance.choice([*parts[:2], spaces.Discrete(4), spaces.MultiBinary(2)])
        kind = "DictReplayBuffer" if is_dict else "ReplayBuffer"
        saves = not is_dict and chance.random() < 0.4
        self.environments = chance.choice([1, 1, 2, 3])
        options: dict[str, Any] = {"n_envs": self.environments, "optimize_memory_usage": saves, "device": "cpu"}
        options["handle_timeout_termination"] = not saves and chance.random() < 0.7
        size = chance.randrange(1, 40)
        self.both = [getattr(each, kind)(size, self.observations, self.actions, **options) for each in (sb3, buffers)]

    def values(self, space: Any) -> Any:
        if hasattr(space, "spaces"):
            return {key: self.values(part) for key, part in space.spaces.items()}
        return np.stack([space.sample() for _ in range(self.environments)])

    def add(self) -> None:
        n = self.environments
        given: list[Any] = [self.values(self.observations), self.values(self.observations), self.values(self.actions)]
        given += [self.numbers.random(n), self.numbers.random(n) < 0.2]
        given.append([{"TimeLimit.truncated": True} if each < 0.2 else {} for each in self.numbers.random(n)])
        for buffer in self.both:
            buffer.add(*copy.deepcopy(given))

    def same(self, call: Callable[[Any], Any]) -> None:
        seed = self.chance.randrange(1 << 30)
        results = []
        for buffer in self.both:
            np.random.seed(seed)
            results.append(outcome(lambda buffer=buffer: call(buffer)))
        assert_same(*results)

    def step(self) -> None:
        what = self.chance.random()
        if what < 0.6:
            self.add()
        elif what < 0.9:
            size = self.chance.randrange(0, 20)
            self.same(lambda buffer: sampled(buffer.sample(size)))
        elif what < 0.95:
            self.same(lambda buffer: {each: getattr(buffer, each) for each in ("pos", "full", "buffer_size", "n_envs")})
            self.same(lambda buffer: buffer.size())
            for name in ("actions", "rewards", "dones", "timeouts"):
                ours, theirs = (getattr(buffer, name) for buffer in self.both)
                used = self.both[1].size()
                assert_same(ours[:used], theirs[:used], name)
                assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        elif what < 0.97:
            for buffer in self.both:
                buffer.reset()
        else:
            self.both = [copy.deepcopy(buffer) for buffer in self.both]


def sampled(batch: Any) -> dict[str, Any]:
    """Returns a batch of Stable-Baselines3 as NumPy arrays."""
    found: dict[str, Any] = {}
    for name, value in batch._asdict().items():
        if isinstance(value, dict):
            found |= {f"{name}.{key}": part.numpy() for key, part in value.items()}
        elif value is not None:
            found[name] = value.numpy()
    return found


@pytest.mark.guarantee("replay-compatible")
@pytest.mark.parametrize("seed", SEEDS)
def test_sb3_buffers_match_the_originals(seed):
    pytest.importorskip("stable_baselines3", exc_type=ImportError)
    compare(seed, SB3)


# --- cpprb


class Cpprb:
    """A buffer of cpprb and one of ours, which get the same calls."""

    def __init__(self, chance: random.Random, folder: Any) -> None:
        import cpprb

        from shmtree.replay import cpprb as shim

        self.chance, self.numbers, self.folder = chance, np.random.default_rng(chance.randrange(1 << 30)), folder
        kinds = ["ReplayBuffer", "PrioritizedReplayBuffer", "MPReplayBuffer", "MPPrioritizedReplayBuffer"]
        self.kind = chance.choice(kinds)
        self.size = chance.randrange(4, 40)
        self.environment: dict[str, Any] = {
            "obs": {"shape": (2, 3)}, "act": {"shape": 2, "dtype": np.int16}, "rew": {}, "done": {}}  # fmt: skip
        options: dict[str, Any] = {}
        if self.is_prioritized:
            options = {"alpha": chance.choice([0.0, 0.6, 1.0]), "eps": chance.choice([1e-4, 0.1])}
        if self.kind == "PrioritizedReplayBuffer":
            options["check_for_update"] = chance.random() < 0.5
        if not self.kind.startswith("MP") and chance.random() < 0.3:
            options["Nstep"] = {"size": chance.choice([2, 3]), "gamma": 0.9, "rew": "rew", "next": "next_obs"}
            self.environment = {**self.environment, "next_obs": {"shape": (2, 3)}}
        self.has_nstep = "Nstep" in options
        self.both = [
            getattr(each, self.kind)(self.size, copy.deepcopy(self.environment), **copy.deepcopy(options))
            for each in (shim, cpprb)
        ]
        self.began = False

    @property
    def is_prioritized(self) -> bool:
        return "Prioritized" in self.kind

    def rows(self, count: int) -> dict[str, Any]:
        rows: dict[str, Any] = {}
        for name, spec in self.environment.items():
            shape = spec.get("shape", 1)
            shape = shape if isinstance(shape, tuple) else (shape,)
            values = self.numbers.integers(0, 100, (count, *shape)).astype(float)
            rows[name] = values[0] if count == 1 and self.chance.random() < 0.5 else values
        rows["done"] = (self.numbers.random(count) < 0.1).astype(float)
        return rows

    def same(self, call: Callable[[Any], Any]) -> Any:
        seed = self.chance.randrange(1 << 30)
        results = []
        for buffer in self.both:
            np.random.seed(seed)
            results.append(outcome(lambda buffer=buffer: call(buffer)))
        assert_same(*results, self.kind)
        return results[0]

    def step(self) -> None:
        what = self.chance.random()
        if what < 0.5:
            most = self.size // 2
            with_priorities = self.is_prioritized and self.chance.random() < 0.5
            if self.is_prioritized and (with_priorities or self.has_nstep):
                # cpprb restarts with its first priority at place 0.
                most = min(most, self.size - self.both[1].get_next_index())
                most = 1 if self.has_nstep else most
            rows = self.rows(self.chance.randrange(1, most + 1))
            count = len(rows["done"])
            if with_priorities:
                rows["priorities"] = self.numbers.random(count) * 3
                if self.chance.random() < 0.1:
                    rows["priorities"] = self.numbers.random(count + 1)
            added = self.same(lambda buffer: buffer.add(**copy.deepcopy(rows)))
            self.began = self.began or not isinstance(added, type)
        elif what < 0.7:
            self.sample(self.chance.randrange(1, 20))
        elif what < 0.85 and self.is_prioritized:
            stored = self.both[1].get_stored_size()
            if stored:
                dtype = self.chance.choice([np.int8, np.uint8, np.int64, np.float32])
                index = self.numbers.integers(0, stored, 5).astype(dtype)
                priorities = self.numbers.random(5) * 10
                self.same(lambda buffer: buffer.update_priorities(index, priorities))
        elif what < 0.9:
            shuffled = self.chance.randrange(2)
            for name in ("get_buffer_size", "get_stored_size", "get_next_index", "is_Nstep"):
                self.same(lambda buffer, name=name: getattr(buffer, name)())
            if self.began or not self.kind.startswith("MP"):  # cpprb's learners wait for the first row
                self.same(lambda buffer: buffer.get_all_transitions(shuffle=bool(shuffled)))
            if self.is_prioritized:
                assert np.isclose(*[buffer.get_max_priority() for buffer in self.both])
        elif what < 0.93:
            self.same(lambda buffer: buffer.clear())
        elif what < 0.96:
            self.same(lambda buffer: buffer.on_episode_end())
        elif not self.kind.startswith("MP"):
            self.save_and_load()

    def sample(self, count: int) -> None:
        if not self.is_prioritized:
            self.same(lambda buffer: buffer.sample(count))
        elif self.both[1].get_stored_size():  # cpprb reads past its rows if there are none
            beta = self.chance.choice([0.0, 0.4, 1.0])
            weights: list[dict[int, float]] = []
            for buffer in self.both:
                drawn = buffer.sample(count, beta)
                stored = buffer.get_all_transitions()
                for name, column in stored.items():
                    assert np.array_equal(drawn[name], column[drawn["indexes"]])
                assert (drawn["indexes"].dtype, drawn["weights"].dtype) == (np.uint64, np.float32)
                weights.append(dict(zip(drawn["indexes"].tolist(), drawn["weights"].tolist(), strict=True)))
            for index in weights[0].keys() & weights[1].keys():
                assert np.isclose(weights[0][index], weights[1][index], rtol=1e-3), (self.kind, index)

    def save_and_load(self) -> None:
        """Each buffer loads the file of the other one."""
        paths = [self.folder / f"{number}.npz" for number in range(2)]
        for buffer, path in zip(self.both, paths, strict=True):
            buffer.save_transitions(path)
        if self.both[1].get_stored_size():
            for buffer, path in zip(self.both, reversed(paths), strict=True):
                buffer.load_transitions(path)


@pytest.mark.guarantee("replay-compatible")
@pytest.mark.parametrize("seed", SEEDS)
def test_cpprb_buffers_match_the_originals(seed, tmp_path):
    pytest.importorskip("cpprb", exc_type=ImportError)
    compare(seed, lambda chance: Cpprb(chance, tmp_path))


# --- TorchRL


class TorchRL:
    """A buffer of TorchRL with its own storage and one with ours, which get the same calls."""

    def __init__(self, chance: random.Random, folder: Any) -> None:
        import torchrl.data
        from torchrl.data.replay_buffers.samplers import RandomSampler, SamplerWithoutReplacement

        from shmtree.replay.torchrl import SharedStorage, UniformSampler

        self.chance, self.folder = chance, folder
        size = chance.randrange(4, 40)
        self.is_plain = chance.random() < 0.3
        cls = torchrl.data.ReplayBuffer if self.is_plain else torchrl.data.TensorDictReplayBuffer
        ours, theirs = [
            (UniformSampler, RandomSampler),
            (SamplerWithoutReplacement, SamplerWithoutReplacement),
        ][chance.random() < 0.3]
        self.size = size
        self.both = [
            cls(storage=SharedStorage(size), sampler=ours(), batch_size=5),
            cls(storage=torchrl.data.LazyTensorStorage(size), sampler=theirs(), batch_size=5),
        ]
        self.next = 0

    def rows(self, count: int) -> Any:
        import torch
        from tensordict import TensorDict

        numbers = torch.arange(self.next, self.next + count)
        self.next += count
        if self.is_plain:
            return numbers.float()[:, None].expand(count, 3).clone()
        nested = TensorDict({"obs": numbers[:, None] * torch.ones(2)}, [count])
        half = numbers.to(torch.bfloat16)
        return TensorDict({"obs": numbers[:, None].int(), "next": nested, "half": half}, [count])

    def same(self, call: Callable[[Any], Any]) -> None:
        import torch

        seed = self.chance.randrange(1 << 30)
        results = []
        for buffer in self.both:
            torch.manual_seed(seed)
            results.append(outcome(lambda buffer=buffer: call(buffer)))
        assert_same(*map(flat, results))

    def step(self) -> None:
        what = self.chance.random()
        if what < 0.3:
            rows = self.rows(self.chance.randrange(1, self.size + 1))
            self.same(lambda buffer: buffer.extend(rows.clone()))
        elif what < 0.45:
            row = self.rows(1)[0]
            self.same(lambda buffer: buffer.add(row.clone()))
        elif what < 0.7:
            self.same(lambda buffer: buffer.sample())
        elif what < 0.85:
            size = len(self.both[1])
            index = self.chance.choice([0, slice(None), slice(1, None, 2), range(size), [0] * 3, size - 1, -1])
            if size:
                self.same(lambda buffer: buffer[index])
            self.same(len)
        elif what < 0.9:
            self.same(lambda buffer: buffer.empty())
        elif what < 0.95:
            if len(self.both[1]):
                for buffer in self.both:
                    buffer.load_state_dict(copy.deepcopy(buffer.state_dict()))
        elif len(self.both[1]):
            for buffer in self.both:
                path = self.folder / f"{self.chance.randrange(1 << 60)}"
                buffer.dumps(path)
                buffer.loads(path)


def flat(value: Any) -> Any:
    """Returns the tensors of a tensordict by key, as NumPy arrays."""
    import torch
    from tensordict import TensorDictBase

    if isinstance(value, torch.Tensor):
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    if not isinstance(value, TensorDictBase):
        return value
    found = {str(key): flat(value.get(key)) for key in value.keys(True, True)}
    return {"": np.array(value.batch_size), **dict(sorted(found.items()))}


@pytest.mark.guarantee("replay-compatible")
@pytest.mark.parametrize("seed", SEEDS)
def test_torchrl_storages_match_the_originals(seed, tmp_path):
    pytest.importorskip("torchrl.data", exc_type=ImportError)
    compare(seed, lambda chance: TorchRL(chance, tmp_path))


# --- py-sharedmemory


@pytest.mark.guarantee("replay-compatible")
@pytest.mark.parametrize("seed", SEEDS)
def test_py_sharedmemory_pairs_match_the_originals(seed):
    theirs = pytest.importorskip("py_sharedmemory", reason="py_sharedmemory is not installed", exc_type=ImportError)
    from shmtree.compat import py_sharedmemory as ours

    chance = random.Random(seed)
    for capacity in (None, 0, 1, 3):
        pairs = [module.create_shared_memory_pair(capacity) for module in (ours, theirs)]
        queued = 0
        for number in range(OPERATIONS // 12):
            value = chance.choice([number, "x" * number, np.arange(number), {"a": [None, number]}, b"y" * 70_000])
            what = chance.random()
            if what < 0.5:
                results = [outcome(lambda s=s, value=value: s.put_nowait(value)) for s, _ in pairs]
                queued += results[1] is None
            elif what < 0.9:
                # A thread delivers messages of the original, so wait only if one was put.
                wait = {"timeout": 60} if queued else {"block": False}
                results = [outcome(lambda r=r, wait=wait: r.get(**wait)) for _, r in pairs]
                queued -= bool(queued)
                if not queued:
                    assert all(s.wait_for_all_ack(timeout=60) for s, _ in pairs)
            else:
                results = [s.wait_for_all_ack(timeout=0 if queued else 60) for s, _ in pairs]
            assert_same(*results)
            if capacity and queued < capacity:  # the original has space once a thread has received the ack
                while len(pairs[1][0]._blocks) > queued:
                    pass
        for sender, receiver in pairs:
            while queued and sender is pairs[1][0]:
                receiver.get(timeout=60)
                queued -= 1
            sender.close()
            receiver.close()
