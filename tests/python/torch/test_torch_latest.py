"""Weights as versions of a Latest: published from one module, and loaded into another without an allocation."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import shmtree
from shmtree import multiprocessing as mp

torch = pytest.importorskip("torch")

import shmtree.torch  # noqa: E402  # needs torch


def model(seed: int = 1, dtype: Any = None) -> Any:
    torch.manual_seed(seed)
    made = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.BatchNorm1d(512), torch.nn.Linear(512, 10))
    return made if dtype is None else made.to(dtype)


def are_equal(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def load_and_report(latest: shmtree.Latest, results: Any) -> None:
    mine = model(3)
    version, value = latest.get(timeout=100)
    shmtree.torch.load_into(mine, value)
    results.put((version, float(mine[0].weight.detach().sum())))


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_load_into_copies_the_published_weights_of_a_module(dtype: Any) -> None:
    latest, mine, other = shmtree.Latest(), model(1, dtype), model(2, dtype)
    assert not are_equal(mine, other)
    assert shmtree.torch.publish(latest, mine) == 1
    version, value = latest.get()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shmtree.torch.load_into(other, value)
    assert version == 1
    assert are_equal(mine, other)


def test_load_into_writes_in_place_from_read_only_versions() -> None:
    latest, mine = shmtree.Latest(), model(1)
    shmtree.torch.publish(latest, model(2))
    before = [each.data_ptr() for each in mine.state_dict().values()]
    _, value = latest.get()
    assert isinstance(value["2.weight"], np.ndarray)
    assert not value["2.weight"].flags.writeable
    shmtree.torch.load_into(mine, value)
    assert [each.data_ptr() for each in mine.state_dict().values()] == before
    assert all(each.requires_grad for each in mine.parameters())


def test_load_into_works_in_another_process() -> None:
    context = mp.get_context("spawn")
    latest, results, mine = shmtree.Latest(), shmtree.Queue(), model(1)
    shmtree.torch.publish(latest, mine)
    process = context.Process(target=load_and_report, args=(latest, results))
    process.start()
    assert results.get(timeout=100) == (1, pytest.approx(float(mine[0].weight.detach().sum())))
    process.join()


def test_load_into_names_a_mismatch_and_copies_nothing() -> None:
    latest, mine, untouched = shmtree.Latest(), model(1), model(1)
    shmtree.torch.publish(latest, {**model(2).state_dict(), "more": torch.zeros(3)})
    with pytest.raises(KeyError, match="more"):
        shmtree.torch.load_into(mine, latest.get()[1])
    shmtree.torch.publish(latest, {**model(2).state_dict(), "2.weight": torch.zeros(3)})
    with pytest.raises(ValueError, match=r"'2.weight' has shape \(3,\) in the version, but \(10, 512\) in the module"):
        shmtree.torch.load_into(mine, latest.get()[1])
    assert are_equal(mine, untouched)


def test_get_copies_the_tensors_of_a_version_by_default() -> None:
    latest = shmtree.Latest()
    latest.publish({"w": torch.arange(100_000)})
    _, value = latest.get()
    value["w"][:] = 0
    _, shown = latest.get(copy=False)
    assert int(shown["w"][99_999]) == 99_999
    made = latest.new_empty((1000, 100), torch.float32)
    made[:] = 4
    latest.publish({"w": made})
    _, value = latest.get()
    value["w"][:] = 0
    assert float(latest.get()[1]["w"][3, 3]) == 4.0
    other = model(5)
    shmtree.torch.load_into(other, model(6).state_dict())
    assert are_equal(other, model(6))
