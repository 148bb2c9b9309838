"""Public classes and functions as `help`, tracebacks and editors show them."""

from __future__ import annotations

import copy
import importlib
import inspect
import itertools
import pickle
import pydoc
import types
import typing
from collections.abc import Iterator

import numpy as np
import pytest

import shmtree
import shmtree.compat.py_sharedmemory
import shmtree.recording
import shmtree.replay.cpprb
import shmtree.spdl

MODULES = (
    "shmtree",
    "shmtree.compat.memory",
    "shmtree.compat.py_sharedmemory",
    "shmtree.cuda",
    "shmtree.gymnasium",
    "shmtree.ray",
    "shmtree.recording",
    "shmtree.replay",
    "shmtree.replay.cpprb",
    "shmtree.replay.sb3",
    "shmtree.replay.torchrl",
    "shmtree.sb3",
    "shmtree.spdl",
    "shmtree.torch",
)
#: Names of classes in shmtree's modules that other libraries define.
OTHERS = {"shmtree.replay.torchrl.UniformSampler", "shmtree.ShutDown"}
#: Classes without a public constructor, and a part of the error of a call.
MADE_BY = {
    "shmtree.Delivery": "use Receiver.take() or Receiver.dead_letters()",
    "shmtree.Frame": "use pack() or Receiver.take_frames()",
    "shmtree.HolderInfo": "use Arena.holders()",
    "shmtree.NameInfo": "use shmtree.list_names()",
    "shmtree.Receiver": "use shmtree.create_pair() or shmtree.open_receiver()",
    "shmtree.Request": "use Service.get()",
    "shmtree.RequestBatch": "use Service.get_batch()",
    "shmtree.Sender": "use shmtree.create_pair() or shmtree.open_sender()",
    "shmtree.SharedArray": "use Arena.array() or SharedArray.open()",
    "shmtree.SubprocessIterator": "use shmtree.iterate_in_subprocess()",
    "shmtree.Subscriber": "use Broadcast.subscribe()",
    "shmtree.compat.memory.SharedMemoryReceiver": "use create_shared_memory_pair()",
    "shmtree.compat.memory.SharedMemorySender": "use create_shared_memory_pair()",
    "shmtree.compat.py_sharedmemory.SharedMemoryReceiver": "use create_shared_memory_pair()",
    "shmtree.compat.py_sharedmemory.SharedMemorySender": "use create_shared_memory_pair()",
    "shmtree.cuda.DeviceArray": "use Receiver.get()",
    "shmtree.ray.Receiver": "use shmtree.ray.create_pair()",
    "shmtree.ray.Sender": "use shmtree.ray.create_pair()",
    "shmtree.recording.RecordedMessage": "use iter(Recording(path))",
    "shmtree.replay.Batch": "use ReplayBuffer.sample()",
    "shmtree.replay.Loader": "use ReplayBuffer.loader()",
    "shmtree.replay.Saved": "use ReplayBuffer.save()",
    "shmtree.replay.SequenceBatch": "use ReplayBuffer.sample_sequences()",
    "shmtree.replay.TensorBatch": "use Batch.to()",
    "shmtree.replay.VectorWriter": "use ReplayBuffer.vector_writer()",
    "shmtree.replay.Writer": "use ReplayBuffer.writer()",
    "shmtree.spdl.ArenaReader": "use SegmentPool.open_reader() or RingBuffer.open_reader()",
    "shmtree.spdl.ArenaWriter": "use SegmentPool.open_writer() or RingBuffer.open_writer()",
    "shmtree.torch.SharedParameter": "use shmtree.torch.share_()",
    "shmtree.torch.SharedTensor": "use shmtree.torch.share_()",
}


def imported(name: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("shmtree"):
            raise
        pytest.skip(f"{error.name} is not installed")


def classes_of(module: types.ModuleType) -> Iterator[tuple[str, type]]:
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing) and f"{module.__name__}.{name}" not in OTHERS:
            yield f"{module.__name__}.{name}", thing


def has_own_repr(cls: type) -> bool:
    """Returns True if the package, a standard class that shows all state, or Gymnasium defines `__repr__`."""
    if issubclass(cls, BaseException) or typing.is_typeddict(cls):
        return True
    owner = next(each for each in cls.__mro__ if "__repr__" in vars(each))
    is_tensor = any(base.__module__.startswith("torch") and base.__name__ == "Tensor" for base in cls.__mro__)
    return is_tensor or owner.__module__.split(".")[0] in ("shmtree", "gymnasium")


@pytest.mark.parametrize("name", MODULES)
def test_every_public_class_has_a_repr(name: str) -> None:
    assert [full for full, cls in classes_of(imported(name)) if not has_own_repr(cls)] == []


def test_a_class_without_a_repr_is_found() -> None:
    class Plain:
        pass

    assert not has_own_repr(Plain)


@pytest.mark.parametrize("name", MODULES)
def test_public_names_belong_to_their_public_module(name: str) -> None:
    module = imported(name)
    for each in module.__all__:
        thing = getattr(module, each)
        if callable(thing) and f"{name}.{each}" not in OTHERS:
            assert thing.__module__ == name
            assert pickle.loads(pickle.dumps(thing)) is thing


def test_methods_belong_to_the_module_of_their_class() -> None:
    assert "in module shmtree\n" in pydoc.plain(pydoc.render_doc(shmtree.Sender.put_async))
    assert pickle.loads(pickle.dumps(shmtree.Sender.put_async)) is shmtree.Sender.put_async


@pytest.mark.parametrize("name", MODULES)
def test_dir_lists_only_public_names(name: str) -> None:
    module = imported(name)
    listed = {each for each in dir(module) if not each.startswith("__")}
    modules = {"compat", "cuda", "multiprocessing", "ray", "recording", "replay", "spdl", "torch"}
    assert listed - (modules if name == "shmtree" else set()) == set(module.__all__)


@pytest.mark.parametrize("full", MADE_BY)
def test_calling_a_class_names_the_functions_to_use(full: str) -> None:
    module, _, name = full.rpartition(".")
    cls = getattr(imported(module), name)
    for args, options in (((), {}), ((1, 2, 3), {}), ((), {"name": 1})):
        with pytest.raises(TypeError) as caught:
            cls(*args, **options)
        assert str(caught.value) == f"cannot create a {name} by calling the class; {MADE_BY[full]}"


@pytest.mark.parametrize("name", MODULES)
def test_help_shows_a_constructor_only_where_there_is_one(name: str) -> None:
    for full, cls in classes_of(imported(name)):
        title = pydoc.plain(pydoc.render_doc(cls)).partition("class ")[2].partition("\n |  \n")[0]
        shows = f"\n |  {cls.__name__}(" in title
        is_error = issubclass(cls, BaseException)
        assert not (full in MADE_BY and shows), f"{full}: {title}"
        if not is_error and not typing.is_typeddict(cls) and cls is not shmtree.Observer:
            assert full in MADE_BY or shows, f"{full} has no constructor in help(); is it made by a function?"


def test_objects_that_functions_make_copy_and_pickle(tmp_path) -> None:
    arena = shmtree.Arena(name=f"public-names-{tmp_path.name}")
    known = next(each for each in shmtree.list_names() if each.name == f"public-names-{tmp_path.name}")
    view = arena.new_zeros(100_000, np.uint8)
    held = arena.holders()[0]
    buffer = shmtree.replay.ReplayBuffer(100, example={"reward": 0.0, "done": False})
    buffer.add({"reward": 1.0, "done": True})
    saved = buffer.save(tmp_path / "saved")
    for made in (known, held, saved):
        for again in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made)), made._replace()):
            assert type(again) is type(made) and again == made
        assert shmtree.unpack(shmtree.pack(made, allow_pickle=False)) == made
    assert len(view) == 100_000
    sender, receiver = shmtree.create_pair()
    subscriber = shmtree.Broadcast().subscribe()
    shared = arena.array(3)
    compat = shmtree.compat.py_sharedmemory.create_shared_memory_pair()
    for end in (sender, receiver, subscriber, shared, *compat):
        assert type(pickle.loads(pickle.dumps(end))) is type(end)


def closed_objects(folder) -> Iterator[object]:
    """Yields objects of all classes that can be closed, open and closed."""
    sender, receiver = shmtree.create_pair()
    service = shmtree.Service()
    broadcast = shmtree.Broadcast()
    buffer = shmtree.replay.ReplayBuffer(10, example={"reward": 0.0, "done": False})
    pool = shmtree.spdl.SegmentPool()
    made = [
        sender,
        receiver,
        shmtree.Queue(),
        shmtree.JoinableQueue(),
        shmtree.SimpleQueue(),
        shmtree.Latest(),
        broadcast.subscribe(),
        broadcast,
        shmtree.Client(service.sender),
        service,
        buffer.writer(),
        buffer.vector_writer(2),
        buffer,
        pool,
        shmtree.spdl.RingBuffer(100),
        shmtree.Arena(),
        shmtree.iterate_in_subprocess(itertools.count, context="fork"),
        *shmtree.compat.py_sharedmemory.create_shared_memory_pair(),
    ]
    yield pool.open_writer(), pool.open_reader()
    for each in made:
        assert "closed" not in repr(each)
        each.close()
        yield each


def test_repr_of_a_closed_object_says_so(tmp_path) -> None:
    ends = ()
    for each in closed_objects(tmp_path):
        if isinstance(each, tuple):
            ends = each
        else:
            assert repr(each).endswith(", closed>"), repr(each)
    assert [repr(end) for end in ends] == ["<ArenaWriter, closed>", "<ArenaReader, closed>"]


def test_repr_of_an_observer_counts_its_snapshots() -> None:
    observer = shmtree.Observer()
    assert repr(observer) == "<Observer, 0 snapshots>"
    observer.look()
    assert repr(observer) == "<Observer, 1 snapshot>"


def test_repr_of_batches_and_writers() -> None:
    buffer = shmtree.replay.ReplayBuffer(10, example={"reward": 0.0, "done": False})
    writer = buffer.writer()
    for number in range(3):
        writer.add({"reward": 1.0, "done": number == 2})
    assert (repr(buffer), repr(writer)) == ("<ReplayBuffer, 3 of 10 rows>", "<Writer, 3 rows added>")
    assert repr(buffer.sample(2)) == "<Batch of 2 rows>"
    assert repr(buffer.sample_sequences(2, 3)) == "<SequenceBatch of 2 sequences of 3 rows>"


def test_repr_of_a_closed_buffer_of_cpprb_says_so() -> None:
    rows = shmtree.replay.cpprb.ReplayBuffer(4, {"done": {}})
    rows.shared.close()
    assert repr(rows) == "<ReplayBuffer, closed>"
