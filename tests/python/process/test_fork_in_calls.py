"""Children that user code forks in the middle of a get() or a put(). The call then ends in both processes."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from forks import wait_until_all_sleep

import shmtree

main = os.getpid()


def in_child() -> bool:
    return os.getpid() != main


@pytest.fixture(autouse=True)
def _main(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "main", os.getpid())


def fork_here() -> bool:
    """Forks. Returns True in the child. The parent returns when the child has exited."""
    if in_child():
        return True
    child = os.fork()
    if child != 0:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return child == 0


def ends_child(call: Callable[[], Any], error: type[BaseException] | None) -> Any:
    """Makes a call in which the process forks. The child exits after the call, with 0 if it raised just that error."""
    raised: type[BaseException] | None = None
    try:
        return call()
    except BaseException as exception:
        if not in_child():
            raise
        raised = type(exception)
    finally:
        if in_child():
            os._exit(0 if raised is error else 1)


class Forks:
    """An object that forks when it is loaded. The child raises."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return _load, (self.error,)


def _load(error: type[BaseException]) -> str:
    if fork_here():
        raise error
    return "loaded"


class Flat:
    """An object that forks in its registered flatten function."""

    def __init__(self, error: type[BaseException] | None = None) -> None:
        self.error = error


def _flatten(flat: Flat) -> int:
    if fork_here() and flat.error is not None:
        raise flat.error
    return 0


shmtree.register(Flat, _flatten, lambda _: Flat())


class Pickled:
    """An object that forks when it is pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        fork_here()
        return Pickled, ()


def taken(receiver: Any) -> Any:
    with receiver.take(timeout=30) as delivery:
        return delivery.item


RECEIVING: dict[str, Callable[[Any], Any]] = {
    "get": lambda receiver: receiver.get(timeout=30),
    "get_many": lambda receiver: receiver.get_many(1, timeout=30)[0],
    "take": taken,
}


@pytest.mark.guarantee("fork-in-a-call")
@pytest.mark.parametrize("error", [SystemExit, MemoryError])
@pytest.mark.parametrize("size", [10, 100_000], ids=["in the ring", "in a block"])
@pytest.mark.parametrize("call", RECEIVING)
def test_child_forked_during_get_returns_no_message(
    arena: shmtree.Arena, call: str, size: int, error: type[BaseException]
) -> None:
    sender, receiver = arena.create_pair()
    sender.put([Forks(error), bytes(size)])
    assert ends_child(lambda: RECEIVING[call](receiver), error) == ["loaded", bytes(size)]
    assert receiver.qsize() == 0
    with pytest.raises(queue.Empty):
        receiver.get_nowait()
    sender.wait_for_all_ack(timeout=30)


@pytest.mark.guarantee("fork-in-a-call")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("call", ["get", "take"])
def test_child_forked_by_a_handler_in_get_holds_its_own_view(arena: shmtree.Arena, call: str) -> None:
    sender, receiver = arena.create_pair()
    from_child, to_parent = os.pipe()
    from_parent, to_child = os.pipe()
    children: list[int] = []

    def handler(*_: object) -> None:
        children.append(os.fork())
        if children[0] != 0:
            sender.put_many([np.ones(100_000)] * 2)

    def interrupt() -> None:
        wait_until_all_sleep(1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    threading.Thread(target=interrupt).start()
    try:
        got = getattr(receiver, call)(timeout=30)
        if in_child():
            os.close(to_child)
            os.write(to_parent, b"x")
            os.read(from_parent, 1)
    finally:
        if in_child():
            os._exit(0)
        signal.signal(signal.SIGUSR1, before)
    os.close(to_parent)
    assert os.read(from_child, 1) == b"x"
    assert {holder.pid for holder in arena.holders()} == {os.getpid(), children[0]}
    os.close(to_child)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
    if call == "take":
        got.ack()
    del got
    assert arena.holders() == []
    os.close(from_child)
    os.close(from_parent)


PUTTING: dict[str, Callable[[Any, Any], Any]] = {
    "put": lambda sender, item: sender.put(item),
    "put_many": lambda sender, item: sender.put_many([item]),
    "move": lambda sender, item: sender.put(item, move=True),
}


@pytest.mark.guarantee("fork-in-a-call")
@pytest.mark.parametrize("call", PUTTING)
def test_child_forked_during_put_does_not_move_the_array(arena: shmtree.Arena, call: str) -> None:
    sender, receiver = arena.create_pair()
    array = sender.new_empty(100_000, dtype="uint8")
    array[:] = 7
    ends_child(lambda: PUTTING[call](sender, [array, Flat()]), ValueError)
    assert not array.flags.writeable
    got, _ = receiver.get(timeout=30)
    assert got.flags.writeable and (got == 7).all()
    assert receiver.empty()


@pytest.mark.parametrize("item", [Flat, Pickled])
def test_child_forked_during_put_may_put_a_copy(arena: shmtree.Arena, item: Callable[[], Any]) -> None:
    sender, receiver = arena.create_pair()
    array = sender.new_empty(100_000, dtype="uint8")
    array[:] = 7
    ends_child(lambda: sender.put([item(), array]), None)
    copied, given = (receiver.get(timeout=30)[1] for _ in range(2))
    given[0] = copied[1] = 99
    assert (copied[0], given[1]) == (7, 7)


@pytest.mark.guarantee("fork-in-a-call")
def test_failed_put_of_a_child_keeps_the_ends_its_parent_sends(arena: shmtree.Arena) -> None:
    sender, receiver = arena.create_pair()
    given, at_end = arena.create_pair()
    ends_child(lambda: sender.put([given, Flat(RuntimeError)]), RuntimeError)
    given.close()
    with pytest.raises(queue.Empty):
        at_end.get_nowait()
    again = receiver.get(timeout=30)[0]
    again.put("there")
    assert at_end.get(timeout=30) == "there"
