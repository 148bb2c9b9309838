"""Ends, arenas and shared arrays arrive in other processes by any route."""

from __future__ import annotations

import multiprocessing as mp
import pickle
import tempfile
from multiprocessing.connection import Listener
from typing import Any

import endpoint_peers
import pytest
from endpoint_peers import KINDS, Made
from starts import START_METHODS

import shmtree

ROUTES = ["pipe", "queue", "simple queue", "pair", "our queue", "dict", "list", "manager's queue", "listener"]


class Runner:
    """A child that already runs when there are endpoints to send to it."""

    def __init__(self, method: str, manager: Any) -> None:
        context = mp.get_context(method)
        self._told, theirs = context.Pipe()
        address = tempfile.mktemp(prefix="shmtree-test-")
        self._listener = Listener(address)
        self._sender, receiver = shmtree.create_pair()
        self.routes = {
            "pipe": None,
            "queue": context.Queue(),
            "simple queue": context.SimpleQueue(),
            "pair": receiver,
            "our queue": shmtree.Queue(),
            "dict": manager.dict(),
            "list": manager.list([None]),
            "manager's queue": manager.Queue(),
            "listener": address,
        }
        self.process = context.Process(target=endpoint_peers.serve, args=(theirs, self.routes))
        self.process.start()

    def hand_over(self, route: str, end: Any) -> Any:
        """Sends an endpoint by a route. Returns the child's answer after it has used the endpoint."""
        where = self.routes[route]
        if route in ("dict", "list"):
            endpoint_peers.give(where, end)
        self._told.send(route)
        if route == "pipe":
            self._told.send(end)
        elif route == "listener":
            with self._listener.accept() as connection:
                connection.send(end)
        elif route == "pair":
            self._sender.put(end, timeout=30)
        elif hasattr(where, "put"):
            where.put(end)
        return self.answer()

    def ask(self, route: str) -> Any:
        self._told.send(route)
        return self.answer()

    def answer(self) -> Any:
        assert self._told.poll(30), "the child does not answer"
        return self._told.recv()

    def close(self) -> None:
        self._told.send(None)
        self.process.join(30)
        self._listener.close()
        assert self.process.exitcode == 0


@pytest.fixture(scope="module")
def manager():
    with mp.get_context("fork").Manager() as made:
        yield made


@pytest.fixture(scope="module", params=["fork", "spawn"])
def runner(request, manager):
    made = Runner(request.param, manager)
    yield made
    made.close()


@pytest.mark.parametrize("kind", ["receiver", "array", "arena", "joinable"])
@pytest.mark.parametrize("method", START_METHODS)
def test_endpoint_is_passed_as_a_process_argument(arena, start, method, kind):
    made = Made(kind, arena)
    ours, theirs = mp.get_context(method).Pipe()
    start(endpoint_peers.use_argument, made.given, theirs, method=method)
    made.check_used(ours.recv())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("route", ROUTES)
def test_endpoint_is_sent_to_a_running_process(arena, runner, route, kind):
    made = Made(kind, arena)
    made.check_used(runner.hand_over(route, made.given))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("route", ["queue", "dict"])
def test_endpoint_arrives_after_its_sending_process_exited(arena, runner, manager, start, route, kind):
    made = Made(kind, arena)
    messenger = start(endpoint_peers.give_and_exit, made.given, runner.routes[route], method="fork")
    messenger.join(30)
    assert messenger.exitcode == 0
    made.check_used(runner.ask(route))


def test_manager_keeps_ends_of_an_exited_process(manager, runner, start):
    ends = manager.list([None])
    maker = start(endpoint_peers.make_pair_and_leave, ends)
    maker.join(30)
    sender, receiver = ends[0]
    assert receiver.get(timeout=30) == "left behind"
    runner.hand_over("pipe", sender)
    assert receiver.get(timeout=30) == ("from", runner.process.pid)


def test_endpoint_whose_last_process_ended_raises(start):
    ours, theirs = mp.Pipe()
    maker = start(endpoint_peers.send_pickled_and_leave, theirs)
    data = ours.recv()
    maker.join(30)
    with pytest.raises(FileNotFoundError, match=rf"{maker.pid} has ended.*no other process"):
        pickle.loads(data)
