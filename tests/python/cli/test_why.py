"""Reports about which process waits for which other process."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import shutil
import threading
from collections.abc import Callable
from typing import Any

import peers
import pytest
from test_observe import run, wait_until_stopped

import shmtree
from shmtree.cli import why

pytestmark = pytest.mark.usefixtures("runtime_directory")


def told(*pipes: Any) -> list[int]:
    return [pipe.recv() for pipe in pipes]


def why_until(what: str, is_seen: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Repeats the command until `is_seen` accepts its output: the processes need some time to fall asleep."""
    while True:
        found = json.loads(run("why", what, "--json"))
        if is_seen(found):
            return found


def waits_of(found: dict[str, Any], pid: int) -> list[dict[str, Any]]:
    return [wait for wait in found["waits"] if wait["pid"] == pid]


@pytest.mark.guarantee("named-deadlocks")
def test_why_names_two_mutual_waiters_as_one_deadlock(name, start):
    there, back = shmtree.create_pair(name=f"{name}-there"), shmtree.create_pair(name=f"{name}-back")
    (ours, theirs), (our_other, their_other) = mp.Pipe(), mp.Pipe()
    one = start(peers.exchange, there[1], back[0], theirs)
    other = start(peers.exchange, back[1], there[0], their_other)
    for end in (*there, *back):
        end.close()
    pids = sorted(told(ours, our_other))
    found = why_until(f"{name}-there", lambda found: found["deadlocks"])
    (deadlock,) = found["deadlocks"]
    assert deadlock["pids"] == pids == sorted([one.pid, other.pid])
    assert sorted(deadlock["channels"]) == [f"{name}-back", f"{name}-there"]
    assert deadlock["seconds"] > 0
    assert {wait["pid"]: wait["for_pids"] for wait in found["waits"]} == {
        one.pid: [other.pid],
        other.pid: [one.pid],
    }
    words = run("why", str(one.pid)).splitlines()
    assert sum(line.startswith("Deadlock: ") for line in words) == 1
    assert f"{pids[0]}, {pids[1]}" in words[0]


def test_why_names_a_busy_sender_without_a_deadlock(name, start):
    sender, receiver = shmtree.create_pair(name=name)
    (ours, theirs), (our_other, their_other) = mp.Pipe(), mp.Pipe()
    computes = start(peers.put_then_hang, sender, "x", theirs)
    waits = start(peers.receive_for_ever, receiver, their_other)
    sender.close()
    receiver.close()
    told(ours, our_other)
    found = why_until(name, lambda found: waits_of(found, waits.pid))
    (wait,) = waits_of(found, waits.pid)
    assert (wait["what"], wait["channel"], wait["for_pids"]) == ("message", name, [computes.pid])
    assert wait["seconds"] > 0
    assert wait["stopped"] == []
    assert found["deadlocks"] == []
    assert waits_of(found, computes.pid) == []
    assert f"{waits.pid} has waited" in run("why", name)


def test_why_reports_that_the_awaited_receiver_is_stopped(name, start):
    sender, receiver = shmtree.create_pair(capacity=2, name=name)
    (ours, theirs), (our_other, their_other) = mp.Pipe(), mp.Pipe()
    stopped = start(peers.receive_then_hang, receiver, theirs)
    waits = start(peers.send_for_ever, sender, their_other)
    sender.close()
    receiver.close()
    told(ours, our_other)
    wait_until_stopped(stopped.pid)
    found = why_until(name, lambda found: waits_of(found, waits.pid))
    (wait,) = waits_of(found, waits.pid)
    assert (wait["what"], wait["channel"]) == ("space", name)
    assert wait["for_pids"] == wait["stopped"] == [stopped.pid]
    assert found["deadlocks"] == []
    assert f"from {stopped.pid}, which is stopped." in run("why", str(waits.pid))


def test_why_omits_processes_that_never_used_the_end(name, start):
    sender, receiver = shmtree.create_pair(name=name)
    ours, theirs = mp.Pipe()
    waits = start(peers.receive_for_ever, receiver, theirs)
    sender.put("x")
    told(ours)
    other, other_theirs = mp.Pipe()
    has_it = start(peers.put_then_hang, shmtree.create_pair()[0], "x", other_theirs)  # also inherits `sender`
    told(other)
    found = why_until(name, lambda found: waits_of(found, waits.pid))
    assert waits_of(found, waits.pid)[0]["for_pids"] == [os.getpid()]
    assert has_it.is_alive()


def put_for_ever(mine, theirs, told: Any) -> None:
    """Puts forever and never receives."""
    told.send(os.getpid())
    while True:
        mine.put("x")
    theirs.get()


def test_senders_that_never_received_are_a_deadlock(name, start):
    there, back = shmtree.create_pair(2, name=f"{name}-there"), shmtree.create_pair(2, name=f"{name}-back")
    (ours, theirs), (our_other, their_other) = mp.Pipe(), mp.Pipe()
    one = start(put_for_ever, there[0], back[1], theirs, method="spawn")
    other = start(put_for_ever, back[0], there[1], their_other, method="spawn")
    for end in (*there, *back):
        end.close()
    pids = sorted(told(ours, our_other))
    found = why_until(f"{name}-there", lambda found: found["deadlocks"])
    assert [each["pids"] for each in found["deadlocks"]] == [pids] == [sorted([one.pid, other.pid])]
    assert {wait["pid"]: wait["never_used"] for wait in found["waits"]} == {one.pid: [other.pid], other.pid: [one.pid]}
    assert f"from {other.pid}, which has never used it." in run("why", str(one.pid))


def test_why_unknown_process_or_channel_is_an_error(name):
    _ends = shmtree.create_pair(name=name)
    assert json.loads(run("why", str(os.getpid()), "--json"))["waits"] == []
    assert json.loads(run("why", name, "--json"))["waits"] == []
    for what in ("nothing", str(1 << 22)):
        says = f"shmtree: no process with an arena has the pid {what!r}, and no object has that name\n"
        assert run("why", what, code=1) == says


def test_why_finds_a_subscriber_by_the_name_of_its_broadcast(name):
    broadcast = shmtree.Broadcast(4, name=name)
    subscriber = broadcast.subscribe()
    waiting = threading.Thread(target=subscriber.get, daemon=True)
    waiting.start()
    found = why_until(name, lambda found: found["waits"])
    assert [wait["what"] for wait in waits_of(found, os.getpid())] == ["message"]
    broadcast.put(1)
    waiting.join(60)


def test_why_omits_waits_shorter_than_its_interval(name, start):
    sender, receiver = shmtree.create_pair(1, name=name)
    ours, theirs = mp.Pipe()
    child = start(peers.send_for_ever, sender, theirs)
    assert ours.recv() == child.pid
    sender.close()
    stop = threading.Event()

    def receive() -> None:
        while not stop.wait(0.05):
            receiver.get()

    thread = threading.Thread(target=receive)
    thread.start()
    try:
        # Far longer than each of these waits takes on a loaded machine.
        assert waits_of(why.why(name, seconds=3.0), child.pid) == []
    finally:
        stop.set()
        thread.join()


def test_why_finds_a_channel_named_with_digits(start):
    sender, receiver = shmtree.create_pair(name="7777777")
    ours, theirs = mp.Pipe()
    waits = start(peers.receive_for_ever, receiver, theirs)
    receiver.close()
    sender.put("x")
    told(ours)
    assert waits_of(why_until("7777777", lambda found: found["waits"]), waits.pid)


def wait_at(what: str, **channel: Any) -> why.Wait:
    """Returns a wait of process 1 at a channel. Processes 2 and 3 have the other end, and 4 holds memory."""
    known = {"block": 5, "refused": None, "queued": 1, "limit": 1, "max_bytes": 0, "name": "c", "names": ["c"]}
    ends = {"receiver_pids": [2, 3], "receivers_never_used": [2, 3], "sender_pids": [1], "senders_never_used": []}
    ends |= {"receivers_in_transit": 0, "senders_in_transit": 0}
    wait = {"what": what, "block": 5, "lock_owner": 2, "thread": 1, "at": "channel c", "channel": "c", "seconds": 1.0}
    arena = {
        "uuid": "0" * 32,
        "participants": [{"pid": 1, "alive": True, "waits": [wait]}],
        "holders": [{"pid": 4}],
        "channels": [known | ends | channel],
    }
    (found,) = why._waits({"arenas": [arena]})
    return found


@pytest.mark.parametrize(
    ("what", "channel", "for_pids", "never_used", "words"),
    [
        ("space", {}, (2, 3), (2, 3), "from 2, 3, which have never used it."),
        ("space", {"receivers_never_used": [3]}, (2,), (), "from 2."),
        ("memory", {}, (4, 2, 3), (2, 3), "from 4, 2, 3, of which 2, 3 have never used it."),
        ("memory", {"receiver_pids": [2, 4], "receivers_never_used": [4]}, (4, 2), (), "from 4, 2."),
        ("lock", {}, (2,), (), "from 2."),
    ],
)
def test_why_names_the_processes_that_never_used_an_end(what, channel, for_pids, never_used, words):
    found = wait_at(what, **channel)
    assert (tuple(found["for_pids"]), tuple(found["never_used"])) == (for_pids, never_used)
    assert why._wait_words(found | {"stopped": []}).endswith(words)


def wait_of(pid: int, *for_pids: int) -> why.Wait:
    return {"pid": pid, "for_pids": for_pids}


@pytest.mark.guarantee("named-deadlocks")
@pytest.mark.parametrize(
    ("waits", "cycles"),
    [
        ([], []),
        ([(1, 2)], []),
        ([(1, 2), (2, 1)], [{1, 2}]),
        ([(1, 2), (2, 3), (3, 1)], [{1, 2, 3}]),
        ([(1, 2, 3), (2, 1)], []),  # 3 may wake 1
        ([(1, 2), (2, 1), (3, 1)], [{1, 2}]),  # 3 is not part of the cycle
        ([(1, 2), (2, 1), (1, 3)], []),  # 3 may wake another thread of 1
        ([(1, 2), (2, 1), (3, 4), (4, 3)], [{1, 2}, {3, 4}]),
        ([(1, 0), (0, 1)], []),  # pid 0: a process in another namespace, and not always the same one
        ([(1,), (2, 1)], []),
    ],
)
def test_deadlock_is_a_cycle_that_no_outsider_can_end(waits, cycles):
    assert why._cycles(why._stuck([wait_of(*each) for each in waits])) == cycles


def test_why_names_locks_of_stopped_processes():
    people = [{"pid": 7, "stopped": True}, {"pid": 8, "stopped": False}]
    channel = {"name": "c", "sender_locked_by": 7, "receiver_locked_by": 8}
    arena = {"name": "a", "uuid": "0" * 32, "participants": people, "locked_by": 7, "channels": [channel]}
    locks = list(why._locks({"arenas": [arena]}))
    assert locks == [{"pid": 7, "of": "arena a"}, {"pid": 7, "of": "the senders of channel c"}]
    words = why.words({"deadlocks": [], "locks": locks, "waits": [], "refused": [], "stacks": {}})
    assert words.splitlines()[0] == "Process 7 is stopped and holds the lock of arena a."


def test_why_names_the_awaited_process_of_a_broadcast():
    readers = [
        {"pid": 1, "behind": 9, "blocks": False},
        {"pid": 2, "behind": 5, "blocks": True},
        {"pid": 3, "behind": 1, "blocks": True},
        {"pid": None, "behind": 7, "blocks": False},
    ]
    broadcast = {"block": 5, "refused": None, "publishers": [4], "subscribers": readers}
    arena = {"holders": [], "channels": [], "latests": [], "broadcasts": [broadcast]}
    assert why._awaited(arena, {"what": "space", "block": 5}) == [2]
    assert why._awaited(arena, {"what": "message", "block": 5}) == [4]
    assert why._awaited(arena, {"what": "lock", "block": 0, "lock_owner": 6}) == [6]


def test_end_in_transit_adds_an_unknown_process_to_the_wait():
    channel = {"block": 5, "refused": None, "receiver_pids": [2], "receivers_never_used": [], "receivers_in_transit": 1}
    arena = {"holders": [], "channels": [channel]}
    assert why._awaited(arena, {"what": "space", "block": 5}) == [2, 0]
    assert why._awaited(
        arena | {"channels": [channel | {"receivers_in_transit": 0}]}, {"what": "space", "block": 5}
    ) == [2]


def test_why_includes_stacks_only_if_py_spy_is_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert why.stacks([os.getpid()]) == {}
    program = tmp_path / "py-spy"
    program.write_text(f'#!{shutil.which("sh", path=os.defpath)}\necho "$@"\n')
    program.chmod(0o755)
    assert why.stacks([7, 0]) == {"7": "dump --nonblocking --pid 7"}
    found = {"deadlocks": [], "locks": [], "waits": [], "refused": [], "stacks": {"7": "x"}}
    assert "Python stack of 7:" in why.words(found)
