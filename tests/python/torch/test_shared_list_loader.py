"""SharedList as the data set of torch's DataLoader."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from starts import START_METHODS

from shmtree import SharedList
from shmtree import multiprocessing as shared_mp

torch = pytest.importorskip("torch")

import shmtree.torch  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:.*os.fork")


def samples(count: int) -> SharedList[Any]:
    return SharedList({"x": np.full((4, 4), number, "f4"), "label": number} for number in range(count))


@pytest.mark.parametrize("method", START_METHODS)
def test_workers_of_a_loader_read_one_list(method: str) -> None:
    loader = torch.utils.data.DataLoader(
        samples(40),
        batch_size=8,
        shuffle=True,
        num_workers=2,
        multiprocessing_context=shared_mp.get_context(method),
        collate_fn=shmtree.torch.collate,
    )
    labels: list[int] = []
    for batch in loader:
        assert batch["x"].shape == (8, 4, 4)
        assert batch["x"][:, 0, 0].tolist() == batch["label"].tolist()
        labels += batch["label"].tolist()
    assert sorted(labels) == list(range(40))


def test_collate_copies_read_only_arrays_without_a_warning() -> None:
    shared = samples(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = next(iter(torch.utils.data.DataLoader(shared, batch_size=4, collate_fn=shmtree.torch.collate)))
    batch["x"].zero_()
    assert shared[3]["x"].sum() == 48


def test_loader_asks_for_a_batch_at_once() -> None:
    calls = []

    class Counted(SharedList[Any]):
        def __getitems__(self, indices: Any) -> list[Any]:
            calls.append(list(indices))
            return super().__getitems__(indices)

    loader = torch.utils.data.DataLoader(Counted(range(6)), batch_size=3)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5]]
    assert calls == [[0, 1, 2], [3, 4, 5]]


def test_subset_and_random_split_take_a_list() -> None:
    shared = SharedList(range(10))
    first, second = torch.utils.data.random_split(shared, [7, 3], torch.Generator().manual_seed(0))
    assert sorted([*first, *second]) == list(range(10))
    assert [*torch.utils.data.Subset(shared, [3, 1])] == [3, 1]
    assert shared[torch.tensor(4)] == 4


def test_tensors_are_copies() -> None:
    shared = SharedList([{"weights": torch.arange(10_000.0)}])
    shared[0]["weights"].zero_()
    assert shared[0]["weights"].sum() == 49_995_000


@pytest.mark.parametrize("dtype", ["bool", "i1", "u1", "i4", "i8", "f2", "f4", "f8", "c8"])
def test_collate_of_read_only_arrays_is_that_of_torch(dtype: str) -> None:
    arrays = [np.arange(6).reshape(2, 3)[:, ::step].astype(dtype) for step in (1, -1)]
    expected = torch.utils.data.default_collate([{"x": array} for array in arrays])["x"]

    got = shmtree.torch.collate(list(SharedList({"x": array} for array in arrays)))["x"]

    assert got.dtype == expected.dtype and torch.equal(got, expected)
