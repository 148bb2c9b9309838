"""Weights that are stored in an arena, and sent to any number of receivers by reference."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest

import shmtree
from shmtree import multiprocessing as mp

torch = pytest.importorskip("torch")

import shmtree.torch  # noqa: E402  # needs torch

MIB = 1 << 20


def used(arena: shmtree.Arena) -> int:
    return int(arena.stats()["used_bytes"])


def model() -> Any:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.BatchNorm1d(512), torch.nn.Linear(512, 10))


@pytest.mark.guarantee("shared-tensors")
def test_sending_shared_weights_costs_one_reference_per_message() -> None:
    arena = shmtree.Arena(64 * MIB)
    pairs = [arena.create_pair() for _ in range(4)]
    weights = shmtree.torch.share({"w": torch.arange(MIB, dtype=torch.float32), "version": 3}, arena)
    before = used(arena)

    for sender, _ in pairs:
        sender.put(weights)
        sender.put(weights)

    assert used(arena) - before < 8 * 64 * 1024
    received = [receiver.get() for _, receiver in pairs]
    assert all(each["version"] == 3 and torch.equal(each["w"], weights["w"]) for each in received)
    weights["w"][5] = -1
    assert [float(each["w"][5]) for each in received] == [-1] * 4


@pytest.mark.guarantee("shared-tensors")
def test_shared_memory_is_freed_with_the_last_tensor() -> None:
    arena = shmtree.Arena(64 * MIB)
    sender, receiver = arena.create_pair()
    before = used(arena)
    weights = shmtree.torch.share([torch.ones(MIB), torch.zeros(MIB)], arena)
    sender.put(weights)
    del weights
    first, second = receiver.get()
    del first
    assert used(arena) - before >= 8 * MIB
    assert float(second.sum()) == 0
    del second
    assert used(arena) - before < MIB


def test_share_of_a_module_is_a_state_dict_that_another_loads() -> None:
    arena = shmtree.Arena(64 * MIB)
    sender, receiver = arena.create_pair()
    net = model()
    sender.put(shmtree.torch.share(net, arena))
    other = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.BatchNorm1d(512), torch.nn.Linear(512, 10))
    state = receiver.get()
    assert type(state) is dict
    other.load_state_dict(state)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(net.state_dict().values(), state.values()))
    assert not any(tensor.requires_grad for tensor in state.values())


def test_state_dict_with_shared_parameters_is_sent_by_reference() -> None:
    arena = shmtree.Arena(64 * MIB)
    sender, receiver = arena.create_pair()
    net = model()
    net.load_state_dict(shmtree.torch.share(net, arena), assign=True)
    before = used(arena)
    for _ in range(3):
        sender.put(dict(net.state_dict()))
    assert used(arena) - before < MIB
    received = receiver.get()
    net[0].weight.data[0, 0] = 9
    assert float(received["0.weight"][0, 0]) == 9


def test_a_queue_sends_shared_tensors_by_reference_too() -> None:
    arena = shmtree.Arena(64 * MIB)
    queue = arena.Queue()
    weights = shmtree.torch.share(torch.ones(MIB), arena)
    before = used(arena)
    for _ in range(3):
        queue.put(weights)
    assert used(arena) - before < MIB
    assert torch.equal(queue.get(), weights)


def test_channel_of_another_arena_copies_shared_tensors() -> None:
    arena = shmtree.Arena(64 * MIB)
    sender, receiver = shmtree.create_pair()
    weights = shmtree.torch.share(torch.ones(MIB), arena)
    sender.put(weights)
    received = receiver.get()
    weights[0] = 5
    assert float(received[0]) == 1


def test_weights_shared_without_an_arena_are_sent_by_reference() -> None:
    sender, receiver = shmtree.create_pair()
    weights = shmtree.torch.share(torch.ones(MIB))
    sender.put(weights)
    sender.put(weights)
    receiver.get()
    received = receiver.get()
    weights[0] = 5
    assert float(received[0]) == 5


def test_get_with_copy_returns_tensors_with_their_own_memory() -> None:
    arena = shmtree.Arena(64 * MIB)
    sender, receiver = arena.create_pair()
    weights = shmtree.torch.share({"w": torch.ones(MIB)}, arena)
    sender.put(weights)
    received = receiver.get(copy=True)
    received["w"][0] = 5
    assert float(weights["w"][0]) == 1


Point = namedtuple("Point", "x y")


def test_share_copies_the_tensors_of_a_pytree_and_nothing_else() -> None:
    one = torch.rand(3, 4, requires_grad=True)
    nest = {"a": [one, (one.t(), "text")], "p": Point(torch.tensor(7, dtype=torch.bfloat16), None), "e": torch.empty(0)}
    shared = shmtree.torch.share(nest)
    assert torch.equal(shared["a"][0], one.detach()) and torch.equal(shared["a"][1][0], one.detach().t())
    assert shared["a"][1][1] == "text" and type(shared["p"]) is Point and shared["p"].x == 7
    assert shared["p"].x.dtype is torch.bfloat16 and shared["e"].shape == (0,)
    shared["a"][0][0, 0] = 5
    assert one[0, 0] != 5 and one.requires_grad and not shared["a"][0].requires_grad
    assert type(shmtree.torch.share(OrderedDict(x=one))) is OrderedDict


def test_tied_weights_are_copied_once_and_stay_tied() -> None:
    one = torch.ones(1000)
    shared = shmtree.torch.share({"a": one, "b": one, "c": one[:500]})
    assert shared["a"].data_ptr() == shared["b"].data_ptr() != shared["c"].data_ptr()


def test_sharing_a_sparse_tensor_raises_type_error() -> None:
    with pytest.raises(TypeError, match="sparse"):
        shmtree.torch.share([torch.ones(2).to_sparse()])


def test_show_rejects_a_sent_array_and_one_outside_an_arena() -> None:
    sender, _ = shmtree.create_pair()
    array = sender.new_empty(10_000)
    sender.put(array)
    with pytest.raises(ValueError, match="gave it away"):
        shmtree._core.show(array)
    with pytest.raises(ValueError, match="made in an arena"):
        shmtree._core.show(np.zeros(3))


def sums(receiver: Any, results: Any, versions: int) -> None:
    torch.set_num_threads(1)
    for _ in range(versions):  # not until the end of the stream: a forked child has a sender too
        results.put(float(receiver.get(timeout=100)["w"].sum()))


@pytest.mark.guarantee("shared-tensors")
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_every_process_receives_each_version_complete(method: str) -> None:
    context = mp.get_context(method)
    arena = shmtree.Arena(64 * MIB)
    pairs = [arena.create_pair() for _ in range(2)]
    results = context.Queue()
    actors = [context.Process(target=sums, args=(receiver, results, 5)) for _, receiver in pairs]
    for actor in actors:
        actor.start()
    for version in range(5):
        weights = shmtree.torch.share({"w": torch.full((MIB,), float(version))}, arena)
        for sender, _ in pairs:
            sender.put(weights)
    got = sorted(results.get(timeout=100) for _ in range(10))
    for sender, receiver in pairs:
        sender.close()
        receiver.close()
    for actor in actors:
        actor.join(100)
        assert actor.exitcode == 0
    assert got == [float(version * MIB) for version in range(5) for _ in range(2)]
