"""Each object with a name can be waited for, and its constructor can open an existing one."""

from __future__ import annotations

import math
import multiprocessing as mp
import re
import threading
from typing import Any

import pytest

import shmtree
from shmtree.replay import ReplayBuffer

pytestmark = pytest.mark.usefixtures("runtime_directory")

HOME = shmtree.Arena(64 << 20)  # arena of the arrays

MAKERS: dict[str, Any] = {
    "pair": lambda name, **how: shmtree.create_pair(name=name, **how),
    "Queue": lambda name, **how: shmtree.Queue(name=name, **how),
    "JoinableQueue": lambda name, **how: shmtree.JoinableQueue(name=name, **how),
    "SimpleQueue": lambda name, **how: shmtree.SimpleQueue(name=name, **how),
    "Latest": lambda name, **how: shmtree.Latest(name=name, **how),
    "Broadcast": lambda name, **how: shmtree.Broadcast(name=name, **how),
    "ReplayBuffer": lambda name, **how: ReplayBuffer(**({"capacity": 64, "example": {"x": 1.0}} | how), name=name),
    "SharedArray": lambda name, **how: HOME.array(**({"shape": (3,), "dtype": "f4"} | how), name=name),
    "Service": lambda name, **how: shmtree.Service(name, **({"exist_ok": False} | how)),
    "Arena": lambda name, **how: shmtree.Arena(name=name, **({"max_bytes": 8 << 20} | how)),
}
OPENERS: dict[str, Any] = {
    "sender": shmtree.open_sender,
    "receiver": shmtree.open_receiver,
    "Queue": shmtree.Queue.open,
    "JoinableQueue": shmtree.JoinableQueue.open,
    "SimpleQueue": shmtree.SimpleQueue.open,
    "Latest": shmtree.Latest.open,
    "Broadcast": shmtree.Broadcast.open,
    "ReplayBuffer": ReplayBuffer.open,
    "SharedArray": shmtree.SharedArray.open,
    "Client": lambda name, **how: shmtree.Client(name, **how),
    "Arena": shmtree.Arena.open,
}
MADE_FOR = {"sender": "pair", "receiver": "pair", "Client": "Service"}


def arena_of(made: Any) -> str:
    """Returns the identity of the arena that contains the object."""
    one = made[0] if isinstance(made, tuple) else made
    if isinstance(one, shmtree.Service):
        one = one.sender
    for way in (lambda: one._channel.arena, lambda: one._shared.arena, lambda: one._replay.arena, lambda: one._home):
        try:
            return str(way().uuid)
        except AttributeError:
            continue
    return str(one._core.uuid)


@pytest.mark.parametrize("kind", MAKERS)
def test_exist_ok_opens_the_existing_object(name, kind):
    make = MAKERS[kind]
    made = make(name, exist_ok=True)
    again = make(name, exist_ok=True)
    assert arena_of(again) == arena_of(made)
    with pytest.raises(FileExistsError, match="to open it, pass exist_ok"):
        make(name)
    del made, again
    make(name)


@pytest.mark.parametrize("kind", MAKERS)
def test_exist_ok_refuses_another_kind(name, kind):
    kept = shmtree.Latest(name=name) if kind != "Latest" else shmtree.Broadcast(name=name)
    with pytest.raises(ValueError, match=re.escape(name)):
        MAKERS[kind](name, exist_ok=True)
    del kept


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("pair", {"capacity": 16}, "capacity 8, not 16"),
        ("pair", {"capacity": None, "max_bytes": 100}, "capacity 8, not 0, max_bytes 0, not 100"),
        ("pair", {"on_peer_death": "each"}, "on_peer_death raise, not each"),
        ("pair", {"max_unacked": 1, "max_attempts": 2}, "max_unacked 0, not 1, max_attempts 0, not 2"),
        ("pair", {"keep_open": True, "on_full": "drop_oldest"}, "on_full block, not drop_oldest"),
        ("Queue", {"maxsize": 5, "allow_pickle": True}, "capacity 0, not 5, allow_pickle false, not true"),
        ("Latest", {"history": 2}, "a Latest with other options: history 0, not 2"),
        ("Latest", {"allow_pickle": True}, "allow_pickle false, not true"),
        ("Broadcast", {"capacity": 9, "history": 1}, "capacity 8, not 9, history 0, not 1"),
        (
            "Broadcast",
            {"max_bytes": 100, "on_peer_death": "wait"},
            "max_bytes 0, not 100, on_peer_death raise, not wait",
        ),
        ("ReplayBuffer", {"capacity": 128}, "capacity 64, not 128"),
        ("ReplayBuffer", {"example": {"y": 1.0}}, "columns of the existing buffer, not those given"),
        (
            "ReplayBuffer",
            {
                "episodes": shmtree.replay.Episodes(gamma=0.5),
                "limits": shmtree.replay.Limits(on_peer_death="raise"),
            },
            "gamma 0.990000, not 0.500000, on_peer_death wait, not raise",
        ),
        (
            "ReplayBuffer",
            {"sampling": shmtree.replay.Sampling(shmtree.replay.Fifo())},
            "samplers of the existing buffer, not those given",
        ),
        ("SharedArray", {"shape": (4,), "dtype": "f8"}, r"shape (3,), not (4,), dtype float32, not float64"),
        ("Service", {"capacity": 3}, "capacity 1024, not 3"),
        ("Arena", {"max_bytes": 16 << 20}, f"max_bytes {8 << 20}, not {16 << 20}"),
    ],
)
def test_exist_ok_with_other_options_raises_with_both_values(name, kind, options, said):
    kept = MAKERS[kind](name)
    with pytest.raises(ValueError, match=f'"{re.escape(name)}": .*{re.escape(said)}$'):
        MAKERS[kind](name, exist_ok=True, **options)
    del kept


@pytest.mark.parametrize("kind", ["pair", "Queue", "Latest", "Broadcast", "ReplayBuffer", "Service"])
def test_exist_ok_refuses_an_object_of_another_arena(name, kind):
    kept = MAKERS[kind](name)
    with shmtree.Arena(32 << 20) as other, pytest.raises(ValueError, match="another arena than the one given"):
        MAKERS[kind](name, exist_ok=True, arena=other)
    del kept


@pytest.mark.parametrize("kind", [kind for kind in MAKERS if kind != "Service"])
def test_exist_ok_needs_a_name(kind):
    with pytest.raises(ValueError, match="exist_ok requires a name"):
        MAKERS[kind](None, exist_ok=True)


@pytest.mark.parametrize("kind", MAKERS)
def test_exist_ok_in_threads_creates_one_object(name, kind):
    for _ in range(5):
        together, made = threading.Barrier(4), []

        def make(together=together, made=made) -> None:
            together.wait()
            made.append(MAKERS[kind](name, exist_ok=True))

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(made) == 4
        assert len({arena_of(each) for each in made}) == 1
        made.clear()


def make_and_tell(kind: str, name: str, told: Any) -> None:
    told.recv()
    made = MAKERS[kind](name, exist_ok=True)
    told.send(arena_of(made))
    told.recv()


# an array is in the arena of its process
@pytest.mark.parametrize("kind", [kind for kind in MAKERS if kind != "SharedArray"])
def test_exist_ok_in_processes_creates_one_object(name, start, kind):
    pipes = [mp.Pipe() for _ in range(4)]
    children = [start(make_and_tell, kind, name, theirs) for _, theirs in pipes]
    for ours, _ in pipes:
        ours.send("go")
    assert len({ours.recv() for ours, _ in pipes}) == 1
    for ours, _ in pipes:
        ours.send("leave")
    for child in children:
        child.join(60)


@pytest.mark.parametrize("kind", OPENERS)
def test_openers_wait_for_the_name(name, kind):
    opening, opened = OPENERS[kind], []
    thread = threading.Thread(target=lambda: opened.append(opening(name, timeout=60)))
    thread.start()
    kept = MAKERS[MADE_FOR.get(kind, kind)](name)
    thread.join(60)
    assert len(opened) == 1
    opened.clear()
    del kept


@pytest.mark.parametrize("kind", OPENERS)
def test_openers_reject_invalid_timeouts(name, kind):
    with pytest.raises(TimeoutError, match=f'"{re.escape(name)}" within 0.01 s; searched '):
        OPENERS[kind](name, timeout=0.01)
    with pytest.raises(ValueError, match="timeout is NaN"):
        OPENERS[kind](name, timeout=math.nan)
    with pytest.raises(TypeError, match="timeout is 'a'"):
        OPENERS[kind](name, timeout="a")
    with pytest.raises(FileNotFoundError):
        OPENERS[kind](name, timeout=-1)
