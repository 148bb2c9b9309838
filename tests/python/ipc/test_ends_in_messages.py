"""Ends, shared arrays and arenas in messages of channels that refuse pickles, and what hostile writers can do."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import pickle
import signal
from typing import Any

import endpoint_peers
import numpy as np
import pytest
from endpoint_peers import KINDS, Made

import shmtree
from shmtree import _core
from shmtree.multiprocessing import Pipe

ROUTES = ["pair", "named", "our queue"]


def use_messages(route: Any, answers: shmtree.Sender) -> None:
    answers.put(endpoint_peers.use(route.get(timeout=30)))


@pytest.fixture(params=ROUTES)
def refusing(request: Any, arena: shmtree.Arena, runtime_directory: Any, name: str) -> tuple[Any, Any]:
    """Returns a sending and a receiving end, by a route that pickles nothing."""
    if request.param == "our queue":
        made = arena.Queue(allow_pickle=False)
        return made, made
    if request.param == "named":
        _, receiver = shmtree.create_pair(name=name)
        return shmtree.open_sender(name), receiver
    return arena.create_pair(allow_pickle=False)


@pytest.mark.guarantee("ends-in-messages")
@pytest.mark.parametrize("kind", KINDS)
def test_handle_sent_without_pickle_is_usable_in_a_child(refusing, kind, arena, start) -> None:
    putting, getting = refusing
    answers, answer = arena.create_pair()
    start(use_messages, getting, answers)
    made = Made(kind, arena)

    putting.put(made.given)

    made.check_used(answer.get(timeout=30))


@pytest.mark.parametrize("kind", KINDS)
def test_received_handle_keeps_its_class_and_refuses_pickles(refusing, kind, arena) -> None:
    putting, getting = refusing
    given = Made(kind, arena).given

    putting.put({"in": [given]})
    arrived = getting.get()["in"][0]

    assert type(arrived) is type(given)
    if kind not in ("array", "arena"):
        assert given.allow_pickle and not arrived.allow_pickle


def test_end_sent_by_a_pickling_channel_still_allows_pickles(arena) -> None:
    carrying, carried = arena.create_pair()
    sender, receiver = arena.create_pair()

    carrying.put(sender)
    arrived = carried.get()
    arrived.put(Strange())

    assert arrived.allow_pickle
    assert receiver.get() == Strange()


def test_connection_arrives_where_pickles_are_refused(arena) -> None:
    putting, getting = arena.create_pair(allow_pickle=False)
    here, there = Pipe()
    only, _ = Pipe(duplex=False)

    putting.put([there, only])
    there, only = getting.get()
    here.send("question")
    there.send(there.recv() + " answered")

    assert here.recv() == "question answered"
    assert only.readable and not only.writable


class Special(shmtree.Sender):
    """A subclass that needs a pickle, because a message can name only the base class."""


def test_subclass_of_an_end_is_pickled_or_refused(arena) -> None:
    sender, _receiver = arena.create_pair()
    special = Special._of(sender._channel)
    pickling, pickled = arena.create_pair()
    refusing, _ = arena.create_pair(allow_pickle=False)

    pickling.put(special)
    assert type(pickled.get()) is Special
    with pytest.raises(shmtree.PickleRefused, match="Special"):
        refusing.put(special)


def test_closed_end_is_not_sent(refusing, arena) -> None:
    putting, getting = refusing
    for end in (*arena.create_pair(), arena.Queue()):
        end.close()
        with pytest.raises(shmtree.ChannelClosed):
            putting.put(end)
    putting.put("next")
    assert getting.get() == "next"


class Strange:
    """Needs a pickle, and makes the encoder start the message again."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Strange)

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.guarantee("ends-in-transit")
@pytest.mark.parametrize("company", [[Strange()], [{"a": 1, 2: 3}]], ids=["a pickle", "a dict with other keys"])
def test_end_in_a_reencoded_message_is_in_transit_once(arena, company) -> None:
    putting, getting = arena.create_pair()
    sender, receiver = arena.create_pair()

    putting.put([sender, *company])

    assert receiver.stats()["senders_in_transit"] == 1
    assert getting.get()[1:] == company
    assert receiver.stats()["senders_in_transit"] == 0


def test_end_in_a_nacked_message_is_redelivered_usable(arena) -> None:
    requests, served = arena.create_pair(allow_pickle=False)
    sender, receiver = arena.create_pair()
    requests.put(sender)
    sender.close()
    assert receiver.stats()["senders_in_transit"] == 1

    delivery = served.take()
    delivery.nack()
    del delivery
    with served.take() as again:
        again.item.put("answered")
    del again

    assert list(receiver) == ["answered"]


def test_end_in_a_dropped_message_is_not_in_transit(arena) -> None:
    newest, served = arena.create_pair(1, on_full="drop_oldest", allow_pickle=False)
    sender, receiver = arena.create_pair()
    newest.put(sender)
    newest.put("newer")
    sender.close()

    assert served.get() == "newer"
    assert receiver.stats()["senders_in_transit"] == 0


def ask_and_die(requests: shmtree.Sender) -> None:
    """Sends an end in its own arena, which goes away with this process."""
    reply, _replies = shmtree.Arena().create_pair()
    requests.put(("question", reply))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.guarantee("ends-in-messages")
def test_end_without_an_owner_arrives_closed(arena, start) -> None:
    requests, served = arena.create_pair(allow_pickle=False)
    child = start(ask_and_die, requests)
    child.join(30)
    requests.put("next")

    question, reply = served.get()
    assert (question, served.get()) == ("question", "next")
    assert reply.closed
    with pytest.raises(shmtree.ChannelClosed):
        reply.put("answer")


@pytest.mark.guarantee("ends-in-messages")
def test_end_received_too_late_arrives_closed(arena, start) -> None:
    from test_ends_in_transit import advance_one_minute

    requests, served = arena.create_pair(allow_pickle=False)
    told, ours = mp.Pipe()
    child = start(give_and_close, arena, requests, told)
    receiver = ours.recv()
    assert ours.recv() == "closed"
    os.kill(child.pid, signal.SIGKILL)
    child.join(30)
    assert receiver.stats()["senders_in_transit"] == 1
    advance_one_minute(arena, word_in_message(arena))

    late = served.get()

    assert late.closed
    assert list(receiver) == []


def give_and_close(arena: shmtree.Arena, requests: shmtree.Sender, told: Any) -> None:
    sender, receiver = arena.create_pair()
    told.send(receiver)
    requests.put(sender)
    sender.close()
    receiver.close()
    told.send("closed")
    signal.pause()


def word_in_message(arena: shmtree.Arena) -> bytes:
    """Returns the word that identifies the transfer of the end in the only message of an arena."""
    fd, at = arena._core.fd, 0
    while True:
        at = os.lseek(fd, at, os.SEEK_DATA)
        end = os.lseek(fd, at, os.SEEK_HOLE)
        found = (data := os.pread(fd, end - at, at)).find(b"smthand1")
        if found >= 0:
            return data[found + 40 : found + 48]
        at = end


# --- frames ----------------------------------------------------------------------------------------------------------


def test_pack_and_dump_refuse_ends_without_pickle(arena, tmp_path) -> None:
    sender, receiver = arena.create_pair()
    for refused in (
        lambda: shmtree.pack([sender], allow_pickle=False),
        lambda: shmtree.dump([sender], tmp_path / "frame", allow_pickle=False),
    ):
        with pytest.raises(shmtree.PickleRefused, match="Sender"):
            refused()
    assert receiver.stats()["senders_in_transit"] == 0

    frame = shmtree.pack([sender])
    assert receiver.stats()["senders_in_transit"] == 1
    with pytest.raises(shmtree.PickleRefused):
        shmtree.unpack(bytes(frame))
    assert type(shmtree.unpack(frame)[0]) is shmtree.Sender
    assert receiver.stats()["senders_in_transit"] == 0


# --- what others write -----------------------------------------------------------------------------------------------


class Forged:
    """An object that is sent as if it were of a registered kind (such as `Sender`), with any content."""

    def __init__(self, flat: object) -> None:
        self.flat = flat


def forge(name: str, flat: Any, channel: shmtree.Sender) -> None:
    _core._register_end(Forged, name, lambda forged: forged.flat, lambda flat, allowed: Forged(flat))
    channel.put(Forged(flat))


def forge_all(name: str, flats: list[Any], channel: shmtree.Sender) -> None:
    for flat in flats:
        forge(name, flat, channel)


HANDLE = b"smthand1"


@pytest.mark.guarantee("forged-ends")
@pytest.mark.parametrize("name", ["Sender", "Receiver", "Queue", "SharedArray", "Arena", "Connection"])
@pytest.mark.parametrize(
    "flat",
    [None, 7, (), (b"", True), (HANDLE, True), (HANDLE + bytes(100), True), (HANDLE + bytes(44), 1), ("text", True)],
    ids=repr,
)
def test_forged_handle_is_refused_and_the_next_message_arrives(arena, start, name, flat) -> None:
    sender, receiver = arena.create_pair(allow_pickle=False)
    start(forge, f"shmtree:{name}", flat, sender).join(30)
    sender.put("next")

    with pytest.raises((shmtree.CorruptMessage, OSError)):
        receiver.get(timeout=30)
    assert receiver.get(timeout=30) == "next"


@pytest.mark.guarantee("forged-ends")
def test_handle_of_another_object_is_refused(arena, start) -> None:
    sender, receiver = arena.create_pair(allow_pickle=False)
    pairs, q, array = [arena.create_pair() for _ in range(2)], arena.Queue(), arena.array((4,), "i8")

    def handle(channel: _core.Channel, receiving: bool) -> bytes:
        return _core.make_handle(channel.arena, channel.block, channel.begin_transfer(receiving))

    block = _core.make_handle(arena._core, _core.block_of(array.array))
    forged = [
        ("Sender", (handle(pairs[0][0]._channel, True), False)),
        ("Receiver", (handle(pairs[0][0]._channel, False), False)),
        ("Sender", (handle(q._channel, True), False)),
        ("Queue", (handle(pairs[1][0]._channel, True), False)),
        ("Sender", (block, False)),
        ("SharedArray", (block, (4,), np.dtype("O"))),
        ("SharedArray", (block, (1 << 40,), np.dtype("i8"))),
        ("SharedArray", (block, (-1,), np.dtype("i8"))),
        ("SharedArray", (block, ("x",), np.dtype("i8"))),
        ("SharedArray", (block, (1 << 70,), np.dtype("i8"))),
        ("SharedArray", (block[:-1], (4,), np.dtype("i8"))),
        ("SharedArray", (_core.make_handle(q._channel.arena, q._channel.block), (4,), np.dtype("i8"))),
        ("Arena", (block[:-1],)),
        ("Connection", ([], [])),
        ("Connection", (None, None)),
    ]
    for name, flat in forged:
        start(forge, f"shmtree:{name}", flat, sender).join(30)
        with pytest.raises(shmtree.CorruptMessage):
            receiver.get(timeout=30)


HANDLE_BLOCK = 32  # offset of the block in a handle: src/discovery/handle.cpp

#: Opens what a handle names, as the object of a message.
OPENERS: dict[str, Any] = {
    "Sender": lambda handle: (handle, False),
    "Receiver": lambda handle: (handle, False),
    "Queue": lambda handle: (handle, False),
    "SharedArray": lambda handle: (handle, (4,), np.dtype("u1")),
    "Latest": lambda handle: (handle, False),
    "Broadcast": lambda handle: (handle, False),
    "Subscriber": lambda handle: (handle, False),
}


def references(blocks: range = range(6)) -> list[int]:
    """Returns packed references to every block of the first uses of a small arena (docs/internals/memory-layout.md)."""
    return [size << 59 | index << 29 | use for size in range(1, 8) for index in blocks for use in range(1, 8)]


@pytest.mark.guarantee("forged-handles")
@pytest.mark.parametrize("name", OPENERS)
def test_refused_handle_leaves_the_block_that_it_names_alone(start, name) -> None:
    with shmtree.Arena(16 << 20) as arena:
        sender, receiver = arena.create_pair(allow_pickle=False)
        victim_sender, victim = arena.create_pair(allow_pickle=False)
        for i in range(3):
            victim_sender.put([i, b"x" * 5000])
        published = shmtree.Latest(arena=arena)
        published.publish(b"y" * 5000)
        own = {sender._channel.block, victim_sender._channel.block}
        own.add(published._shared.block)

        handle = bytearray(_core.make_handle(arena._core, 0))
        forged = []
        for reference in set(references()) - own:
            handle[HANDLE_BLOCK : HANDLE_BLOCK + 8] = reference.to_bytes(8, "little")
            forged.append(OPENERS[name](bytes(handle)))
        start(forge_all, f"shmtree:{name}", forged, sender)
        for _ in forged:
            with contextlib.suppress(shmtree.CorruptMessage):
                receiver.get(timeout=60)

        assert [victim.get(timeout=60)[0] for _ in range(3)] == [0, 1, 2]
        victim_sender.put("again", timeout=60)
        assert victim.get(timeout=60) == "again"
        assert published.get()[1] == b"y" * 5000


def test_file_name_in_a_handle_opens_no_other_file(arena, start, tmp_path) -> None:
    """Only a name of that very arena is opened. Another file stays unchanged."""
    elsewhere = tmp_path / "file"
    elsewhere.write_bytes(before := b"nothing of ours" * 10)
    sender, receiver = arena.create_pair(allow_pickle=False)
    other, _kept = arena.create_pair()
    handle = _core.make_handle(arena._core, other._channel.block, 0, str(elsewhere))

    start(forge, "shmtree:Sender", (handle, False), sender).join(30)
    receiver.get(timeout=30).put("through it")

    assert elsewhere.read_bytes() == before
    assert _kept.get() == "through it"


ran: list[str] = []


class Bomb:
    def __reduce__(self) -> Any:
        return ran.append, ("loaded",)


@pytest.mark.guarantee("forged-ends")
def test_end_received_where_pickles_are_refused_unpickles_none(arena, start) -> None:
    putting, getting = arena.create_pair(allow_pickle=False)
    sender, receiver = arena.create_pair()

    putting.put(receiver)
    arrived = getting.get()
    sender.put(Bomb())

    with pytest.raises(shmtree.PickleRefused):
        arrived.get()
    assert ran == []


@pytest.mark.guarantee("forged-ends")
def test_end_in_a_frame_copied_off_a_channel_needs_pickle(arena, start) -> None:
    """The bytes are a valid frame with an end, copied out of the channel's memory."""
    putting, getting = arena.create_pair(allow_pickle=False)
    sender, receiver = arena.create_pair()
    putting.put(sender)
    fd, at = arena._core.fd, 0
    while True:
        at = os.lseek(fd, at, os.SEEK_DATA)
        end = os.lseek(fd, at, os.SEEK_HOLE)
        found = (data := os.pread(fd, end - at, at)).find(b"shmtree:Sender")
        if found >= 0:
            break
        at = end
    begin = data.rindex(b"SHMT", 0, found)
    size = int.from_bytes(data[begin + 8 : begin + 14], "little")
    frame = data[begin : begin + size]

    with pytest.raises(shmtree.PickleRefused, match="shmtree:Sender"):
        shmtree.unpack(frame)
    assert type(shmtree.unpack(frame, allow_pickle=True)) is shmtree.Sender
    assert "registered" in _core._describe(frame)
    with contextlib.suppress(shmtree.Error):
        getting.get()
    assert receiver.stats()["senders_in_transit"] == 0


def test_ends_are_pickled_by_pickle_itself(arena) -> None:
    sender, receiver = arena.create_pair()
    pickle.loads(pickle.dumps(sender)).put(1)
    assert receiver.get() == 1
