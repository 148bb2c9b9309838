"""Bad input raises the documented error, leaves the channel usable, and leaks nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import gc
import os
import pickle
import queue
import tempfile
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import shmtree
from shmtree import _core


@pytest.fixture
def channel(arena) -> Iterator[tuple[shmtree.Sender, shmtree.Receiver]]:
    """Yields a pair. Afterwards the pair must work, and the arena must contain only the channel."""
    sender, receiver = arena.create_pair(capacity=4)
    sender.put("so that the channel has everything it needs")
    receiver.take().ack()
    empty = arena.stats()["blocks"]
    yield sender, receiver
    gc.collect()
    with contextlib.suppress(queue.Empty, shmtree.ChannelClosed):
        while True:
            receiver.get_nowait()
    if not sender.closed and not receiver.closed:
        sender.put({"still": "usable", "x": np.arange(10_000)})
        assert receiver.get(copy=True)["still"] == "usable"
    assert arena.stats()["blocks"] == (0 if sender.closed and receiver.closed else empty)
    assert arena.holders() == []


def nested(depth: int) -> list:
    tree: list = []
    for _ in range(depth):
        tree = [tree]
    return tree


class Unsendable:
    def __reduce__(self) -> str:
        raise RuntimeError("cannot be sent")


# --- objects


@pytest.mark.parametrize(
    ("item", "error"),
    [
        pytest.param(threading.Lock(), TypeError, id="lock"),
        pytest.param(Unsendable(), RuntimeError, id="own error"),
        pytest.param({"deep": [1, (2, Unsendable())], "x": np.zeros(100_000)}, RuntimeError, id="within a tree"),
        pytest.param((i for i in range(3)), TypeError, id="generator"),
        pytest.param(lambda: None, (pickle.PicklingError, AttributeError), id="function without a name"),
    ],
)
def test_put_raises_for_an_unsendable_object_and_sends_nothing(channel, item, error):
    sender, receiver = channel
    with pytest.raises(error):
        sender.put(item)
    assert receiver.empty()
    assert sender.pending_acks == 0


def test_tree_of_depth_10000_raises_value_error(channel):
    with pytest.raises(ValueError, match=r"1,?000"):
        channel[0].put(nested(10_000))


def test_tree_of_depth_900_round_trips(channel):
    sender, receiver = channel
    sender.put(nested(900))
    assert receiver.get() == nested(900)


def test_unsendable_object_raises_on_a_full_channel_too(channel):
    sender, _ = channel
    sender.put_many(range(4))
    with pytest.raises(TypeError):
        sender.put(threading.Lock())


class Interrupted:
    """Pickling raises TypeError, and then KeyboardInterrupt when put searches for the path of the failed object."""

    def __init__(self):
        self.errors = [TypeError("cannot be pickled"), KeyboardInterrupt()]

    def __reduce_ex__(self, protocol):
        raise self.errors.pop(0)


@dataclasses.dataclass
class InterruptedByAttribute:
    """put reads the field without this method, and so does the search for the path of a refused object."""

    a: int

    def __getattribute__(self, name):
        if name == "a":
            raise KeyboardInterrupt
        return super().__getattribute__(name)


class InterruptedKey(enum.Enum):
    KEY = 1

    def __repr__(self):  # the path to an item has its key
        raise KeyboardInterrupt


def test_interrupt_while_locating_an_unsendable_object_is_raised():
    with pytest.raises(KeyboardInterrupt):
        shmtree.pack([Interrupted()])
    with pytest.raises(KeyboardInterrupt):
        shmtree.pack({InterruptedKey.KEY: object()}, allow_pickle=False)


def test_path_of_a_refused_object_is_found_without_its_siblings():
    with pytest.raises(shmtree.PickleRefused) as caught:
        shmtree.pack([InterruptedByAttribute(1), object()], allow_pickle=False)
    assert caught.value.path == "[1]"


@pytest.mark.guarantee("memory-budget")
def test_item_over_the_budget_raises_with_the_budget(channel, arena):
    with pytest.raises(shmtree.MessageTooLarge, match=str(arena.max_bytes)) as raised:
        channel[0].put(np.zeros(100 << 20, np.uint8))
    assert isinstance(raised.value, ValueError)


def test_item_over_the_budget_raises_on_a_full_channel_too(channel):
    sender, _ = channel
    sender.put_many(range(4))
    with pytest.raises(shmtree.MessageTooLarge):
        sender.put(np.zeros(100 << 20, np.uint8))


def test_item_over_max_bytes_raises_message_too_large(arena):
    sender, receiver = arena.create_pair(max_bytes=100_000)
    with pytest.raises(shmtree.MessageTooLarge, match="100000"):
        sender.put(np.zeros(200_000, np.uint8))
    sender.put(1)
    assert receiver.get() == 1


def test_allow_pickle_false_refuses_pickles_only(arena):
    sender, receiver = arena.create_pair(allow_pickle=False)
    with pytest.raises(shmtree.PickleRefused) as raised:
        sender.put({"f": os.getcwd})
    assert isinstance(raised.value, TypeError)
    sender.put({"native": [1, 2.0, "x", np.arange(3)]})
    assert receiver.get()["native"][:3] == [1, 2.0, "x"]


def test_message_put_inside_reduce_arrives_first(channel):
    sender, receiver = channel

    class Puts:
        def __reduce__(self) -> object:
            sender.put("from inside")
            return (int, ("7",))

    sender.put([Puts(), np.arange(10_000)])
    assert receiver.get() == "from inside"
    assert receiver.get()[0] == 7


# --- arguments


@pytest.mark.parametrize(
    "call",
    [
        lambda s, r: s.put(),
        lambda s, r: s.put(1, True, None, True),
        lambda s, r: s.put(1, obj=2),
        lambda s, r: s.put(1, timeut=3),
        lambda s, r: s.put_many(1),
        lambda s, r: s.wait_for_ack("first"),
        lambda s, r: r.get(True, None, True),
        lambda s, r: r.get_many("many"),
        lambda s, r: shmtree.Sender(),
        lambda s, r: shmtree.Sender("channel"),
        lambda s, r: shmtree.Receiver(3),
        lambda s, r: shmtree.Sender(None),
        lambda s, r: shmtree.Receiver(None),
    ],
)
def test_wrong_arguments_raise_type_error(channel, call):
    with pytest.raises(TypeError):
        call(*channel)


# --- ends


# --- damaged memory


def damage(fd: int, wanted: bytes, put: bytes) -> int:
    """Overwrites every occurrence of `wanted` in an arena's memory, as another process could. Returns their number."""
    count, offset, end = 0, 0, os.fstat(fd).st_size
    while offset < end:
        try:
            begin = os.lseek(fd, offset, os.SEEK_DATA)
        except OSError:
            break
        offset = os.lseek(fd, begin, os.SEEK_HOLE)
        data = os.pread(fd, offset - begin, begin)
        at = data.find(wanted)
        while at >= 0:
            os.pwrite(fd, put, begin + at)
            count += 1
            at = data.find(wanted, at + 1)
    return count


MARK = "a text that is found nowhere else"


@pytest.mark.guarantee("damaged-frame")
@pytest.mark.parametrize("size", [3, 100_000])
def test_damaged_message_is_consumed_and_named_by_ticket(channel, arena, size):
    sender, receiver = channel
    sender.put("before")
    receiver.get()
    ticket = sender.put({MARK: np.zeros(size)})
    sender.put("after")
    assert damage(arena._core.fd, b"SHMT", b"SHMX") >= 2
    with pytest.raises(shmtree.CorruptMessage) as raised:
        receiver.get()
    assert raised.value.ticket == ticket
    with pytest.raises(shmtree.CorruptMessage):
        receiver.get()
    assert receiver.empty()


def test_damaged_message_in_get_many_loses_no_other(channel, arena):
    sender, receiver = channel
    sender.put("first")
    ticket = sender.put(MARK)
    assert damage(arena._core.fd, MARK.encode(), b"\xff" * len(MARK)) == 1
    sender.put("last")
    assert receiver.get_many(10) == ["first"]
    with pytest.raises(shmtree.CorruptMessage) as raised:
        receiver.get_many(10)
    assert raised.value.ticket == ticket
    assert receiver.get_many(10) == ["last"]


def test_damaged_message_is_not_redelivered_after_take(channel, arena):
    sender, receiver = channel
    ticket = sender.put(MARK)
    damage(arena._core.fd, MARK.encode(), b"\xff" * len(MARK))
    with pytest.raises(shmtree.CorruptMessage) as raised:
        receiver.take()
    assert raised.value.ticket == ticket
    assert sender.pending_acks == 0


class FailsToLoad:
    def __reduce__(self) -> object:
        return (fail, ())


def fail() -> None:
    raise LookupError("cannot be loaded here")


def test_failing_unpickle_raises_its_error_and_is_consumed(channel):
    sender, receiver = channel
    sender.put(FailsToLoad())
    sender.put("after")
    with pytest.raises(LookupError):
        receiver.get()
    assert receiver.get() == "after"


# --- frames and files


def test_truncated_or_altered_frame_is_corrupt():
    data = bytes(shmtree.pack({"x": np.arange(1000), "text": "abc"}))
    for end in (0, 1, 15, 16, 100, len(data) - 1):
        with pytest.raises(shmtree.CorruptMessage):
            shmtree.unpack(data[:end])
    altered = bytearray(data)
    altered[20] ^= 0xFF
    with pytest.raises((shmtree.CorruptMessage, ValueError)):
        shmtree.unpack(altered)


def handle_of_another_arena() -> bytes:
    """Returns a handle of an arena that no longer exists, so that open_handle() has only its other argument."""
    arena = _core.Arena.create(8 << 20, 0, False)
    handle = _core.make_handle(arena)
    del arena
    gc.collect()
    return handle


@pytest.mark.parametrize("content", [b"", b"x" * 100, bytes(1 << 20)], ids=["empty", "text", "zeros"])
def test_file_that_is_no_arena_is_refused(content):
    handle = handle_of_another_arena()
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        with pytest.raises(shmtree.IncompatibleArena):
            _core.open_handle(handle, os.dup(file.fileno()))


def test_sealed_file_that_is_no_arena_is_refused():
    import fcntl

    fd = os.memfd_create("other", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 1 << 20)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    with pytest.raises(shmtree.IncompatibleArena):
        _core.open_handle(handle_of_another_arena(), fd)


def test_refused_calls_leave_no_descriptor_open(channel):
    sender, _ = channel

    def all_of_it() -> None:
        for item in (threading.Lock(), nested(2000), np.zeros(100 << 20, np.uint8)):
            with pytest.raises((TypeError, ValueError)):
                sender.put(item)
        with pytest.raises(FileNotFoundError):
            shmtree.open_sender("no such name at all")
        with pytest.raises(ValueError):
            shmtree.Arena(3)

    all_of_it()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        all_of_it()
    assert len(os.listdir("/proc/self/fd")) == before
