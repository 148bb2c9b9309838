"""Statements of docs/queues.md about programs that come from torch.multiprocessing."""

from __future__ import annotations

import pytest

import shmtree
from shmtree import multiprocessing as mp

torch = pytest.importorskip("torch")


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((64, 64), float(index)), {"square": index * index}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader_with_our_context_uses_our_queues(method):
    loader = torch.utils.data.DataLoader(
        Squares(), batch_size=4, num_workers=2, multiprocessing_context=mp.get_context(method)
    )

    batches = iter(loader)

    assert isinstance(batches._worker_result_queue, shmtree.Queue)
    assert all(isinstance(each, shmtree.Queue) for each in batches._index_queues)
    found = [(pictures.mean().item(), squares["square"].tolist()) for pictures, squares in batches]
    assert found == [(1.5, [0, 1, 4, 9]), (5.5, [16, 25, 36, 49])]


def test_sender_and_receiver_of_a_tensor_see_no_later_writes():
    q = mp.Queue()
    sent = torch.zeros(100_000)
    q.put(sent)
    sent[0] = 1
    received = q.get()
    received[1] = 2
    assert received[:2].tolist() == [0, 2]
    assert sent[:2].tolist() == [1, 0]


def test_only_the_elements_of_a_slice_are_sent():
    q = mp.Queue()
    q.put(torch.zeros(1_000_000)[:10])
    assert q.get().untyped_storage().nbytes() == 40


def test_a_tensor_in_the_middle_of_a_graph_arrives_as_a_leaf():
    q = mp.Queue()
    q.put(torch.ones(2, requires_grad=True) * 2)
    received = q.get()
    assert received.is_leaf and received.requires_grad and received.tolist() == [2, 2]


def add_one(tensor):
    tensor += 1


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_shared_tensor_as_an_argument_of_our_process_is_shared(method):
    tensor = torch.zeros(3).share_memory_()
    process = mp.get_context(method).Process(target=add_one, args=(tensor,))
    process.start()
    process.join(100)
    assert tensor.tolist() == [1, 1, 1]
