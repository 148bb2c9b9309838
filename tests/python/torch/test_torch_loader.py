"""torch's DataLoader with our queues, and batches that are written once."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import shmtree
from shmtree import multiprocessing as mp

torch = pytest.importorskip("torch")

import shmtree.torch  # noqa: E402  # needs torch

SIDE = 64


class Samples(torch.utils.data.Dataset):
    def __init__(self, count: int = 12) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "image": {"pixels": torch.full((3, SIDE, SIDE), float(index)), "mask": np.full((SIDE, SIDE), index)},
            "box": torch.tensor([index, 2, 3, 4], dtype=torch.int16),
            "label": index,
            "weight": index / 2,
            "name": f"sample {index}",
            "pair": (np.float32(index), [index]),
        }


class Deadly(Samples):
    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Faulty(Samples):
    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 5:
            raise LookupError("sample 5 is missing")
        return super().__getitem__(index)


def loader(data: Any, method: str = "spawn", **options: Any) -> Any:
    return torch.utils.data.DataLoader(
        data,
        batch_size=4,
        collate_fn=shmtree.torch.collate,
        multiprocessing_context=mp.get_context(method),
        **{"num_workers": 1, **options},
    )


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, dict):
        return type(ours) is type(theirs) and list(ours) == list(theirs) and all(same(ours[k], theirs[k]) for k in ours)
    if isinstance(theirs, (list, tuple)):
        return type(ours) is type(theirs) and len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(theirs, torch.Tensor):
        return type(ours) is type(theirs) and ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    return type(ours) is type(theirs) and bool(ours == theirs)


@pytest.fixture
def as_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shmtree.torch._batches.get_worker_info", lambda: object())


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_batches_of_persistent_workers_equal_those_of_torch(method: str) -> None:
    data = Samples()
    expected = [torch.utils.data.default_collate([data[i] for i in range(at, at + 4)]) for at in range(0, 12, 4)]
    batches = loader(data, method, num_workers=2, persistent_workers=True)
    for _ in range(2):
        found = list(batches)
        assert all(map(same, found, expected)) and len(found) == len(expected)


def test_batch_without_workers_is_in_torchs_own_memory() -> None:
    batch = next(iter(torch.utils.data.DataLoader(Samples(), batch_size=4, collate_fn=shmtree.torch.collate)))
    assert same(batch, torch.utils.data.default_collate([Samples()[i] for i in range(4)]))
    # the storage is torch's own memory, not a view of ours
    assert batch["image"]["pixels"].untyped_storage().resizable()


@pytest.mark.usefixtures("as_worker")
def test_queue_transfers_a_batch_without_a_copy() -> None:
    queue = mp.Queue()
    batch = shmtree.torch.collate([Samples()[i] for i in range(4)])
    places = batch["image"]["pixels"].data_ptr(), batch["image"]["mask"].data_ptr()

    queue.put((0, batch))
    received = queue.get()[1]

    assert (received["image"]["pixels"].data_ptr(), received["image"]["mask"].data_ptr()) == places
    assert received["image"]["pixels"][:, 0, 0, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.usefixtures("as_worker")
def test_part_of_a_batch_and_a_batch_put_again_are_copied() -> None:
    queue = mp.Queue()
    pixels = shmtree.torch.collate([Samples()[i]["image"]["pixels"] for i in range(4)])
    queue.put(pixels[1:])
    part = queue.get()
    queue.put(pixels)
    first = queue.get()
    queue.put(pixels)
    second = queue.get()
    assert first.data_ptr() == pixels.data_ptr()
    assert part.data_ptr() != pixels[1:].data_ptr() and second.data_ptr() != pixels.data_ptr()
    assert torch.equal(part, pixels[1:]) and torch.equal(second, pixels)


@pytest.mark.usefixtures("as_worker")
def test_a_batch_whose_elements_overlap_is_copied() -> None:
    queue = mp.Queue()
    batch = shmtree.torch.collate([torch.full((5000,), float(i)) for i in range(4)])
    queue.put(batch.unsqueeze(0).expand(2, -1, -1))
    assert torch.equal(queue.get(), batch.unsqueeze(0).expand(2, -1, -1))


@pytest.mark.usefixtures("as_worker")
def test_forked_child_sends_a_copy_of_its_parents_batch() -> None:
    queue = mp.Queue()
    batch = shmtree.torch.collate([torch.ones(5000)] * 4)
    process = mp.get_context("fork").Process(target=queue.put, args=(batch,))
    process.start()
    process.join(100)
    first = queue.get()
    queue.put(batch)
    queue.get().zero_()
    assert torch.equal(first, torch.ones(4, 5000))


def test_an_array_of_new_empty_is_still_copied_by_a_queue() -> None:
    arena = shmtree.Arena(64 << 20)
    queue = arena.Queue()
    array = arena.new_zeros(100_000)
    queue.put(array)
    array[0] = 1
    assert queue.get()[0] == 0 and array.flags.writeable


@pytest.mark.usefixtures("as_worker")
def test_collate_of_unequal_samples_raises_the_error_of_torch() -> None:
    with pytest.raises(RuntimeError, match="equal size"):
        shmtree.torch.collate([torch.zeros(100_000), torch.zeros(100_001)])


@pytest.mark.usefixtures("as_worker")
@pytest.mark.parametrize("count", [10, 100_000])
def test_samples_of_several_dtypes_are_stacked_by_torch(count: int) -> None:
    samples = [torch.zeros(count, dtype=torch.int64), torch.ones(count)]
    got = shmtree.torch.collate(samples)
    assert torch.equal(got, torch.utils.data.default_collate(samples)) and got.dtype is torch.float32


@pytest.mark.usefixtures("as_worker")
def test_samples_that_need_gradients_are_stacked_by_torch() -> None:
    samples = [torch.zeros(100_000, requires_grad=True)] * 2
    assert shmtree.torch.collate(samples).requires_grad


def test_descriptors_and_memory_do_not_grow_with_the_batches() -> None:
    def used() -> tuple[int, list[str], int]:
        files = len(os.listdir("/proc/self/fd"))
        pids = [str(os.getpid()), *(str(worker.pid) for worker in batches._workers)]
        names = [name for name in os.listdir("/dev/shm") if name.startswith("torch_") and name.split("_")[1] in pids]
        return files, names, arena().stats()["committed_bytes"]

    def arena() -> Any:
        return batches._worker_result_queue._channel.arena

    batches = iter(loader(Samples(400)))
    for _ in range(20):
        next(batches)
    files, names, committed = used()
    assert names == []
    for _ in range(70):
        next(batches)
    assert used()[:2] == (files, names)
    assert used()[2] <= committed + (8 << 20)  # a few batches are in progress: prefetched, or in use


def test_a_killed_worker_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="DataLoader worker .*(is killed|exited unexpectedly)"):
        list(loader(Deadly()))


def test_an_exception_in_a_worker_arrives_with_its_traceback() -> None:
    with pytest.raises(LookupError, match="sample 5 is missing") as caught:
        list(loader(Faulty()))
    assert "__getitem__" in str(caught.value)


@pytest.mark.filterwarnings("ignore:.*pin_memory:UserWarning")
def test_loader_with_pin_memory_yields_correct_batches() -> None:
    labels = [batch["label"].tolist() for batch in loader(Samples(), pin_memory=True)]
    assert labels == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
