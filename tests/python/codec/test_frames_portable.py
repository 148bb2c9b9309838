"""Portable frames contain nothing that has a meaning on one machine only."""

from __future__ import annotations

import functools
import multiprocessing
import pickle
from typing import Any

import numpy as np
import pytest
from test_frames import Pickled, Sample, frame_of

import shmtree
from shmtree import multiprocessing as shared_mp


class Unknown:
    """A class that needs a pickle."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside


class OwnSender(shmtree.Sender):
    """A subclass of an end, which needs a pickle."""


def local_things(arena: shmtree.Arena) -> dict[str, Any]:
    sender, receiver = arena.create_pair()
    return {
        "a sender": sender,
        "a receiver": receiver,
        "a queue": arena.Queue(),
        "a joinable queue": arena.JoinableQueue(),
        "an arena": arena,
        "a shared array": arena.array((3, 4), "float32"),
        "a Latest": shmtree.Latest(arena=arena),
        "a Broadcast": shmtree.Broadcast(arena=arena),
        "a connection": shared_mp.Pipe()[0],
        "a standard connection": multiprocessing.Pipe()[0],
        "a subclass": OwnSender._of(sender._channel),
    }


NAMES = [
    "a sender",
    "a receiver",
    "a queue",
    "a joinable queue",
    "an arena",
    "a shared array",
    "a Latest",
    "a Broadcast",
    "a connection",
    "a standard connection",
    "a subclass",
]


@pytest.mark.parametrize("name", NAMES)
def test_machine_local_object_raises_not_portable_with_its_path(arena: shmtree.Arena, name: str) -> None:
    thing = local_things(arena)[name]
    sender, receiver = arena.create_pair(portable=True)
    ours = arena.Queue(portable=True)
    message = {"obs": [1, {"reward": thing}], "image": np.arange(10)}
    for put in (sender.put, ours.put, functools.partial(shmtree.pack, portable=True)):
        with pytest.raises(shmtree.NotPortable, match=r'\["obs"\]\[1\]\["reward"\]: a ') as caught:
            put(message)
        assert caught.value.path == '["obs"][1]["reward"]'
    with pytest.raises(ValueError, match="the message itself: "):
        sender.put(thing)
    with pytest.raises(ValueError, match="this machine only"):
        sender.put({"sample": Sample(thing, 1.0)})
    with pytest.raises(shmtree.NotPortable, match="this machine only"):
        sender.put([Unknown(thing)])
    sender.put("next")
    assert receiver.get() == "next" and ours.empty()


def test_end_in_a_refused_message_is_not_in_transit(arena: shmtree.Arena) -> None:
    given, _ = arena.create_pair()
    sender, _ = arena.create_pair(portable=True)
    for message in ([given], [given, Unknown(1)]):
        with pytest.raises(shmtree.NotPortable):
            sender.put(message)
    assert given.stats()["senders_in_transit"] == 0


def test_other_objects_are_portable(arena: shmtree.Arena) -> None:
    sender, receiver = arena.create_pair(portable=True)
    message = {"a": np.arange(50_000), "b": [Pickled(1)], "c": functools.partial(int, "7"), "d": "x".join}
    sender.put(message)
    (frame,) = receiver.take_frames(1)
    assert frame.portable
    frame.ack()
    onward, end = arena.create_pair(portable=True)
    for each in (frame, pickle.loads(pickle.dumps(frame)), shmtree.pack(message, portable=True)):
        onward.put_frame(each)
        got = end.get()
        assert np.array_equal(got["a"], np.arange(50_000)) and got["b"] == [Pickled(1)] and got["c"]() == 7


def test_torch_tensors_are_portable_by_value(arena: shmtree.Arena) -> None:
    torch = pytest.importorskip("torch")
    sender, receiver = arena.create_pair(portable=True)
    for message in ({"t": torch.arange(50_000)}, [torch.arange(50_000), Pickled()], [torch.eye(30).to_sparse()]):
        sender.put(message)
        (frame,) = receiver.take_frames(1)
        frame.ack()
        shmtree.unpack(frame)
        assert frame.portable


def test_shared_tensors_are_refused(arena: shmtree.Arena) -> None:
    torch = pytest.importorskip("torch")
    import shmtree.torch

    sender, _ = arena.create_pair(portable=True)
    shared = shmtree.torch.share_(torch.zeros(5000))
    with pytest.raises(shmtree.NotPortable, match=r'\["t"\]'):
        sender.put({"t": shared})


def test_frame_reports_whether_it_is_portable(arena: shmtree.Arena) -> None:
    assert shmtree.pack([1, np.arange(3)]).portable
    assert not shmtree.pack([Pickled()]).portable
    assert shmtree.pack([Pickled()], portable=True).portable
    assert frame_of(arena, [1]).portable
    assert not frame_of(arena, [Pickled()]).portable
    assert not frame_of(arena, {"end": arena.create_pair()[0]}).portable


def test_portable_channel_refuses_frames_with_unknown_pickles(arena: shmtree.Arena) -> None:
    sender, receiver = arena.create_pair(portable=True)
    frame = shmtree.pack([Pickled()])
    for each in (frame, bytes(frame), bytes(shmtree.pack([Pickled()], portable=True))):
        with pytest.raises(ValueError, match="portable"):
            sender.put_frame(each)
    with pytest.raises(ValueError, match="portable"):
        sender.put(frame)
    with pytest.raises(ValueError, match="portable"):
        sender.put_many([1, frame])
    assert receiver.get() == 1 and receiver.empty()


def test_frame_with_a_handle_can_be_unpacked_but_not_put(arena: shmtree.Arena) -> None:
    sender, receiver = arena.create_pair()
    reply, answers = arena.create_pair()
    sender.put({"a": 1, "reply": [reply]})
    (frame,) = receiver.take_frames(1)
    assert not frame.portable
    for each in (frame, bytes(frame)):
        with pytest.raises(ValueError, match=r'\["reply"\]\[0\]: .*handle'):
            sender.put_frame(each)
    with pytest.raises(ValueError, match="handle"):
        sender.put(frame)
    with pytest.raises(ValueError, match="handle"):
        shmtree.Latest(arena=arena).publish(frame)
    shmtree.unpack(frame)["reply"][0].put("here")
    assert answers.get(timeout=30) == "here"
    frame.ack()


def test_opened_end_of_a_portable_channel_is_portable(arena: shmtree.Arena, runtime_directory: Any) -> None:
    made = shmtree.create_pair(name="portable", portable=True)
    opened = shmtree.open_sender("portable")
    with pytest.raises(shmtree.NotPortable):
        opened.put(arena)
    with pytest.raises(ValueError, match="portable true, not false"):
        shmtree.create_pair(name="portable", exist_ok=True)
    del made
