"""The tests of tests/python/conformance with a pair over two nodes of Ray. Other processes run on the other node."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import promises
import pytest
import test_ends_and_promises as conformance
from ray_cluster import LONG_S, cluster_of_two, on, ray

import shmtree
import shmtree.ray

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]

NAME = "ray pair"
PROMISES = promises.cells("shmtree.ray")


def is_for_ray(test: Any) -> bool:
    """Returns True if a test of the conformance suite runs with each end, or with each that makes a promise of ours."""
    asked = [mark.args[0] for mark in getattr(test, "pytestmark", ()) if mark.name == "ends"]
    return bool(asked) and (asked[0] is None or PROMISES[asked[0]] != "-")


globals().update({each: test for each, test in vars(conformance).items() if is_for_ray(test)})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "ends" in metafunc.definition.keywords:
        metafunc.parametrize("name", [NAME])


class Channel:
    """Two pairs, with the interface of a pipe."""

    def __init__(self, sender: Any, receiver: Any) -> None:
        self._sender, self._receiver = sender, receiver

    def send(self, value: Any) -> None:
        self._sender.put(value)

    def recv(self) -> Any:
        return self._receiver.get(timeout=LONG_S)


class Peer:
    """A process on the other node."""

    def pid(self) -> int:
        return os.getpid()

    def run(self, function: Callable[..., Any], *arguments: Any) -> None:
        promises.ENDS[NAME] = RayPair()
        function(*arguments)


class RayPair(promises.End):
    row = "shmtree.ray"
    constructor = shmtree.ray.create_pair
    lacks: ClassVar[dict[str, Any]] = {
        "message": (lambda writer, _: shmtree.pack(writer, allow_pickle=False), shmtree.PickleRefused),
        "name": (lambda *_: shmtree.ray.create_pair(name="x"), TypeError),  # type: ignore[call-arg]
    }

    def make(self, **options: Any) -> tuple[Any, Any]:
        """Returns ends as they arrive in tasks, after this process has used both: otherwise it detaches from one."""
        offered = shmtree.ray.create_pair(**options)
        sender, receiver = pickle.loads(pickle.dumps(offered))
        for end in offered:
            end.close()
        sender.put(None)
        receiver.get()
        return sender, receiver

    def pipe(self, method: str = "fork") -> tuple[Any, Any]:
        there, back = shmtree.ray.create_pair(), shmtree.ray.create_pair()
        return Channel(there[0], back[1]), Channel(back[0], there[1])


promises.ENDS[NAME] = RayPair()


@pytest.fixture(scope="module", autouse=True)
def there() -> Iterator[str]:
    """Starts a cluster. Returns the id of the node without this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # actors import promises.py
        with cluster_of_two(__name__) as (_, _, other):
            yield other


class Process:
    """Runs a function in an actor, with the interface of a process."""

    def __init__(self, node: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._actor = on(node, Peer)
        self.pid = ray.get(self._actor.pid.remote(), timeout=LONG_S)
        self._result = self._actor.run.remote(function, *arguments)

    def join(self, _: float) -> None:
        ray.get(self._result, timeout=LONG_S)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def end(self) -> None:
        ray.kill(self._actor)


@pytest.fixture
def start(there: str) -> Iterator[Callable[..., Process]]:
    """Returns start(function, *arguments), which calls the function on the other node."""
    made: list[Process] = []

    def run(function: Callable[..., Any], *arguments: Any, method: str = "") -> Process:
        made.append(Process(there, function, arguments))
        return made[-1]

    yield run
    for each in made:
        each.end()


@pytest.mark.parametrize("promise", [each for each, cell in PROMISES.items() if cell == "-"])
def test_ray_pair_without_a_promise_refuses_the_call(promise: str) -> None:
    call, error = RayPair.lacks[promise]
    with pytest.raises(error):
        call(*RayPair().make())


def test_maker_of_a_pair_reports_failures_and_ends_loops() -> None:
    sender, receiver = shmtree.ray.create_pair()
    sender.put(1)
    with pytest.raises(KeyError), sender:
        raise KeyError
    assert receiver.get(timeout=LONG_S) == 1
    with pytest.raises(shmtree.WorkerFailed):
        receiver.get(timeout=LONG_S)
    receiver.close()
    assert list(receiver) == []
