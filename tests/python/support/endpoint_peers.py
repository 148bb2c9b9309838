"""Functions for processes that are given endpoints by any route, in a module of their own that spawn can import."""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
from multiprocessing.connection import Client, Connection
from typing import Any

import shmtree

#: Kinds of endpoints that the tests send from process to process.
KINDS = ["sender", "receiver", "array", "arena", "queue", "joinable", "simple"]


class Made:
    """An endpoint of some kind, with the objects by which its maker checks that the other process used it."""

    def __init__(self, kind: str, arena: shmtree.Arena) -> None:
        self._kind = kind
        self.given: Any
        self._kept: Any
        if kind in ("sender", "receiver"):
            sender, receiver = arena.create_pair()
            self.given, self._kept = (sender, receiver) if kind == "sender" else (receiver, sender)
        elif kind in ("array", "arena"):
            self._kept = arena.array((4,), "i8")
            self.given = self._kept if kind == "array" else arena
        else:
            make = {"queue": arena.Queue, "joinable": arena.JoinableQueue, "simple": arena.SimpleQueue}[kind]
            self.given = self._kept = make()
        if kind in ("receiver", "queue", "joinable", "simple"):
            self._kept.put("for you")

    def check_used(self, answer: Any) -> None:
        if self._kind == "sender":
            assert self._kept.get(timeout=30) == ("from", answer)
        elif self._kind == "receiver":
            assert answer == "for you"
            self._kept.wait_for_all_ack(timeout=30)
        elif self._kind == "array":
            assert self._kept.array[1] == answer
        elif self._kind == "arena":
            assert os.getpid() in answer
        else:
            assert answer == "for you"
            assert self._kept.get() == "used"
        if self._kind == "joinable":
            self._kept.task_done()
            self._kept.join(timeout=30)


def use(end: Any) -> Any:
    """Uses an endpoint. Pass the result to `Made.check_used`."""
    if isinstance(end, shmtree.Sender):
        end.put(("from", os.getpid()), timeout=30)
        return os.getpid()
    if isinstance(end, shmtree.Receiver):
        return end.get(timeout=30)
    if isinstance(end, shmtree.SharedArray):
        end.array[1] = os.getpid()
        return os.getpid()
    if isinstance(end, shmtree.Arena):
        return [holder.pid for holder in end.holders()]
    end.put("used")
    if isinstance(end, shmtree.JoinableQueue):
        end.task_done()
    return end.get()


def use_argument(end: Any, told: Connection) -> None:
    told.send(use(end))


def serve(told: Connection, routes: dict[str, Any]) -> None:
    """Receives endpoints by the requested routes, uses them, and answers, until it receives None."""
    for route in iter(told.recv, None):
        try:
            told.send(use(take(routes[route], told)))
        except BaseException as error:
            told.send(repr(error))


def take(route: Any, told: Connection) -> Any:
    if route is None:
        return told.recv()
    if isinstance(route, str):
        with Client(route) as connection:
            return connection.recv()
    if hasattr(route, "get") and hasattr(route, "put"):
        return route.get()
    if isinstance(route, shmtree.Receiver):
        return route.get(timeout=30)
    return route[0]  # for a manager's list: the caller has put the object there already


def give(route: Any, end: Any) -> None:
    if hasattr(route, "put"):
        route.put(end)
    else:
        route[0] = end


def give_and_exit(end: Any, route: Any) -> None:
    give(route, end)


def make_pair_and_leave(ends: Any) -> None:
    """Stores both ends of a pair, with a message in it, in a manager's list, and exits."""
    sender, receiver = shmtree.create_pair()
    sender.put("left behind")
    ends[0] = sender, receiver


def send_pickled_and_leave(told: Connection) -> None:
    told.send(pickle.dumps(shmtree.create_pair()[0]))


kept: Any = None  # the endpoint that a worker of a pool was given at its start


def keep(end: Any) -> None:
    global kept
    kept = end


def use_kept(number: int) -> int:
    kept.put(number, timeout=30)
    return os.getpid()


def put_number(sender: shmtree.Sender, number: int) -> None:
    sender.put(number, timeout=60)


def pass_on(end: Any, method: str, told: Connection) -> None:
    """Gives the endpoint to a grandchild that is started with another method."""
    child = mp.get_context(method).Process(target=use_argument, args=(end, told))
    child.start()
    child.join()


def use_all(given: dict[str, Any], told: Connection) -> None:
    for queue, sender, _, array in given["all"]:
        queue.put(os.getpid(), timeout=30)
        sender.put(os.getpid(), timeout=30)
        array.array[0] = os.getpid()
    told.send([made[0] is again for made, again in zip(given["all"], given["again"], strict=True)])


class PutsItsPid:
    """A common pattern: a subclass of Process with the queue as an attribute."""

    def __init__(self, queue: shmtree.Queue) -> None:
        super().__init__()
        self.queue = queue

    def run(self) -> None:
        self.queue.put(os.getpid(), timeout=30)


class ForkProcess(PutsItsPid, mp.get_context("fork").Process):
    pass


class SpawnProcess(PutsItsPid, mp.get_context("spawn").Process):
    pass


class ForkServerProcess(PutsItsPid, mp.get_context("forkserver").Process):
    pass


PROCESSES = {"fork": ForkProcess, "spawn": SpawnProcess, "forkserver": ForkServerProcess}


def fail_to_load() -> None:
    raise RuntimeError("this cannot be loaded")


class Poison:
    """Pickles without an error, and raises when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return fail_to_load, ()
