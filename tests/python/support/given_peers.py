"""Objects of every kind that may have a name, and functions for the processes that are given them."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import shmtree
from shmtree.replay import ReplayBuffer

#: Kinds of objects that may have a name, with the function that opens one by its name.
OPEN: dict[str, Callable[[str], Any]] = {
    "sender": shmtree.open_receiver,
    "receiver": shmtree.open_sender,
    "queue": shmtree.Queue.open,
    "latest": shmtree.Latest.open,
    "broadcast": shmtree.Broadcast.open,
    "replay": ReplayBuffer.open,
    "array": shmtree.SharedArray.open,
    "arena": shmtree.Arena.open,
}
#: Kinds that are not ends of a channel.
MEMORY = ["latest", "broadcast", "replay", "array", "arena"]


def make(kind: str, name: str | None = None) -> Any:
    """Returns an object of that kind. No other process has it."""
    if kind in ("sender", "receiver"):
        sender, receiver = shmtree.create_pair(name=name)
        return sender if kind == "sender" else receiver
    if kind == "queue":
        return shmtree.Queue(name=name)
    if kind == "latest":
        latest = shmtree.Latest(name=name)
        latest.publish("published")
        return latest
    if kind == "broadcast":
        return shmtree.Broadcast(name=name)
    if kind == "replay":
        buffer = ReplayBuffer(100, example=0, name=name)
        buffer.extend(list(range(7)))
        return buffer
    if kind == "array":
        return shmtree.Arena(1 << 20).array((4,), "i8", name)
    return shmtree.Arena(1 << 20, name=name)


def drop(thing: Any) -> None:
    if not isinstance(thing, shmtree.SharedArray):
        thing.close()


def use(thing: Any) -> Any:
    """Uses the object in a way that only works with the original one. Returns the result."""
    if isinstance(thing, shmtree.Latest):
        return thing.get(timeout=0)[1]
    if isinstance(thing, ReplayBuffer):
        return len(thing)
    if isinstance(thing, shmtree.SharedArray):
        return thing.array.tolist()
    if isinstance(thing, shmtree.Arena):
        return thing.max_bytes
    if isinstance(thing, shmtree.Broadcast):
        return thing.put("message")
    return thing.stats()["queued"]


class WaitsWhereItIsLoaded:
    """Reports that it is being loaded, and blocks until told to go on. Objects pickled after it are loaded later."""

    def __init__(self, told: Connection) -> None:
        self.told = told

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.told = state["told"]
        self.told.send("loading")
        self.told.recv()


def have(_: Any, thing: Any, told: Connection) -> None:
    """Keeps the object until told to close it."""
    told.send(use(thing))
    told.recv()
    drop(thing)
    del thing
    told.send("closed")
    told.recv()


def receive(route: Any, told: Connection) -> None:
    """Receives an object by the route when told to."""
    told.recv()
    have(None, route.get(), told)


def give(kind: str, name: str, route: Any, told: Connection) -> None:
    """Gives away an object that no other process has, and lives until it is killed."""
    thing = make(kind, name)
    route.put(thing)
    drop(thing)
    del thing
    told.send("given")
    signal.pause()


def give_on(data: bytes, told: Connection) -> None:
    """Keeps an object that it was given, passes it to no process, and lives until it is killed."""
    thing = pickle.loads(data)
    pickle.dumps(thing)
    told.send("given")
    signal.pause()
