"""Names and objects stay available to a process to which they were passed, even if the giver closes them."""

from __future__ import annotations

import gc
import multiprocessing as mp
import os
import pickle
import queue
import signal
import threading
from typing import Any

import given_peers
import pytest
from footprints import own_names
from given_peers import MEMORY, OPEN

import shmtree

pytestmark = pytest.mark.usefixtures("runtime_directory")

KINDS = list(OPEN)
STARTED = ["spawn", "forkserver"]


def made(kind: str, name: str | None = None) -> Any:
    """Returns the only object of that kind and name, and the result of using it."""
    thing = given_peers.make(kind, name)
    gc.collect()
    return thing, given_peers.use(thing) if kind != "broadcast" else 0


def let_go(thing: Any) -> None:
    given_peers.drop(thing)


def is_known(kind: str, name: str) -> bool:
    try:
        OPEN[kind](name)
    except FileNotFoundError:
        return False
    return True


def is_free(name: str) -> bool:
    try:
        shmtree.Arena(1 << 20, name=name).close()
    except FileExistsError:
        return False
    return True


# --- to a process that is being started


def launched(name, start, kind, method):
    """Starts a process that is given the named object and pauses before it loads it.

    No other process has the object.
    """
    ours, theirs = mp.get_context(method).Pipe()
    thing, usual = made(kind, name)
    child = start(given_peers.have, given_peers.WaitsWhereItIsLoaded(theirs), thing, theirs, method=method)
    let_go(thing)
    del thing
    assert ours.recv() == "loading"
    return child, ours, usual


@pytest.mark.guarantee("objects-in-transit")
@pytest.mark.parametrize("method", STARTED)
@pytest.mark.parametrize("kind", KINDS)
def test_started_process_keeps_an_object_its_launcher_closes(name, start, kind, method) -> None:
    child, ours, usual = launched(name, start, kind, method)

    assert is_known(kind, name)
    assert not is_free(name)
    ours.send("go on")
    assert ours.recv() == usual
    assert is_known(kind, name)
    ours.send("close")
    assert ours.recv() == "closed"
    if kind == "array":  # the array is an argument of the process, which keeps it while it runs
        ours.send("end")
        child.join(60)

    assert not is_known(kind, name)
    assert is_free(name)
    if kind != "array":
        ours.send("end")
    child.join(60)
    assert child.exitcode == 0


@pytest.mark.guarantee("objects-in-transit")
@pytest.mark.parametrize("method", STARTED)
@pytest.mark.parametrize("kind", ["sender", "latest"])
def test_process_killed_before_it_unpickles_keeps_no_name(name, start, kind, method) -> None:
    # do not name it `_`: with the pipe closed, the child would continue
    child, _ours, _ = launched(name, start, kind, method)

    os.kill(child.pid, signal.SIGKILL)
    child.join(60)

    assert not is_known(kind, name)
    assert is_free(name)


@pytest.mark.parametrize("kind", ["sender", "latest"])
def test_failed_start_keeps_no_name(name, kind) -> None:
    thing, _ = made(kind, name)
    process = mp.get_context("spawn").Process(target=given_peers.have, args=(thing, lambda: 0))
    with pytest.raises((pickle.PicklingError, AttributeError)):
        process.start()
    let_go(thing)
    del thing
    shmtree._process.spawn.sweep()

    assert is_free(name)
    assert own_names() == []


# --- to a process that runs


class Route:
    """A way to give objects, with `put` and `get`: pickled, or in messages of a channel."""

    def __init__(self, kind: str) -> None:
        if kind == "pickles":
            self._reading, self._writing = mp.Pipe(duplex=False)
        self._kind = kind
        self._queue: Any = None
        if kind != "pickles":
            self._queue = shmtree.Queue(allow_pickle=kind == "our queue")

    def put(self, thing: Any) -> None:
        if self._kind == "pickles":
            self._writing.send(thing)
        else:
            self._queue.put(thing)

    def get(self) -> Any:
        return self._reading.recv() if self._kind == "pickles" else self._queue.get(timeout=30)


@pytest.fixture(params=["pickles", "our queue", "our queue without pickles"])
def route(request: pytest.FixtureRequest) -> Route:
    return Route(request.param)


@pytest.fixture
def receiver(route, start) -> Any:
    """Starts a process that receives an object on request."""
    ours, theirs = mp.Pipe()
    start(given_peers.receive, route, theirs)
    return ours


@pytest.mark.guarantee("objects-in-transit")
@pytest.mark.parametrize("kind", KINDS)
def test_sent_object_keeps_its_name_after_its_sender_closes_it(name, route, receiver, kind) -> None:
    thing, usual = made(kind, name)
    route.put(thing)
    let_go(thing)
    del thing

    assert is_known(kind, name)
    assert not_free_elsewhere(name)
    receiver.send("take it")
    assert receiver.recv() == usual
    assert is_known(kind, name)
    receiver.send("close")
    assert receiver.recv() == "closed"

    assert not is_known(kind, name)
    assert is_free(name)
    receiver.send("end")


def not_free_elsewhere(name: str) -> bool:
    """Returns True if another process cannot create the name."""
    context = mp.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=tell_whether_free, args=(name, theirs))
    child.start()
    told: bool = ours.recv()
    child.join()
    return not told


def tell_whether_free(name: str, told: Any) -> None:
    told.send(is_free(name))


@pytest.mark.guarantee("objects-in-transit")
@pytest.mark.parametrize("kind", MEMORY)
def test_unnamed_object_arrives_after_its_sender_drops_it(route, receiver, kind) -> None:
    thing, usual = made(kind)
    route.put(thing)
    let_go(thing)
    del thing
    receiver.send("take it")
    assert receiver.recv() == usual
    receiver.send("close")
    assert receiver.recv() == "closed"
    receiver.send("end")


def test_object_in_a_standard_queue_keeps_its_name(name, start) -> None:
    """The queue's thread pickles objects later: until then the queue holds the object itself."""
    standard = mp.Queue()
    ours, theirs = mp.Pipe()
    start(given_peers.receive, standard, theirs)
    latest, usual = made("latest", name)
    standard.put(latest)
    del latest
    ours.send("take it")
    assert ours.recv() == usual
    assert is_known("latest", name)
    ours.send("close")
    assert ours.recv() == "closed"
    assert not is_known("latest", name)
    ours.send("end")


def test_object_pickled_twice_lives_until_both_arrive(name) -> None:
    latest, _ = made("latest", name)
    first, second = pickle.dumps(latest), pickle.dumps(latest)
    let_go(latest)
    had = pickle.loads(first)
    let_go(had)
    assert is_known("latest", name)

    had = pickle.loads(second)
    assert had.get(timeout=0)[1] == "published"
    let_go(had)
    assert not is_known("latest", name)


def test_pickle_loaded_twice_counts_as_one_arrival(name) -> None:
    latest, _ = made("latest", name)
    first, second = pickle.dumps(latest), pickle.dumps(latest)
    let_go(latest)
    for _ in range(2):
        let_go(pickle.loads(first))
        assert is_known("latest", name)
    let_go(pickle.loads(second))
    assert not is_known("latest", name)


@pytest.mark.guarantee("objects-in-transit")
@pytest.mark.parametrize("kind", ["sender", "latest"])
def test_object_in_transit_closes_when_its_sender_dies(name, start, kind) -> None:
    route = Route("our queue")
    ours, theirs = mp.Pipe()
    child = start(given_peers.give, kind, name, route, theirs)
    assert ours.recv() == "given"
    assert is_known(kind, name)

    os.kill(child.pid, signal.SIGKILL)
    child.join(60)

    assert not is_known(kind, name)
    assert is_free(name)
    assert route.get().closed


@pytest.mark.parametrize("kind", ["queue", "latest"])
def test_sender_keeps_no_name_for_a_forwarded_object(name, start, kind) -> None:
    thing, _ = made(kind, name)
    ours, theirs = mp.Pipe()
    child = start(given_peers.give_on, pickle.dumps(thing), theirs, method="spawn")
    assert ours.recv() == "given"
    os.kill(child.pid, signal.SIGKILL)
    child.join(60)

    let_go(thing)
    del thing
    assert is_free(name)


@pytest.mark.guarantee("objects-in-transit")
@pytest.mark.parametrize("kind", KINDS)
def test_object_of_a_failed_put_is_not_in_transit(name, kind) -> None:
    full = shmtree.Queue(1)
    full.put("busy")
    thing, _ = made(kind, name)
    blocks = blocks_of(thing)
    with pytest.raises(queue.Full):
        full.put(thing, timeout=0.01)
    if kind in MEMORY:
        shmtree._core.sweep_transfers()
        assert blocks_of(thing) == blocks
    let_go(thing)
    del thing
    assert is_free(name)


def core_of(thing: Any) -> Any:
    """Returns the arena that contains the object."""
    for name in ("_channel", "_shared", "_replay"):
        if hasattr(thing, name):
            return getattr(thing, name).arena
    return thing._home if isinstance(thing, shmtree.SharedArray) else thing._open()


def blocks_of(thing: Any) -> int:
    return core_of(thing).stats()["blocks"]


@pytest.mark.guarantee("objects-in-transit")
@pytest.mark.parametrize("kind", MEMORY)
def test_no_transfer_remains_after_arrival(kind) -> None:
    thing, _ = made(kind)
    before = blocks_of(thing)
    for _ in range(100):
        pickle.loads(pickle.dumps(thing))
    shmtree._core.sweep_transfers()
    assert blocks_of(thing) == before


def test_name_of_an_object_that_never_arrives_can_be_reused(name) -> None:
    sender, receiver = shmtree.create_pair(name=name)
    lost = pickle.dumps(sender)
    sender.close()
    receiver.close()
    del sender, receiver
    assert not_free_elsewhere(name)

    _, again = shmtree.create_pair(name=name)

    late = pickle.loads(lost)
    late.put("not received")
    assert again.qsize() == 0
    shmtree.open_sender(name).put("to the new one")
    assert again.get(timeout=30) == "to the new one"
    late.close()
    assert is_known("sender", name)


def test_forked_child_does_not_end_its_parents_transfers(name, start) -> None:
    latest, _ = made("latest", name)
    data = pickle.dumps(latest)
    let_go(latest)
    ours, theirs = mp.Pipe()
    child = start(gives_something_itself, theirs)
    assert ours.recv() == "done"
    child.join(60)
    assert child.exitcode == 0

    assert is_known("latest", name)
    let_go(pickle.loads(data))
    assert not is_known("latest", name)


def gives_something_itself(told: Any) -> None:
    shmtree._core.sweep_transfers()
    pickle.loads(pickle.dumps(shmtree.Latest())).close()
    told.send("done")


def test_threads_send_and_receive_one_name_at_once(name) -> None:
    latest, _ = made("latest", name)

    def give() -> None:
        for _ in range(50):
            pickle.loads(pickle.dumps(latest))

    threads = [threading.Thread(target=give) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert is_known("latest", name)
    let_go(latest)
    assert not is_known("latest", name)


def test_handle_text_keeps_a_queue_and_its_name_until_opened(name) -> None:
    q = shmtree.Queue(name=name)
    q.put("kept")
    text = q.handle()
    q.close()
    del q
    assert is_known("queue", name)
    again = shmtree.Queue.open_handle(text)
    assert again.get(timeout=30) == "kept"
    again.close()
    del again
    assert is_free(name)
