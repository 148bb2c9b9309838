"""Tensors and modules that several processes share."""

from __future__ import annotations

import copy
import io
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest

import shmtree
from shmtree import multiprocessing as mp

torch = pytest.importorskip("torch")

import shmtree.torch  # noqa: E402  # needs torch


def model() -> Any:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())


def write(tensor: Any, model: Any, queue: Any) -> None:
    torch.set_num_threads(1)  # the threads of the parent's pool do not exist after a fork
    tensor += 1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.rand(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    queue.put(float(model[0].weight.detach().sum()))


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_other_processes_see_writes_to_shared_tensors(method: str) -> None:
    tensor = shmtree.torch.share_(torch.zeros(5, dtype=torch.bfloat16))
    net = shmtree.torch.share_(model())
    before = float(net[0].weight.detach().sum())
    queue = mp.get_context(method).Queue()

    process = mp.get_context(method).Process(target=write, args=(tensor, net, queue))
    process.start()
    process.join(100)

    assert tensor.tolist() == [1] * 5
    assert float(net[0].weight.detach().sum()) == queue.get() != before
    assert int(net[1].num_batches_tracked) == 1


def test_shared_tensor_is_sent_through_a_channel_by_reference() -> None:
    sender, receiver = shmtree.create_pair()
    tensor = shmtree.torch.share_(torch.arange(6.0).reshape(2, 3))
    sender.put({"weights": tensor})
    received = receiver.get()["weights"]
    received[1, 2] = -1
    assert tensor.tolist() == [[0, 1, 2], [3, 4, -1]]
    assert isinstance(received, torch.Tensor) and received.shape == (2, 3)


def test_sharing_is_in_place_and_preserves_tensor_properties() -> None:
    net = model().to(memory_format=torch.channels_last)
    weight, values, strides = net[0].weight, net[0].weight.detach().clone(), net[0].weight.stride()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    assert shmtree.torch.share_(net) is net

    assert net[0].weight is weight and torch.equal(weight, values) and weight.stride() == strides
    assert isinstance(weight, torch.nn.Parameter) and weight.requires_grad and weight.is_leaf
    net(torch.rand(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    assert not torch.equal(weight, values)
    assert type(weight + 1) is torch.Tensor and type(weight.detach()) is torch.Tensor


def test_parameter_used_twice_in_a_module_remains_one() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    net[1].weight = net[0].weight
    shmtree.torch.share_(net)
    again = ForkingPickler.loads(ForkingPickler.dumps(net))
    assert net[1].weight is net[0].weight and again[1].weight is again[0].weight
    assert again[0].weight.data_ptr() == net[0].weight.data_ptr()


def test_sharing_twice_changes_nothing() -> None:
    tensor = shmtree.torch.share_(torch.ones(3))
    place = tensor.data_ptr()
    assert shmtree.torch.share_(tensor).data_ptr() == place


def test_deepcopy_of_a_shared_tensor_has_its_own_memory() -> None:
    net = shmtree.torch.share_(model())
    copied = copy.deepcopy(net)
    assert type(copied[0].weight) is torch.nn.Parameter and torch.equal(copied[0].weight, net[0].weight)
    assert copied[0].weight.data_ptr() != net[0].weight.data_ptr()
    tensor = shmtree.torch.share_(torch.ones(3))
    assert type(copy.deepcopy(tensor)) is torch.Tensor and copy.deepcopy(tensor).data_ptr() != tensor.data_ptr()


def test_replaced_data_of_a_shared_parameter_is_sent() -> None:
    parameter = shmtree.torch.share_(torch.nn.Parameter(torch.zeros(3)))
    parameter.data = torch.ones(3)
    assert ForkingPickler.loads(ForkingPickler.dumps(parameter)).tolist() == [1, 1, 1]


def test_view_retains_memory_of_a_dropped_shared_tensor() -> None:
    tensor = shmtree.torch.share_(torch.arange(1000.0))
    other = ForkingPickler.loads(ForkingPickler.dumps(tensor))
    view = other[10:20]
    del tensor, other
    assert view.tolist() == list(range(10, 20))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: torch.eye(3).to_sparse(), "sparse"),
        (lambda: {"weight": torch.ones(3)}, "dict"),
        (lambda: torch.ones(3, requires_grad=True) * 2, "detach"),
        (lambda: torch.ones(3, device="meta"), "meta"),
    ],
)
def test_sharing_an_unsupported_value_raises_with_the_reason(make: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        shmtree.torch.share_(make())


def test_shared_tensor_without_elements_retains_its_shape() -> None:
    assert shmtree.torch.share_(torch.empty(0, 3)).shape == (0, 3)


def test_saved_and_loaded_shared_tensors_have_equal_values() -> None:
    net = shmtree.torch.share_(torch.nn.Linear(2, 2))
    tensor = shmtree.torch.share_(torch.arange(4.0))
    file = io.BytesIO()

    torch.save({"net": net.state_dict(keep_vars=True), "tensor": tensor}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)

    assert type(loaded["tensor"]) is torch.Tensor and torch.equal(loaded["tensor"], tensor)
    assert type(loaded["net"]["weight"]) is torch.nn.Parameter and torch.equal(loaded["net"]["weight"], net.weight)
    loaded["tensor"][0] = 7
    assert tensor[0] == 0


def test_tensors_with_one_storage_still_share_it() -> None:
    net = torch.nn.Module()
    net.whole = torch.nn.Parameter(torch.zeros(3))
    net.same = torch.nn.Parameter(net.whole.data)
    net.register_buffer("part", net.whole.detach()[1:])
    again = ForkingPickler.loads(ForkingPickler.dumps(shmtree.torch.share_(net)))
    with torch.no_grad():
        again.whole.fill_(1)
    assert net.same.tolist() == [1, 1, 1] and net.part.tolist() == [1, 1] == again.part.tolist()


def test_a_parameter_can_be_made_of_a_shared_tensor() -> None:
    tensor = shmtree.torch.share_(torch.zeros(3))
    parameter = torch.nn.Parameter(tensor)
    again = ForkingPickler.loads(ForkingPickler.dumps(parameter))
    assert isinstance(parameter, torch.nn.Parameter) and isinstance(again, torch.nn.Parameter)
    tensor[0] = 1
    assert parameter[0] == again[0] == 1


def test_share_changes_no_tensor_if_one_is_unsupported() -> None:
    net = torch.nn.Module()
    net.good = torch.nn.Parameter(torch.zeros(3))
    net.register_buffer("bad", torch.eye(3).to_sparse())
    with pytest.raises(TypeError, match="sparse"):
        shmtree.torch.share_(net)
    assert type(net.good) is torch.nn.Parameter
