"""Objects in messages that no process can receive any more: they are not in transit, and keep no memory."""

from __future__ import annotations

import gc
import os
import queue
import select
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shmtree

#: Makes an object in an arena.
MAKERS: dict[str, Callable[[shmtree.Arena], Any]] = {
    "sender": lambda arena: arena.create_pair(2)[0],
    "receiver": lambda arena: arena.create_pair(2)[1],
    "queue": lambda arena: arena.Queue(2),
    "array": lambda arena: arena.array((1 << 16,), "u1"),
    "latest": lambda arena: shmtree.Latest(arena=arena),
    "broadcast": lambda arena: shmtree.Broadcast(2, arena=arena),
    "subscriber": lambda arena: shmtree.Broadcast(2, arena=arena).subscribe(),
}


def put_and_drop(put: Callable[[Any], object], thing: Any) -> None:
    """Puts an object that no other variable refers to, and closes it here."""
    put(thing)
    if hasattr(thing, "close"):
        thing.close()


def used_bytes(arena: shmtree.Arena) -> int:
    gc.collect()
    return arena.stats()["used_bytes"]


@pytest.fixture
def small() -> Any:
    with shmtree.Arena(16 << 20) as arena:
        yield arena


@pytest.mark.guarantee("lost-in-transit")
@pytest.mark.parametrize("kind", MAKERS)
def test_dropped_messages_keep_no_memory(small, kind) -> None:
    lossy, _rest = small.create_pair(2, on_full="drop_oldest", allow_pickle=False)

    def lose(count: int) -> int:
        for _ in range(count):
            put_and_drop(lossy.put, MAKERS[kind](small))
        return used_bytes(small)

    before = lose(4)
    assert lose(300) <= before + (64 << 10)


@pytest.mark.guarantee("lost-in-transit")
@pytest.mark.parametrize("kind", MAKERS)
def test_messages_in_closed_channels_keep_no_memory(small, kind) -> None:
    def lose(count: int) -> int:
        for _ in range(count):
            sender, receiver = small.create_pair(2)
            put_and_drop(sender.put, MAKERS[kind](small))
            sender.close()
            receiver.close()
        return used_bytes(small)

    before = lose(2)
    assert lose(200) <= before + (64 << 10)


@pytest.mark.guarantee("lost-in-transit")
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("publisher", ["Latest", "Broadcast"])
def test_overwritten_messages_keep_no_memory(small, kind, publisher) -> None:
    if publisher == "Latest":
        put = shmtree.Latest(arena=small).publish
    else:
        broadcast = shmtree.Broadcast(2, arena=small)
        reader = broadcast.subscribe(on_lag="skip")
        put = broadcast.put

    def lose(count: int) -> int:
        for _ in range(count):
            put_and_drop(put, MAKERS[kind](small))
        return used_bytes(small)

    before = lose(8)
    assert lose(300) <= before + (64 << 10)
    if publisher == "Broadcast":
        reader.close()


@pytest.mark.guarantee("lost-in-transit")
@pytest.mark.parametrize("kind", MAKERS)
def test_messages_over_another_arena_keep_no_memory(small, kind) -> None:
    with shmtree.Arena(16 << 20) as other:
        lossy, _rest = other.create_pair(2, on_full="drop_oldest")

        def lose(count: int) -> int:
            for _ in range(count):
                put_and_drop(lossy.put, MAKERS[kind](small))
            return used_bytes(small)

        lose(4)
        # The giver finds the lost transfers of other arenas each time that their number has doubled.
        assert lose(300) < 10 << 20


@pytest.mark.guarantee("lost-in-transit")
def test_receiver_in_its_own_channel_keeps_no_memory(small) -> None:
    def lose(count: int) -> int:
        for _ in range(count):
            sender, receiver = small.create_pair(2)
            sender.put(receiver)
            receiver.close()
            sender.close()
        return used_bytes(small)

    before = lose(2)
    assert lose(200) <= before + (64 << 10)


def close_all(sender: shmtree.Sender, receiver: shmtree.Receiver) -> None:
    sender.close()
    receiver.close()


def drop(sender: shmtree.Sender, receiver: shmtree.Receiver) -> None:
    sender.put(1)
    sender.put(2)


def kill_the_receiver(sender: shmtree.Sender, receiver: shmtree.Receiver) -> None:
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(done, b".")
        time.sleep(60)
        os._exit(0)
    os.read(ready, 1)
    receiver.close()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    sender.close()


@pytest.mark.guarantee("lost-in-transit")
@pytest.mark.parametrize("is_other_arena", [False, True], ids=["same-arena", "other-arena"])
@pytest.mark.parametrize("lose", [close_all, drop, kill_the_receiver])
def test_stream_ends_when_its_only_sender_is_lost(small, lose, is_other_arena) -> None:
    home = shmtree.Arena(1 << 20) if is_other_arena else small
    sender, receiver = home.create_pair(2, on_full="drop_oldest")
    stream_sender, stream = small.create_pair(2)
    sender.put(stream_sender)
    stream_sender.close()
    with pytest.raises(queue.Empty):
        stream.get(timeout=0.05)

    lose(sender, receiver)

    with pytest.raises((shmtree.ChannelClosed, shmtree.PeerDied)):
        stream.get(timeout=60)


@pytest.mark.guarantee("lost-in-transit")
@pytest.mark.parametrize("is_other_arena", [False, True], ids=["same-arena", "other-arena"])
def test_stream_goes_on_while_a_frame_has_its_only_sender(small, is_other_arena) -> None:
    home = shmtree.Arena(1 << 20) if is_other_arena else small
    sender, receiver = home.create_pair(2)
    stream_sender, stream = small.create_pair(2)
    sender.put(stream_sender)
    stream_sender.close()
    (frame,) = receiver.take_frames(1)
    frame.ack()
    with pytest.raises(queue.Empty):
        stream.get(timeout=0.05)

    del frame

    with pytest.raises(shmtree.ChannelClosed):
        stream.get(timeout=60)


@pytest.mark.guarantee("lost-in-transit")
def test_descriptor_is_readable_when_the_only_sender_is_lost(small) -> None:
    sender, _receiver = small.create_pair(1, on_full="drop_oldest")
    stream_sender, stream = small.create_pair(2)
    sender.put(stream_sender)
    stream_sender.close()
    assert not select.select([stream], [], [], 0)[0]

    sender.put("next")

    assert select.select([stream], [], [], 60)[0]
    with pytest.raises(shmtree.ChannelClosed):
        stream.get(timeout=60)


@pytest.mark.guarantee("lost-in-transit")
def test_end_of_a_message_that_is_taken_again_arrives(small) -> None:
    sender, receiver = small.create_pair(2)
    stream_sender, stream = small.create_pair(2)
    sender.put(stream_sender)
    stream_sender.close()
    delivery = receiver.take(timeout=60)
    delivery.item.put("first")
    delivery.item.close()
    delivery.nack()
    del delivery
    assert stream.get(timeout=60) == "first"


@pytest.mark.guarantee("lost-in-transit")
def test_end_in_a_kept_frame_arrives_after_its_message(small) -> None:
    sender, receiver = small.create_pair(2)
    stream_sender, stream = small.create_pair(2)
    sender.put({"end": stream_sender, "data": np.arange(3)})
    stream_sender.close()

    (frame,) = receiver.take_frames(1, timeout=60)
    frame.ack()
    with pytest.raises(queue.Empty):
        stream.get(timeout=0.05)

    del frame
    gc.collect()
    with pytest.raises(shmtree.ChannelClosed):
        stream.get(timeout=60)
