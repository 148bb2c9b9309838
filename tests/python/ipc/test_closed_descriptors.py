"""Programs that close all descriptors, including shmtree's: calls report it, and touch no file of the program."""

import contextlib
import json
import os
import resource
import select
import socket
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from closing_programs import CASES

import shmtree

pytestmark = pytest.mark.usefixtures("runtime_directory")

PROGRAM = Path(__file__).parents[1] / "support" / "closing_programs.py"
#: Allowed results besides the error about closed descriptors. These calls need no descriptor.
NEED_NONE = {"ok", "TimeoutError: timed out: no process wrote this shared array"}


def run(case: str, filler: str, where: str, folder: Path) -> dict[str, str]:
    command = [sys.executable, str(PROGRAM), case, filler, where, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    for file in folder.glob("mine-*"):  # checked after the program and all of its objects are gone
        assert file.read_bytes() == b"mine" * 100
    return json.loads(done.stdout)


@pytest.mark.parametrize(("filler", "where"), [("files", "parent"), ("sockets", "child-low"), ("epolls", "child")])
@pytest.mark.parametrize("case", CASES)
def test_calls_report_descriptors_that_the_program_closed(case: str, filler: str, where: str, tmp_path: Path) -> None:
    done = run(case, filler, where, tmp_path)

    assert "closed" in done.values()
    assert done.get("grow", "closed") == "closed"
    assert set(done.values()) <= {"closed", *NEED_NONE}, done


@pytest.mark.parametrize("where", ["spared", "spared-low"])
@pytest.mark.parametrize("case", CASES)
def test_program_that_spares_our_descriptors_keeps_working(case: str, where: str, tmp_path: Path) -> None:
    done = run(case, "files", where, tmp_path)

    assert "closed" not in done.values(), done


def test_peer_that_closed_its_descriptors_counts_as_dead() -> None:
    sender, receiver = shmtree.create_pair(capacity=None)
    child = os.fork()
    if child == 0:
        receiver.close()
        sender.put(1)
        for number in shmtree.descriptors():
            os.close(number)
        code = 1
        try:
            sender.put(b"x" * (8 << 20), timeout=30)
        except OSError as error:
            code = 0 if "has closed descriptor" in str(error) else 2
        finally:
            os._exit(code)
    sender.close()

    assert receiver.get(timeout=60) == 1
    with pytest.raises(shmtree.PeerDied):
        receiver.get(timeout=60)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_descriptors_have_numbers_of_1024_or_more() -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2048:
        pytest.skip("needs an RLIMIT_NOFILE of 2,048")
    before = set(shmtree.descriptors())
    arena = shmtree.Arena(1 << 24)
    sender, receiver = arena.create_pair()
    made = set(shmtree.descriptors()) - before

    assert made
    assert min(made) >= 1024
    del sender, receiver, arena
    assert set(shmtree.descriptors()) <= before


def test_poll_descriptors_work_with_select() -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2048:
        pytest.skip("needs an RLIMIT_NOFILE of 2,048")
    held = [os.dup(0) for _ in range(1000)]
    try:
        sender, receiver = shmtree.create_pair()
        broadcast = shmtree.Broadcast(4)
        subscriber = broadcast.subscribe()
        queue = shmtree.Queue()
    finally:
        for number in held[600:]:
            os.close(number)
    try:
        sender.put(1)
        ready, _, _ = select.select([receiver, subscriber, queue], [], [], 60)
        assert ready == [receiver]
    finally:
        for number in held[:600]:
            os.close(number)


def test_failed_wake_up_is_repeated_by_the_next_put(tmp_path: Path) -> None:
    """Runs in its own process, which has sent no wake-up before."""
    program = """
import os, resource, select, shmtree
sender, receiver = shmtree.create_pair()
told, teller = os.pipe()
child = os.fork()
if child == 0:
    receiver.close()
    sender.put(0)  # maps all that a put needs, and wakes no process
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        pass
    os.write(teller, b"1")
    os.read(told, 1) if False else None
    import time
    while os.stat(os.environ["GO"]).st_size == 0:
        time.sleep(0.01)
    sender.put(1)  # its wake-up is lost
    for number in taken:
        os.close(number)
    sender.put(2)
    os._exit(0)
os.read(told, 1)
sender.close()
assert receiver.get(timeout=60) == 0
descriptor = receiver.fileno()
assert select.select([descriptor], [], [], 0)[0] == []
with open(os.environ["GO"], "w") as go:
    go.write("go")
assert select.select([descriptor], [], [], 60)[0] == [descriptor]
assert (receiver.get(timeout=60), receiver.get(timeout=60)) == (1, 2)
os.waitpid(child, 0)
"""
    go = tmp_path / "go"
    go.touch()
    environment = os.environ | {"GO": str(go)}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300, env=environment)


def test_program_sockets_receive_no_wake_ups() -> None:
    sender, receiver = shmtree.create_pair()
    descriptor = receiver.fileno()
    mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with mine, other:
        other.send(b"mine")
        os.dup2(mine.fileno(), descriptor)
        sender.put(1)
        receiver.get(timeout=60)
        receiver.close()
        assert os.read(descriptor, 10) == b"mine"  # neither taken nor closed
        os.close(descriptor)


def test_sender_with_a_replaced_wake_pipe_wakes_again() -> None:
    """The program puts another file over the descriptor of the receiver's pipe that its first put has opened."""
    sender, receiver = shmtree.create_pair()
    descriptor = receiver.fileno()
    go_read, go = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(go)
            before = pipes()
            sender.put(1)
            (cached,) = pipes() - before
            os.dup2(os.open(os.devnull, os.O_RDWR), cached)
            os.read(go_read, 1)
            sender.put(2)
            os.read(go_read, 1)
            code = 0
        finally:
            traceback.print_exc()
            os._exit(code)

    for number in (1, 2):
        assert select.select([descriptor], [], [], 60)[0]
        assert receiver.get(timeout=60) == number
        assert not select.select([descriptor], [], [], 0)[0]
        os.write(go, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(go_read)
    os.close(go)


def pipes() -> set[int]:
    """Returns the descriptors of this process that lead to pipes."""
    found = set()
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself is closed
            if os.readlink(f"/proc/self/fd/{number}").startswith("pipe:"):
                found.add(number)
    return found
