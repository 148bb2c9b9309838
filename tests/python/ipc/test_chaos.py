"""Processes killed at any moment: their messages arrive, their memory is freed, and other processes go on.

The programs tests/chaos*.py do this for as long as you tell them. Here they run for a few seconds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from forks import in_small_process

import shmtree

CHAOS = Path(__file__).parents[2] / "chaos.py"
CHAOS_REPLAY = CHAOS.with_name("chaos_replay.py")
CHAOS_PUBLISHERS = CHAOS.with_name("chaos_publishers.py")
CHAOS_SERVICE = CHAOS.with_name("chaos_service.py")

ALL_AT_ONCE = """if True:
    import multiprocessing as mp, os, sys
    import numpy as np, peers, shmtree

    if __name__ == "__main__":
        pairs = [shmtree.create_pair(), shmtree.create_pair(name=sys.argv[1])]
        arena = shmtree.Arena(16 << 20, name=sys.argv[2])
        pairs.append(arena.create_pair())
        queue = shmtree.Queue()
        pids, told = [os.getpid()], []
        for method in ("fork", "spawn"):
            context = mp.get_context(method)
            for sender, receiver in pairs:
                ours, theirs = context.Pipe()
                child = context.Process(target=peers.hang, args=(sender, receiver, queue, theirs))
                child.start()
                told.append(ours)
                pids.append(ours.recv())
        for sender, _ in pairs:
            sender.put(np.zeros(100_000))
        print(*pids, flush=True)
        told[0].recv()
    """


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_replay_survivors_of_kills_sample_whole_rows(method):
    command = [sys.executable, CHAOS_REPLAY, "--seconds", "4", "--method", method, "--stall", "5", "--late", "2"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.guarantee("kill-anywhere")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_survivors_of_kills_get_every_message_without_delay(method):
    # A clock on each processor measures the delays of the machine itself, which are excused.
    command = [sys.executable, CHAOS, "--seconds", "4", "--method", method, "--late", "0.5"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.guarantee("latest-whole-versions", "broadcast-processes")
@pytest.mark.parametrize("kind", ["latest", "broadcast"])
def test_readers_of_killed_publishers_see_whole_new_values(kind):
    command = [sys.executable, CHAOS_PUBLISHERS, kind, "--kills", "400", "--seconds", "15"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.guarantee("service-killed-request")
def test_requests_end_although_servers_and_clients_are_killed():
    command = [sys.executable, CHAOS_SERVICE, "--seconds", "5"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=350, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def put_small(sender: shmtree.Sender, number: int) -> None:
    sender.put({"number": number})


def put_block(sender: shmtree.Sender, number: int) -> None:
    sender.put({"number": number, "array": np.full(5_000, number)})


def put_in_place(sender: shmtree.Sender, number: int) -> None:
    array = sender.new_empty(5_000, "i8")
    array[:] = number
    sender.put({"number": number, "array": array})


def put_with_others(sender: shmtree.Sender, number: int) -> None:
    sender.put_many([{"number": number, "array": np.full(2_000, number)}])


@pytest.mark.guarantee("put-survives-sender")
@pytest.mark.parametrize("put", [put_small, put_block, put_in_place, put_with_others])
def test_message_of_a_finished_put_survives_a_kill_250_times(put):
    in_small_process(receive_all_of_killed_senders, put)


def receive_all_of_killed_senders(arena, put):
    sender, receiver = arena.create_pair(capacity=None)
    for number in range(250):
        child = os.fork()
        if child == 0:
            try:
                put(sender, number)
            finally:
                os.kill(os.getpid(), signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        message = receiver.get(timeout=30)
        assert message["number"] == number
        assert np.all(message.get("array", number) == number)


def files_in_shared_memory(pid: int) -> set[str]:
    """Returns the named files that a process has open or mapped, but not the user's empty file of memory claims."""
    found = {line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        found.add(os.readlink(descriptor))
    return {name for name in found if name.startswith("/dev/shm/") and not name.endswith(("(deleted)", "/.claims"))}


@pytest.mark.guarantee("no-leak")
def test_killing_all_processes_at_once_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("SHMTREE_NAMES_DIR", str(tmp_path / "shmtree"))
    names = [f"test-{os.getpid()}-pair", f"test-{os.getpid()}-arena"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1] / "support"), *sys.path])}
    command = [sys.executable, "-c", ALL_AT_ONCE, *names]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True, start_new_session=True) as first:
        assert first.stdout is not None
        pids = [int(pid) for pid in first.stdout.readline().split()]
        assert len(pids) == 7
        try:
            assert {file for pid in pids for file in files_in_shared_memory(pid)} == set()
            assert {known.name for known in shmtree.list_names()} >= set(names)
        finally:
            os.killpg(first.pid, signal.SIGKILL)
    while any(known.pids for known in shmtree.list_names() if known.name in names):
        time.sleep(0.01)  # the other processes are still exiting
    # Each name had a file. Listing the names removed the files of dead processes.
    assert os.listdir(tmp_path / "shmtree") == []
