"""Resources that close() releases in a forked child, for every call in which the parent's threads may be at the
fork."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from footprints import footprint, use, warm_up
from forks import fork, join, wait_until_all_sleep

import shmtree

pytestmark = [
    pytest.mark.serial,  # a child frees objects that other tests of this process left, and is compared with its parent
    pytest.mark.usefixtures("runtime_directory"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _warm() -> None:
    gc.collect()  # objects of earlier tests must not be freed between the measurements
    warm_up()


@contextlib.contextmanager
def running(*functions: Callable[[], Any]) -> Iterator[None]:
    """Runs each function in its own thread. The threads must end soon after the block."""
    threads = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


class Meets:
    """An object that sets `come` when it is pickled or loaded, and then blocks until `go` is set."""

    come, go = threading.Event(), threading.Event()

    def __init__(self, when: str = "pickled") -> None:
        self.when = when

    @classmethod
    def meet(cls) -> None:
        cls.come.set()
        assert cls.go.wait(30)

    def __reduce__(self) -> Any:
        if self.when == "pickled":
            self.meet()
            return int, ()
        return Meets.load, ()

    @staticmethod
    def load() -> int:
        Meets.meet()
        return 0


@pytest.fixture
def meets() -> type[Meets]:
    Meets.come.clear()
    Meets.go.clear()
    return Meets


def lets_go_of(before: tuple[int, int, int], *ends: Any) -> Callable[[], None]:
    def act() -> None:
        for end in ends:
            end.close()
        assert footprint()[1:] == before[1:]  # the parent still has the names

    return act


@pytest.mark.guarantee("close-in-child")
@pytest.mark.parametrize("kind", ["pair", "queue"])
def test_child_closes_ends_while_threads_wait_in_get_and_put(name, kind):
    before = footprint()

    def make(size, name):
        return shmtree.create_pair(size, name=name) if kind == "pair" else (shmtree.Queue(size, name=name),) * 2

    to_empty, from_empty = make(4, name)
    to_full, from_full = make(1, name + "2")
    use(to_empty, from_empty)
    use(to_full, from_full)
    to_full.put(0)
    with running(from_empty.get, from_empty.get, lambda: to_full.put(1)):
        wait_until_all_sleep(3)
        join(fork(lets_go_of(before, to_empty, from_empty, to_full, from_full)))
        for i in range(2):
            to_empty.put(i)
            assert from_full.get() == i


def test_child_closes_ends_while_threads_wait_for_acks(name):
    before = footprint()
    sender, receiver = shmtree.create_pair(name=name)
    q = shmtree.JoinableQueue(name=name + "q")
    use(sender, receiver)
    use(q, q)
    q.task_done()
    sender.put(1)
    q.put(1)
    with running(sender.wait_for_all_ack, q.join):
        wait_until_all_sleep(2)
        join(fork(lets_go_of(before, sender, receiver, q)))
        receiver.get()
        q.get()
        q.task_done()


def test_child_closes_an_end_while_a_thread_is_in_put_many(name, meets):
    before = footprint()
    sender, receiver = shmtree.create_pair(name=name)
    use(sender, receiver)

    def items() -> Iterator[int]:
        meets.meet()
        yield 1

    with running(lambda: sender.put_many(items())):
        meets.come.wait(30)
        join(fork(lets_go_of(before, sender, receiver)))
        meets.go.set()
    assert receiver.get() == 1


class FakeTorch(types.ModuleType):
    Tensor = type("Tensor", (), {})
    nn = types.SimpleNamespace(Parameter=type("Parameter", (), {}))


@pytest.mark.guarantee("close-in-child")
@pytest.mark.parametrize("torch", ["with torch", "without"])
@pytest.mark.parametrize("when", ["pickled", "loaded"])
def test_child_closes_ends_while_a_thread_runs_user_code(name, meets, when, torch, monkeypatch):
    if torch == "with torch":  # torch has its own reducers
        monkeypatch.setitem(sys.modules, "torch", FakeTorch("torch"))
    before = footprint()
    sender, receiver = shmtree.create_pair(name=name, allow_pickle=True)
    use(sender, receiver)

    def send_and_receive() -> None:
        sender.put(Meets(when))
        assert receiver.get() == 0

    with running(send_and_receive):
        meets.come.wait(30)
        join(fork(lets_go_of(before, sender, receiver)))
        meets.go.set()


@pytest.mark.guarantee("close-in-child")
def test_child_close_waits_for_calls_of_its_own_threads(name):
    before = footprint()
    sender, receiver = shmtree.create_pair(name=name)
    use(sender, receiver)

    def act() -> None:
        closed = []

        def wait() -> None:
            with pytest.raises(shmtree.ChannelClosed):
                receiver.get()
            closed.append(True)

        with running(wait, wait):
            wait_until_all_sleep(2)
            sender.close()
            receiver.close()
        assert closed == [True] * 2
        assert footprint()[1:] == before[1:]

    with running(receiver.get):
        wait_until_all_sleep(1)
        join(fork(act))
        sender.put(1)


class Forks:
    """An object that forks while it is pickled. The child calls the function, then continues the interrupted call."""

    child = -1

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act

    def __reduce__(self) -> Any:
        self.child = os.fork()
        if self.child == 0:
            self.act()
        return int, ()


@pytest.mark.guarantee("close-in-child")
@pytest.mark.parametrize("waiting", [0, 1])
def test_child_forked_in_a_put_may_close_the_queue(name, waiting):
    before = footprint()
    q = shmtree.Queue(name=name, allow_pickle=True)
    use(q, q)
    with running(*[q.get] * waiting):
        wait_until_all_sleep(waiting)
        forks = Forks(q.close)
        passed = False
        try:
            q.put([forks, np.zeros(100_000)])
            assert forks.child != 0
        except shmtree.ChannelClosed:
            assert forks.child == 0
            # The child cannot find out which other calls were in progress, so the references of these calls are never
            # released.
            passed = q.closed and (waiting == 1 or footprint()[1:] == before[1:])
        finally:
            if forks.child == 0:
                os._exit(0 if passed else 1)
        join(forks.child)
    assert waiting or q.get()[0] == 0
