"""A receiver that refuses pickles runs no code of a message: in each function that decodes, and for classes by name."""

from __future__ import annotations

import collections
import dataclasses
import enum
import fcntl
import os
import pickle
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

import shmtree

ran: list[str] = []


class Bomb:
    def __reduce__(self) -> Any:
        return (ran.append, ("loaded",))


@pytest.fixture(autouse=True)
def nothing_runs() -> Any:
    ran.clear()
    yield
    assert ran == []


@pytest.fixture
def frame() -> bytes:
    """Returns a frame that contains a pickle."""
    return bytes(shmtree.pack([1, Bomb()]))


def through_file(frame: bytes, folder: Any) -> Any:
    path = folder / "frame"
    path.write_bytes(frame)
    return shmtree.load(path)


def test_unpack_and_load_refuse_pickles_by_default(frame: bytes, tmp_path: Any) -> None:
    for buffer in (frame, bytearray(frame), memoryview(frame)):
        with pytest.raises(shmtree.PickleRefused):
            shmtree.unpack(buffer)
    with pytest.raises(shmtree.PickleRefused):
        through_file(frame, tmp_path)


def test_pack_and_dump_refuse_to_pickle(tmp_path: Any) -> None:
    for value in (Bomb(), [Bomb()], {"key": (Bomb(),)}, {Bomb(): 1}, collections.deque([Bomb()])):
        with pytest.raises(shmtree.PickleRefused):
            shmtree.pack(value, allow_pickle=False)
    with pytest.raises(shmtree.PickleRefused):
        shmtree.dump([Bomb()], tmp_path / "frame", allow_pickle=False)
    assert not (tmp_path / "frame").exists()


def ends_without_pickles(arena: shmtree.Arena) -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    sender, receiver = arena.create_pair(allow_pickle=False)
    queue = arena.Queue(allow_pickle=False)
    joinable = arena.JoinableQueue(allow_pickle=False)
    simple = arena.SimpleQueue(allow_pickle=False)
    return {
        "pair": (sender.put, receiver.get),
        "many": (lambda value: sender.put_many([value]), receiver.get),
        "queue": (queue.put, queue.get),
        "joinable": (joinable.put, joinable.get),
        "simple": (simple.put, simple.get),
    }


@pytest.mark.guarantee("allow-pickle")
def test_channels_refuse_to_pickle_and_send_nothing(arena: shmtree.Arena) -> None:
    for put, get in ends_without_pickles(arena).values():
        with pytest.raises(shmtree.PickleRefused):
            put([Bomb()])
        put("native")
        assert get() == "native"


def test_receiver_refuses_pickles_of_a_sender_that_allows_them(arena: shmtree.Arena) -> None:
    sender, receiver = arena.create_pair(capacity=4)
    refusing = shmtree.Receiver._of(receiver._channel, False)
    for receive in (refusing.get, lambda: refusing.get_many(3), lambda: refusing.take().item):
        sender.put(Bomb())
        with pytest.raises(shmtree.PickleRefused):
            receive()
    assert receiver.empty()


def test_named_queue_allows_pickles_only_if_both_sides_do() -> None:
    name = f"hostile-{os.getpid()}"
    made = shmtree.Queue(name=name, allow_pickle=True)
    opened = shmtree.Queue.open(name)
    with pytest.raises(shmtree.PickleRefused):
        opened.put(Bomb())
    made.put(Bomb())
    with pytest.raises(shmtree.PickleRefused):
        opened.get()
    allowed = shmtree.Queue.open(name, allow_pickle=True)
    allowed.put(os.getcwd)
    assert made.get() is os.getcwd


def test_pickled_end_still_refuses_pickles(arena: shmtree.Arena) -> None:
    sender, receiver = arena.create_pair(allow_pickle=False)
    again = pickle.loads(pickle.dumps(sender))
    with pytest.raises(shmtree.PickleRefused):
        again.put(Bomb())
    assert receiver.allow_pickle is False
    again.close()


# --- classes by name


@dataclasses.dataclass
class Step:
    reward: float

    def __post_init__(self) -> None:
        ran.append("__post_init__")

    def __setattr__(self, name: str, value: Any) -> None:
        ran.append("__setattr__")
        object.__setattr__(self, name, value)


class Color(enum.Enum):
    RED = 1


Point = collections.namedtuple("Point", "x y")


def renamed(frame: bytes, module: str) -> bytes:
    """Returns the frame with its classes moved to `module`. That name must be as long as this module's."""
    assert len(module) == len(__name__)
    return frame.replace(__name__.encode(), module.encode())


def test_arriving_class_runs_none_of_its_own_code() -> None:
    frame = bytes(shmtree.pack(Step(1.5), allow_pickle=False))
    ran.clear()
    assert shmtree.unpack(frame).reward == 1.5


@pytest.mark.guarantee("allow-pickle")
@pytest.mark.parametrize("value", [Color.RED, Point(1, 2)], ids=["enum", "namedtuple"])
def test_classes_are_loaded_from_imported_modules_only(value: Any, tmp_path: Any, monkeypatch: Any) -> None:
    module = "z" * len(__name__)
    (tmp_path / f"{module}.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    frame = renamed(bytes(shmtree.pack(value, allow_pickle=False)), module)
    with pytest.raises(shmtree.PickleRefused, match="not imported"):
        shmtree.unpack(frame)
    assert module not in sys.modules


@pytest.mark.parametrize("value", [Color.RED, Point(1, 2)], ids=["enum", "namedtuple"])
def test_class_name_that_finds_another_object_is_refused(value: Any, monkeypatch: Any) -> None:
    class Loud:
        def __getattr__(self, name: str) -> Any:
            ran.append(name)
            return os.abort

    name = "z" * len(__name__)
    frame = renamed(bytes(shmtree.pack(value, allow_pickle=False)), name)
    fake = types.ModuleType(name)
    for found in (os.abort, dict, object, Loud(), 5):
        setattr(fake, type(value).__qualname__, found)
        monkeypatch.setitem(sys.modules, name, fake)
        with pytest.raises((shmtree.CorruptMessage, shmtree.PickleRefused)):
            shmtree.unpack(frame)


def test_default_factory_that_is_no_known_type_is_refused() -> None:
    frame = bytes(shmtree.pack(collections.defaultdict(os.getpid, {1: 2})))
    with pytest.raises(shmtree.PickleRefused):
        shmtree.unpack(frame)
    assert shmtree.unpack(bytes(shmtree.pack(collections.defaultdict(list)))).default_factory is list


def test_unregistered_class_is_refused() -> None:
    class Own:
        pass

    shmtree.register(Own, lambda own: 1, lambda flat: Own())
    frame = bytes(shmtree.pack(Own(), allow_pickle=False))
    other = frame.replace(b"<locals>.Own", b"<locals>.Owx")
    assert other != frame
    with pytest.raises(shmtree.PickleRefused, match="not registered"):
        shmtree.unpack(other)


# --- the memory itself


@pytest.mark.guarantee("sealed-memory")
def test_arena_memory_cannot_be_shrunk_grown_or_sealed(arena: shmtree.Arena) -> None:
    arena.new_zeros(4)
    fd = arena._core.fd
    size = os.fstat(fd).st_size
    for wanted in (0, size - 4096, size + 4096):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, wanted)
    with pytest.raises(PermissionError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    assert os.fstat(fd).st_size == size
