"""A name is never taken from a live process, and always from a dead one."""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import peers
import pytest
from forks import fork, join

import shmtree

PR_SET_DUMPABLE = 4
UNPRIVILEGED = 65534


pytestmark = pytest.mark.usefixtures("runtime_directory")


@pytest.fixture
def owner(name, start):
    """Starts a process that has created a pair with the name."""
    ours, theirs = mp.Pipe()
    child = start(peers.keep_named, name, theirs)
    assert ours.recv() == "made"
    yield child
    ours.close()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_for_state(pid: int, state: str) -> None:
    while state_of(pid) != state:
        time.sleep(0.001)


@pytest.mark.guarantee("names-of-the-living")
def test_stopped_process_keeps_its_name(name, owner):
    os.kill(owner.pid, signal.SIGSTOP)
    wait_for_state(owner.pid, "T")
    with pytest.raises(FileExistsError, match=str(owner.pid)):
        shmtree.create_pair(name=name)
    assert name not in shmtree.clean_names()
    shmtree.open_sender(name).put(1)  # and it can be opened without the owner's help
    assert shmtree.open_receiver(name).get(timeout=30) == 1


def test_process_whose_main_thread_ended_keeps_its_name(name):
    program = f"""if True:
        import ctypes, os, sys, threading, shmtree
        sender, receiver = shmtree.create_pair(name={name!r})
        def go_on():
            sys.stdin.readline()
            sender.put("still here")
            sys.stdin.readline()
            os._exit(0)
        threading.Thread(target=go_on).start()
        ctypes.CDLL(None).pthread_exit(None)
        """
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, text=True)
    try:
        wait_for_state(child.pid, "Z")
        with pytest.raises(FileExistsError, match=str(child.pid)):
            shmtree.create_pair(name=name)
        assert name not in shmtree.clean_names()
        receiver = shmtree.open_receiver(name)
        child.stdin.write("\n")
        child.stdin.flush()
        assert receiver.get(timeout=30) == "still here"
    finally:
        child.communicate("\n", timeout=30)


def test_name_of_a_killed_unreaped_process_is_free(name, owner):
    os.kill(owner.pid, signal.SIGKILL)
    wait_for_state(owner.pid, "Z")
    kept = shmtree.create_pair(name=name)
    assert shmtree.open_sender(name)._channel.arena.uuid == kept[0]._channel.arena.uuid


@pytest.mark.guarantee("names-of-the-living")
def test_one_of_several_processes_takes_over_a_dead_name(name, start):
    for _ in range(5):
        ours, theirs = mp.Pipe()
        dead = start(peers.keep_named, name, theirs)
        assert ours.recv() == "made"
        os.kill(dead.pid, signal.SIGKILL)
        dead.join(30)
        pipes = [mp.Pipe() for _ in range(3)]
        rivals = [start(peers.try_named, name, theirs) for _, theirs in pipes]
        for ours, _ in pipes:
            assert ours.recv() == "ready"
        for ours, _ in pipes:
            ours.send("go")
        assert sorted(ours.recv() for ours, _ in pipes) == ["in use", "in use", "made"]
        for ours, _ in pipes:
            ours.send("leave")
        for rival in rivals:
            rival.join(30)
        with pytest.raises(FileNotFoundError):
            shmtree.open_sender(name)


def test_name_of_a_process_in_another_pid_namespace_is_kept(name):
    """The process is in another PID namespace that shares the folder of names."""
    namespace = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*namespace, "true"], capture_output=True).returncode != 0:
        pytest.skip("this user may not make a PID namespace")
    kept = shmtree.create_pair(name=name)
    program = f"""if True:
        import shmtree
        for act in (lambda: shmtree.create_pair(name={name!r}), lambda: shmtree.open_sender({name!r})):
            try:
                act()
            except Exception as error:
                print(type(error).__name__, "PID namespace" in str(error))
        print([known.pids for known in shmtree.list_names() if known.name == {name!r}])
        print({name!r} in shmtree.clean_names())
        """
    command = [*namespace, sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.stdout.splitlines() == ["FileExistsError True", "Error True", "[(0,)]", "False"], ran.stderr
    shmtree.open_sender(name).put(1)
    assert kept[1].get(timeout=30) == 1


def as_plain_user(function) -> None:
    """Runs a function in a child of a user other than root. Fails unless the function returns."""

    def run() -> None:
        if os.geteuid() == 0:
            os.setgid(UNPRIVILEGED)
            os.setuid(UNPRIVILEGED)
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)  # a change of user clears this
        function()

    join(fork(run))


def as_other_user(function) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    as_plain_user(function)


def forked(function) -> int:
    """Forks a child that calls the function and then hangs. Returns once the call has returned."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            kept = function()
            os.write(writing, b"x")
            threading.Event().wait()
            del kept
        finally:
            os._exit(1)
    os.close(writing)
    assert os.read(reading, 1) == b"x"
    os.close(reading)
    return child


def test_plain_user_can_reuse_names_of_dead_processes_only(name, tmp_path, monkeypatch):
    """The kernel shows a plain user less than root about processes that are exiting or have exited."""
    monkeypatch.delenv("SHMTREE_NAMES_DIR")  # a folder of another user

    def act() -> None:
        child = forked(lambda: shmtree.create_pair(name=name))
        try:
            with pytest.raises(FileExistsError):
                shmtree.create_pair(name=name)
        finally:
            os.kill(child, signal.SIGKILL)
        wait_for_state(child, "Z")
        kept = shmtree.create_pair(name=name)
        os.waitpid(child, 0)
        del kept

    as_plain_user(act)


def test_name_of_an_undumpable_process_is_not_taken(name, monkeypatch):
    monkeypatch.delenv("SHMTREE_NAMES_DIR")

    def make_and_shut() -> object:
        pair = shmtree.create_pair(name=name)
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)
        return pair

    def act() -> None:
        child = forked(make_and_shut)
        try:
            with pytest.raises(FileExistsError):
                shmtree.create_pair(name=name)
            with pytest.raises(shmtree.Error, match="not dumpable"):
                shmtree.open_sender(name)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert name in shmtree.clean_names()

    as_plain_user(act)


@pytest.mark.guarantee("other-users")
def test_another_user_does_not_find_our_names(name, monkeypatch):
    monkeypatch.delenv("SHMTREE_NAMES_DIR")
    kept = shmtree.create_pair(name=name)

    def act() -> None:
        for opening in (shmtree.open_sender, shmtree.open_receiver, shmtree.Arena.open):
            with pytest.raises(FileNotFoundError):
                opening(name)
        assert name not in [known.name for known in shmtree.list_names()]
        own = shmtree.create_pair(name=name)  # the other user can have the same name
        assert own[0]._channel.arena.uuid != kept[0]._channel.arena.uuid

    as_other_user(act)
    assert shmtree.open_sender(name)._channel.arena.uuid == kept[0]._channel.arena.uuid


def test_another_user_cannot_use_our_directory(name, monkeypatch):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)
        monkeypatch.setenv("SHMTREE_NAMES_DIR", f"{folder}/shmtree")
        kept = shmtree.create_pair(name=name)

        def act() -> None:
            said = f"searched {folder}/shmtree .*; {folder}/shmtree belongs to user 0, and this is user {UNPRIVILEGED}$"
            with pytest.raises(FileNotFoundError, match=said):
                shmtree.open_sender(name)
            with pytest.raises(PermissionError, match=f"belongs to user 0, and this is user {UNPRIVILEGED}"):
                shmtree.create_pair(name=name)
            with pytest.raises(PermissionError):
                os.stat(f"{folder}/shmtree/{name}")

        as_other_user(act)
        del kept


@pytest.mark.guarantee("other-users")
def test_end_sent_to_another_user_does_not_open():
    reading, writing = os.pipe()
    read_pickle = os.fdopen(reading, "rb")

    def make_pair_and_send_it() -> object:
        pair = shmtree.create_pair()
        with os.fdopen(os.dup(writing), "wb") as pipe:
            pickle.dump(pair[0], pipe)
        return pair

    child = forked(make_pair_and_send_it)

    def act() -> None:
        with pytest.raises(shmtree.Error, match="another user"):
            pickle.load(read_pickle)

    try:
        as_other_user(act)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        read_pickle.close()
        os.close(writing)


@pytest.mark.parametrize("pickled", [False, True])
def test_unreachable_process_is_not_reported_as_closed(pickled):
    def act() -> None:
        back = shmtree.Queue()

        def give() -> object:
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)
            queue = shmtree.Arena(4 << 20).Queue()
            queue.put(7)
            back.put([queue, print] if pickled else [queue])
            return queue

        child = forked(give)
        try:
            with pytest.raises(shmtree.Error, match=f"process {child} cannot be reached: .*not dumpable") as caught:
                back.get(timeout=60)
            assert not isinstance(caught.value, shmtree.ChannelClosed)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    as_plain_user(act)
