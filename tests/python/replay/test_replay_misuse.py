"""Errors of a replay buffer: each text names the argument, its value, and the allowed values."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import queue
import re
from typing import Any

import numpy as np
import pytest
from replay_options import grouped

from shmtree.replay import Episodes, Prioritized, RateLimit, ReplayBuffer, Sampling, Uniform

ROW = {"obs": np.zeros(4, np.float32), "action": 0, "reward": 0.0, "done": False}


def made(capacity: Any = 100, **options: Any) -> ReplayBuffer:
    if "columns" not in options:
        options.setdefault("example", ROW)
    return ReplayBuffer(capacity, **grouped(**options))


def columns(n: int = 5, **leaves: Any) -> dict[str, Any]:
    rows = {"obs": np.zeros((n, 4), np.float32), "action": np.zeros(n, int), "reward": np.zeros(n, np.float32)}
    return {**rows, "done": np.zeros(n, bool), **leaves}


def sizes(shape: Any, dtype: str = "u1") -> dict[str, Any]:
    return {"columns": {"x": (shape, dtype)}}


MADE: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"stack": 5}, TypeError, "stack is 5; it must be a dict"),
    ({"stack": ["obs"]}, TypeError, "stack is ['obs']; it must be a dict"),
    ({"stack": {"obz": 4}}, ValueError, 'stack has "obz", which is not a key of the rows; they have "obs", "action"'),
    ({"stack": {"obs": 2000}}, ValueError, "stack['obs'] is 2000; it must be at most 1024"),
    ({"arena": 0}, TypeError, "arena is 0; it must be an Arena, or None"),
    ({"seed": 1.5}, TypeError, "seed is 1.5; it must be an int, or None"),
    ({"capacity": 2**70}, ValueError, f"capacity is {2**70}; it must be at most {2**63 - 1}"),
    ({"capacity": 2**62}, ValueError, f"capacity is {2**62} rows; it must be from 1 to {2**40}"),
    ({"streams": 2**64}, ValueError, f"streams is {2**64}; it must be at most"),
    ({"capacity": None, "max_bytes": 2**70}, ValueError, f"max_bytes is {2**70}; it must be at most"),
    ({"capacity": None, "max_bytes": 2**62}, ValueError, f"max_bytes is {2**62}, but this machine has only "),
    (
        sizes((2**40, 2**30)),
        ValueError,
        f"row['x'] has the shape ({2**40}, {2**30}) of uint8, {2**70} bytes; the limit is",
    ),
    (sizes((2**62,), "f8"), ValueError, f"{2**65} bytes; the limit is {2**40}"),
    (sizes((2**70,)), ValueError, f"{2**70} bytes; the limit is"),
    ({"sampler": [Uniform()]}, TypeError, "sampler is [Uniform(max_times=None)]; it must be one of Uniform()"),
    ({"sampler": "per"}, TypeError, "sampler is 'per'; it must be one of Uniform()"),
    ({"sampler": Uniform}, TypeError, "it must be one of Uniform(), Prioritized(), Fifo()"),
    ({"sampler": {}}, ValueError, "sampler is an empty dict"),
    ({"sampler": {1: Uniform()}}, TypeError, "sampler has the name 1; it must be a str"),
    ({"rate": 8.0}, TypeError, "rate is 8.0; it must be a RateLimit, or None"),
    ({"chunk": 128}, ValueError, "chunk is 128 rows; it must be a power of two, at most 64"),
    ({"stack_padding": "last"}, ValueError, "stack_padding is 'last'; it must be 'zeros' or 'first'"),
    ({"next": 5}, TypeError, "next is 5; it must be a key of a row, or several keys"),
    ({"next": [["obs"]]}, ValueError, "next has a key that is not a text, which is not a key of the rows"),
    ({"reward": ["reward"]}, ValueError, "reward has a key that is not a text, which is not a key of the rows"),
    ({"n_step": 2**62}, ValueError, f"n_step is {2**62}; it must be at most 1024"),
    ({"n_step": 2**33}, ValueError, f"n_step is {2**33}; it must be at most 1024"),
    (sizes("f4", (3,)), TypeError, "it must be a pair of a shape and a dtype, such as ((4, 84, 84), np.uint8)"),
]


@pytest.mark.parametrize(("options", "error", "text"), MADE)
def test_constructor_error_names_the_argument(options, error, text):
    with pytest.raises(error, match=re.escape(text)):
        made(**options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sampling": Prioritized()}, "sampling is Prioritized(max_times=None, alpha=0.6, beta=0.4, eps=1e-06); "),
        ({"sampling": Prioritized()}, "; pass sampling=Sampling(Prioritized())"),
        ({"sampling": {"all": Uniform()}}, "; pass sampling=Sampling({...})"),
        ({"sampling": 7}, "sampling is 7; pass sampling=Sampling(Prioritized())"),
        ({"episodes": "obs"}, "episodes is 'obs'; pass episodes=Episodes(next='obs')"),
        ({"episodes": {"n_step": 3}}, "episodes is {'n_step': 3}; pass episodes=Episodes(next=..., n_step=...)"),
        ({"limits": RateLimit(1.0)}, "; pass limits=Limits(rate=RateLimit(...))"),
        ({"limits": 64}, "limits is 64; pass limits=Limits(rate=...)"),
    ],
)
def test_option_of_another_class_is_refused_with_the_remedy(options, text, tmp_path):
    made().save(tmp_path)
    with pytest.raises(TypeError, match=re.escape(text)):
        ReplayBuffer(100, example=ROW, **options)
    with pytest.raises(TypeError, match=re.escape(text)):
        ReplayBuffer.load(tmp_path, **options)


def test_options_are_copied_and_equal_by_value():
    samplers, stack, keys = {"all": Uniform()}, {"obs": 4}, ["obs"]
    sampling, episodes = Sampling(samplers, seed=-1), Episodes(next=keys, stack=stack)
    samplers.clear(), stack.clear(), keys.clear()
    assert sampling == Sampling({"all": Uniform()}, seed=2**64 - 1)
    assert episodes == Episodes(next="obs", stack={"obs": 4}) == pickle.loads(pickle.dumps(episodes))
    with pytest.raises(dataclasses.FrozenInstanceError):
        episodes.n_step = 3  # type: ignore[misc]


@pytest.mark.parametrize("seed", [np.int8(3), np.uint64(2**64 - 1), -1, 2**70, True])
def test_any_int_is_a_seed(seed):
    first, second = made(seed=seed), made(seed=int(seed))
    for buffer in (first, second):
        buffer.extend(columns(100, action=np.arange(100)))
    assert (first.sample(50).data["action"] == second.sample(50).data["action"]).all()


@pytest.mark.parametrize("version", [2**63, -(2**63) - 1, 2**70])
def test_a_version_over_64_bits_is_refused(version):
    buffer = made()
    text = f"version is {version}; it must be from -2**63 to 2**63 - 1"
    for writer in (buffer.writer(), buffer.vector_writer(2)):
        with pytest.raises(ValueError, match=re.escape(text)):
            writer.version = version
        assert writer.version == 0


def test_a_version_that_is_no_int_is_refused():
    with pytest.raises(TypeError, match=r"version is 1.5; it must be an int"):
        made().writer().version = 1.5


ADDED: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    (
        "extend",
        {"rows": columns(action=np.zeros(3, int))},
        ValueError,
        "rows['action'] has 3 rows and rows['obs'] has",
    ),
    (
        "extend",
        {"rows": columns(obs=np.zeros(4))},
        ValueError,
        "rows['obs'] has the shape (4,); for n rows it must be (n, 4)",
    ),
    ("extend", {"rows": columns(), "ends": [4]}, ValueError, "ends has the shape (1,); with 5 rows"),
    ("extend", {"rows": columns(), "ends": [0, 2, 0, 0, 1]}, ValueError, "ends contains 2.0; it must be a mask"),
    (
        "extend",
        {"rows": columns(), "ends": "no"},
        TypeError,
        "ends has the dtype <U2; it must have a number for each row",
    ),
    ("extend", {"rows": columns(), "ends": np.zeros((5, 1))}, ValueError, "ends has the shape (5, 1)"),
    ("extend", {"rows": columns(), "priority": 1.0}, ValueError, "priority has the shape (); with 5 rows"),
    (
        "extend",
        {"rows": columns(), "priority": [1, -1, 1, 1, 1]},
        ValueError,
        "priority number 1 is -1; it must be a finite",
    ),
    ("add", {"row": ROW, "priority": "a"}, TypeError, "priority is 'a'; it must be a number"),
    ("add", {"row": ROW, "priority": np.ones(3)}, TypeError, "priority is array([1., 1., 1.]); it must be a number"),
    ("add", {"row": ROW, "priority": 1e300}, ValueError, "priority number 0 is 1e+300; it must be at most "),
    ("end", {"truncated": np.zeros(2)}, TypeError, "truncated is array([0., 0.]); it must be true or false"),
]


@pytest.mark.parametrize(("method", "given", "error", "text"), ADDED)
def test_writer_errors_name_the_argument(method, given, error, text):
    buffer = made(sampler=Prioritized(alpha=1.0))
    with pytest.raises(error, match=re.escape(text)):
        getattr(buffer, method)(**given)
    assert len(buffer) == 0


def test_a_mask_of_ends_may_be_of_bools_or_of_zeros_and_ones():
    for ends in ([False, True, False], [0, 1, 0], np.array([0.0, 1.0, 0.0]), np.array([0, 1, 0], np.uint8)):
        buffer = made(done=None)
        buffer.extend(columns(3), ends=ends)
        batch = buffer.sample_sequences(100, 3)
        assert set(batch.mask.sum(1).tolist()) == {1, 2}
        buffer.vector_writer(3).add(columns(3), end=ends)


def test_vector_writer_rejects_unfitting_rows():
    writer = made().vector_writer(3)
    with pytest.raises(ValueError, match="rows has 2 rows; it must have 3, one for each stream"):
        writer.add(columns(2))
    with pytest.raises(ValueError, match=re.escape("rows['obs'] has the shape (4,); for n rows it must be (n, 4)")):
        writer.add(ROW)


def test_vector_writer_rejects_too_many_streams():
    with pytest.raises(ValueError, match=f"n is {2**62}; it must be at most"):
        made().vector_writer(2**62)


DRAWN: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"n": 2**70}, ValueError, f"n is {2**70}; it must be at most {2**31}"),
    ({"n": 2**40}, ValueError, f"n is {2**40}; it must be at most {2**31}"),
    ({"n": 2, "threads": 2**33}, ValueError, f"threads is {2**33}; it must be at most 1024"),
    ({"n": 2, "out": "mine"}, ValueError, "out is 'mine'; it must be 'arena', or a pytree of arrays"),
    ({"n": 2, "beta": 10**400}, ValueError, "it must be at most 1.8e308"),
    ({"n": 2, "length": 2, "stride": 2**40}, ValueError, f"stride is {2**40}; it must be at most {2**32}"),
    ({"n": 2**30, "length": 2**30}, ValueError, f"n is {2**30}: a batch of {2**30} x {2**30} rows of "),
]


@pytest.mark.parametrize(("given", "error", "text"), DRAWN)
def test_sample_errors_name_the_argument(given, error, text):
    buffer = made()
    buffer.add(ROW)
    with pytest.raises(error, match=re.escape(text)):
        buffer.sample_sequences(**given) if "length" in given else buffer.sample(**given)


def test_batch_larger_than_memory_is_rejected_with_the_numbers():
    buffer = made(10, example={"pixels": np.zeros(100_000, np.uint8)})
    buffer.add({"pixels": np.zeros(100_000, np.uint8)})
    text = f"n is {2**31}: a batch of {2**31} rows of [0-9]+ bytes; the machine has [0-9]+ bytes left"
    with pytest.raises(ValueError, match=text):
        buffer.sample(2**31)


UPDATED: list[tuple[Any, Any, type[Exception], str]] = [
    ([[1]], [1.0], ValueError, "index has the shape (1, 1), but priority has (1,); they must be equal"),
    ([[1], [1, 2]], [1.0], ValueError, "index is a list, which is not an array of numbers"),
    (None, [1.0], TypeError, "index is a NoneType; it must be an array of numbers"),
    ([1], ["a"], TypeError, "priority is an array of <U1; it must be an array of numbers"),
    ([1.0], [1.0], TypeError, "index is of float64; it must be of integers"),
]


@pytest.mark.parametrize(("index", "priority", "error", "text"), UPDATED)
def test_update_priorities_errors_name_the_argument(index, priority, error, text):
    with pytest.raises(error, match=re.escape(text)):
        made(sampler=Prioritized()).update_priorities(index, priority)


def test_update_priorities_returns_a_mask_of_the_given_shape():
    buffer = made(sampler=Prioritized())
    index = buffer.extend(columns(6)).reshape(2, 3)
    assert buffer.update_priorities(index, np.full((2, 3), 7.0)).tolist() == [[True] * 3] * 2


def test_update_priorities_rejects_a_batch_as_index():
    buffer = made(sampler=Prioritized())
    buffer.add(ROW)
    with pytest.raises(TypeError, match="index is a Batch; it must be an array of numbers"):
        buffer.update_priorities(buffer.sample(2), [1.0, 1.0])


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copying_or_pickling_a_writer_raises_type_error(copied):
    writers = made().vector_writer(3)
    for each, name in ((writers, "VectorWriter"), (writers.writers[0], "Writer")):
        with pytest.raises(TypeError, match=f"cannot pickle '{name}' object"):
            copied(each)
    assert repr(writers) == "<VectorWriter of 3>"
    writers.close()
    assert repr(writers) == "<VectorWriter of 3, closed>"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copying_a_buffer_raises_type_error(copied):
    with pytest.raises(TypeError, match=r"a replay buffer cannot be copied; .* save\(\) and load\(\)"):
        copied(made())
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy({"buffer": made()})


@pytest.mark.parametrize("path", [5, None])
def test_save_and_load_reject_an_invalid_path(path):
    text = f"path is {path}; it must be a str or an os.PathLike"
    with pytest.raises(TypeError, match=text):
        made().save(path)
    with pytest.raises(TypeError, match=text):
        ReplayBuffer.load(path)


def test_sampler_and_limit_numbers_out_of_range_are_rejected():
    with pytest.raises(ValueError, match=f"min_size is {2**70}; it must be at most"):
        RateLimit(1.0, min_size=2**70)
    with pytest.raises(ValueError, match="alpha is 1000.*; it must be at most 1.8e308"):
        Prioritized(alpha=10**400)


def test_sample_of_an_empty_buffer_names_the_reason():
    with pytest.raises(queue.Empty, match="there are no rows to sample"):
        made().sample(1, timeout=0)


def test_arena_is_checked_before_a_buffer_of_the_name_is_opened(runtime_directory, name):
    kept = ReplayBuffer(10, example=ROW, name=name)
    with pytest.raises(TypeError, match="arena is 0; it must be an Arena, or None"):
        ReplayBuffer(10, example=ROW, name=name, exist_ok=True, arena=0)  # type: ignore[arg-type]
    del kept
