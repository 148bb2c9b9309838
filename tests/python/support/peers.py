"""Functions that other processes run in tests, in a module of their own that spawned processes can import."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import shmtree


def put_all(sender: shmtree.Sender, items: list[Any]) -> None:
    for item in items:
        sender.put(item, timeout=30)


def put_and_wait(sender: shmtree.Sender, item: Any) -> None:
    sender.put(item, timeout=30)
    sender.wait_for_all_ack(timeout=30)


def put_then_hang(sender: shmtree.Sender, item: Any, told: Connection) -> None:
    """Puts, reports it, and waits to be killed."""
    sender.put(item, timeout=30)
    told.send(os.getpid())
    told.recv()


def echo(receiver: shmtree.Receiver, sender: shmtree.Sender, count: int) -> None:
    for _ in range(count):
        sender.put(receiver.get(timeout=30), timeout=30)


def report(receiver: shmtree.Receiver, told: Connection) -> None:
    """Sends each received message through a pipe, until the stream ends."""
    for item in receiver:
        told.send(item)
    told.send("end")


def receive_one(receiver: shmtree.Receiver, told: Connection) -> None:
    told.send(receiver.get(timeout=30))


def take_and_hang(receiver: shmtree.Receiver, told: Connection) -> None:
    delivery = receiver.take(timeout=30)
    told.send((delivery.item, delivery.redelivered))
    told.recv()


def work_until_poisoned(receiver: shmtree.Receiver, told: Connection) -> None:
    """Takes one job, which may kill it."""
    with receiver.take(timeout=30) as delivery:
        if delivery.item == "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        told.send((delivery.item, delivery.attempts))


def get_and_hang(receiver: shmtree.Receiver, told: Connection) -> None:
    """Receives one message, keeps its content, reports it and waits to be killed."""
    kept = receiver.get(timeout=30)
    told.send(type(kept).__name__)
    told.recv()
    del kept


def hang(*arguments: Any) -> None:
    """Has ends and uses none. Reports its start through the last argument."""
    told = arguments[-1]
    told.send(os.getpid())
    told.recv()


def use_pickled(told: Connection) -> None:
    """Receives an end through a pipe and uses it: puts into a sender, or returns what a receiver got."""
    end = told.recv()
    told.send("have it")
    if isinstance(end, shmtree.Sender):
        end.put(("from", os.getpid()), timeout=30)
    else:
        told.send(end.get(timeout=30))


def check_kept_view(view: Any, told: Connection) -> None:
    """Checks that a view inherited over fork keeps its bytes, whatever the parent does meanwhile."""
    before = view.copy()
    told.send("ready")
    told.recv()
    told.send(bool(np.array_equal(before, view)))


def hoard(receiver: shmtree.Receiver, told: Connection) -> None:
    kept = []
    for item in receiver:
        kept.append(item)
        if len(kept) % 16 == 0:
            told.send(len(kept))
    told.send(("sum", int(sum(int(item[0]) for item in kept))))


def write_shared(array: shmtree.SharedArray, index: int, value: int) -> None:
    array.array[index] = value


def use_named(name: str, told: Connection) -> None:
    with shmtree.open_sender(name) as sender:
        told.send("open")
        sender.put({"by": name, "x": np.arange(5)}, timeout=30)
        told.recv()


def send_to_name(name: str, timeout: float | None, told: Connection) -> None:
    told.send("waits")
    with shmtree.open_sender(name, timeout=timeout) as sender:
        sender.put("at last")


def keep_named(name: str, told: Connection) -> None:
    """Creates a named pair and waits to be killed, or told to leave."""
    sender, receiver = shmtree.create_pair(name=name)
    told.send("made")
    told.recv()
    del sender, receiver


def look_and_allocate(arena: shmtree.Arena, told: Connection) -> None:
    """Uses an arena, but none of its channels: reads its statistics and allocates an array."""
    told.send("ready")
    told.recv()
    arena.stats()
    array = arena.new_zeros(100_000)
    told.send((arena.stats()["participants"], array.nbytes))


def try_named(name: str, told: Connection) -> None:
    """Tries to create a named pair when told to, and keeps it until it is killed."""
    told.send("ready")
    told.recv()
    try:
        kept = shmtree.create_pair(name=name)
    except FileExistsError:
        told.send("in use")
    else:
        told.send("made")
        told.recv()
        del kept


def give_away(arena: shmtree.Arena, told: Connection) -> None:
    """Pickles the sender of a new pair, and closes its own ends when told to."""
    sender, receiver = arena.create_pair()
    told.send((pickle.dumps(sender), receiver))
    told.recv()
    sender.close()
    receiver.close()
    told.send("closed")
    told.recv()


class LooksWhilePickled:
    """Waits at a receiver while it is being pickled. It is unpickled as [1, 2]."""

    def __init__(self, receiver: shmtree.Receiver) -> None:
        self.receiver = receiver

    def __reduce__(self) -> Any:
        with contextlib.suppress(queue.Empty):
            self.receiver.get(timeout=0.2)
        return list, ((1, 2),)


def exchange(receiver: shmtree.Receiver, sender: shmtree.Sender, told: Connection) -> None:
    """Uses both ends, and then waits for a message before it sends one. Two such processes deadlock."""
    sender.put("hello", timeout=30)
    receiver.get(timeout=30)
    told.send(os.getpid())
    sender.put(receiver.get())


def receive_for_ever(receiver: shmtree.Receiver, told: Connection) -> None:
    receiver.get(timeout=30)
    told.send(os.getpid())
    while True:
        receiver.get()


def send_for_ever(sender: shmtree.Sender, told: Connection) -> None:
    sender.put(0, timeout=30)
    told.send(os.getpid())
    while True:
        sender.put(1)


def receive_then_hang(receiver: shmtree.Receiver, told: Connection) -> None:
    receiver.get(timeout=30)
    told.send(os.getpid())
    told.recv()
