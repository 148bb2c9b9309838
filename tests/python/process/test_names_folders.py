"""The folders of names for any environment of a process, and names after the removal of their file."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing as mp
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from forks import fork, join

import shmtree

USER = os.getuid()
USUAL = [f"/dev/shm/shmtree-{USER}", f"/run/user/{USER}/shmtree", f"/tmp/shmtree-{USER}"]
ENVIRONMENTS = ["login", "other login", "cron", "sudo -u", "systemd"]
VARIABLES = ("XDG_RUNTIME_DIR", "SHMTREE_NAMES_DIR", "HOME", "USER", "LOGNAME", "TMPDIR")


def environment(kind: str, folder: Path) -> dict[str, str]:
    """Returns the variables of a process that was started that way."""
    common = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    if kind == "login":
        (folder / "login").mkdir(mode=0o700, exist_ok=True)
        return common | {"XDG_RUNTIME_DIR": str(folder / "login"), "HOME": str(folder), "USER": "me"}
    if kind == "other login":  # the logout has removed the directory
        return common | {"XDG_RUNTIME_DIR": f"/run/user/{USER}/gone", "HOME": str(folder)}
    if kind == "cron":
        return common | {"HOME": str(folder), "LOGNAME": "me"}
    if kind == "sudo -u":  # with the caller's variables
        return common | {"XDG_RUNTIME_DIR": "/run/user/4242", "HOME": "/root", "USER": "root", "TMPDIR": str(folder)}
    if kind == "systemd":
        return common
    assert kind == "SHMTREE_NAMES_DIR"
    return common | {"SHMTREE_NAMES_DIR": str(folder / "only")}


@contextlib.contextmanager
def maker(name: str, kind: str, folder: Path) -> Iterator[None]:
    """Runs a process in that environment that owns the name, as a queue."""
    program = f"""if True:
        import sys, shmtree
        queue = shmtree.Queue(name={name!r})
        queue.put("found")
        print("made", flush=True)
        sys.stdin.readline()
        """
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, env=environment(kind, folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as made:
        try:
            assert made.stdout is not None
            assert made.stdout.readline() == "made\n"
            yield
        finally:
            made.communicate("\n", timeout=60)


def tried(name: str, kind: str, folder: Path) -> list[str]:
    """Returns the results of a process in that environment that opens the name, and then creates it."""
    program = f"""if True:
        import shmtree
        for act in (lambda: shmtree.Queue.open({name!r}).get(timeout=60), lambda: shmtree.Queue(name={name!r}).qsize()):
            try:
                print(act())
            except Exception as error:
                print(type(error).__name__, error)
        """
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, env=environment(kind, folder), capture_output=True, text=True, timeout=60, check=True)
    return ran.stdout.splitlines()


@pytest.mark.guarantee("names-any-environment")
@pytest.mark.parametrize("opener", ENVIRONMENTS)
@pytest.mark.parametrize("made_in", ENVIRONMENTS)
def test_name_is_found_from_every_environment(name, tmp_path, made_in, opener):
    with maker(name, made_in, tmp_path):
        opened, made = tried(name, opener, tmp_path)
    assert opened == "found"
    assert re.match(f'FileExistsError the name "{re.escape(name)}": it is in use by process [0-9]+; ', made)


@pytest.mark.parametrize("other", ENVIRONMENTS)
def test_private_names_folder_is_separate(name, tmp_path, other):
    for made_in, opener in ((other, "SHMTREE_NAMES_DIR"), ("SHMTREE_NAMES_DIR", other)):
        with maker(name, made_in, tmp_path):
            opened, made = tried(name, opener, tmp_path)
        assert opened.startswith(f'FileNotFoundError no object named "{name}"; searched ')
        assert made == "0"


def test_processes_with_one_private_folder_share_names(name, tmp_path):
    with maker(name, "SHMTREE_NAMES_DIR", tmp_path):
        opened, made = tried(name, "SHMTREE_NAMES_DIR", tmp_path)
        assert os.listdir(tmp_path / "only") == [name]
    assert (opened, made.split()[0]) == ("found", "FileExistsError")


@pytest.mark.guarantee("names-any-environment")
@pytest.mark.parametrize("kinds", [["cron"], ENVIRONMENTS], ids=["the same", "all"])
def test_one_of_several_environments_creates_a_name(name, tmp_path, kinds):
    program = f"""if True:
        import sys, shmtree
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            kept = shmtree.Arena(1 << 20, name={name!r})
            print("made", flush=True)
        except FileExistsError:
            print("in use", flush=True)
        sys.stdin.readline()
        """
    with contextlib.ExitStack() as stack:
        makers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", program],
                    env=environment(kind, tmp_path),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for kind in (kinds * 5)[:5]
        ]
        for one in makers:
            assert one.stdout.readline() == "ready\n"
        for one in makers:
            one.stdin.write("\n")
            one.stdin.flush()
        said = sorted(one.stdout.readline() for one in makers)
        for one in makers:
            one.communicate("\n", timeout=60)
    assert said == ["in use\n"] * 4 + ["made\n"]


def test_errors_name_the_folders_and_the_user(name, tmp_path, monkeypatch):
    monkeypatch.delenv("SHMTREE_NAMES_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", f"{tmp_path}/")
    folders = f"{', '.join(USUAL)} and {tmp_path}/shmtree"
    said = re.escape(f"; searched {folders} (names are per user; this is uid {USER})")
    with pytest.raises(FileNotFoundError, match=f'no object named "{re.escape(name)}"{said}'):
        shmtree.open_sender(name)
    with pytest.raises(TimeoutError, match=f'no process created the name "{re.escape(name)}" within 0.02 s{said}'):
        shmtree.Queue.open(name, timeout=0.02)
    monkeypatch.setenv("SHMTREE_NAMES_DIR", f"{tmp_path}/own/")
    with pytest.raises(FileNotFoundError, match=re.escape(f"searched {tmp_path}/own (names")):
        shmtree.open_sender(name)


def test_relative_folder_is_refused(name, monkeypatch):
    monkeypatch.setenv("SHMTREE_NAMES_DIR", "names")
    for act in (lambda: shmtree.Queue(name=name), lambda: shmtree.Queue.open(name), shmtree.list_names):
        with pytest.raises(ValueError, match="SHMTREE_NAMES_DIR is names; it must be an absolute path"):
            act()


# --- a name after the removal of its file


@pytest.fixture
def file(name, runtime_directory) -> Path:
    return runtime_directory / "shmtree" / name


@pytest.mark.guarantee("names-without-file")
def test_name_whose_file_was_removed_is_found_and_refused(name, file):
    with shmtree.Queue(name=name) as kept:
        file.unlink()
        said = f"in use by process {os.getpid()} (the name's file in {file.parent} was removed)"
        with pytest.raises(FileExistsError, match=re.escape(said)):
            shmtree.Queue(name=name)
        file.unlink()
        shmtree.Queue.open(name).put("found")
        assert kept.get(timeout=60) == "found"
        assert file.exists()
    assert not file.exists()
    shmtree.Queue(name=name).close()


def test_name_whose_folder_was_removed_is_found(name, file):
    with shmtree.Queue(name=name) as kept:
        shutil.rmtree(file.parent)
        shmtree.Queue.open(name, timeout=60).put("found")
        assert kept.get(timeout=60) == "found"
    assert not file.exists()


def keep_queue(name: str, told) -> None:
    kept = shmtree.Queue(name=name)
    told.send("made")
    told.recv()
    del kept


@pytest.mark.guarantee("names-without-file")
def test_name_without_its_file_is_free_after_its_process(name, file, start):
    ours, theirs = mp.Pipe()
    child = start(keep_queue, name, theirs)
    assert ours.recv() == "made"
    file.unlink()
    with pytest.raises(FileExistsError, match=f"process {child.pid} .the name's file"):
        shmtree.Queue(name=name)
    os.kill(child.pid, signal.SIGKILL)
    child.join(60)
    shmtree.Queue(name=name).close()


def test_name_may_end_with_deleted(name, file):
    with shmtree.Queue(name=f"{name} (deleted)"), shmtree.Queue(name=name):
        pass


# --- what a process leaves that was just killed


def keep_much(name: str, told) -> None:
    kept = shmtree.Queue(name=name)
    memory = [shmtree.Arena(32 << 20, prefault=32 << 20) for _ in range(8)]  # the kernel frees the last one first
    told.send("made")
    told.recv()
    del memory, kept


def refusals(name: str) -> list[str]:
    """Creates the name as soon as it is free. Returns the error texts before that."""
    said = []
    while True:
        try:
            shmtree.Queue(name=name).close()
        except FileExistsError as error:
            said.append(str(error))
        else:
            return said


def test_exiting_process_is_not_reported_as_in_a_pid_namespace(name, start):
    """The descriptors of an exiting process disappear before its memory is freed. Its locks are held until then."""
    for _ in range(3):
        ours, theirs = mp.Pipe()
        child = start(keep_much, name, theirs)
        assert ours.recv() == "made"
        os.kill(child.pid, signal.SIGKILL)
        with contextlib.suppress(FileNotFoundError):  # the name may be found as long as the memory exists
            shmtree.Queue.open(name).close()
        told = refusals(name)
        assert not any("PID namespace" in each for each in told), told
        child.join(60)


@pytest.mark.skipif(USER != 0, reason="only root can become other users")
def test_exist_ok_works_while_the_previous_owner_exits(name, monkeypatch):
    """At some moment of its exit, a process becomes invisible to all users but root."""
    user, folder = 60_000 + os.getpid() % 1000, Path(f"/dev/shm/shmtree-test-{os.getpid()}")
    monkeypatch.setenv("SHMTREE_NAMES_DIR", str(folder))

    def hold() -> None:
        kept = shmtree.Queue(name=name)
        memory = np.ones(150 << 20, np.uint8)  # takes long to free
        os.write(write, b"x")
        time.sleep(600)
        del kept, memory

    def act() -> None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        allow_looks = (4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, which the change of user has cleared
        ctypes.CDLL(None).prctl(*allow_looks)
        for _ in range(5):
            child = fork(hold)
            os.read(read, 1)
            os.kill(child, signal.SIGKILL)
            shmtree.Queue(name=name, exist_ok=True).close()
            os.waitpid(child, 0)

    read, write = os.pipe()
    folder.mkdir(mode=0o700)
    try:
        os.chown(folder, user, user)
        join(fork(act))
    finally:
        shutil.rmtree(folder)
        os.close(read)
        os.close(write)


# --- folders of other users


@pytest.mark.skipif(USER != 0, reason="only root can become other users")
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_folder_of_another_user_raises_with_both_uids(name, monkeypatch, mode):
    monkeypatch.delenv("SHMTREE_NAMES_DIR")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    owner, user = 60_000 + os.getpid() % 1000 * 2, 60_001 + os.getpid() % 1000 * 2
    folders = [Path(f"/dev/shm/shmtree-{user}"), Path(f"/tmp/shmtree-{user}")]

    def act() -> None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        belongs = f"{folders[0]} belongs to user {owner}, and this is user {user}"
        with pytest.raises(PermissionError, match=belongs):
            shmtree.create_pair(name=name)
        with pytest.raises(FileNotFoundError, match=belongs):
            shmtree.open_sender(name)

    try:
        for each in folders:
            each.mkdir(mode=mode)
            os.chown(each, owner, owner)
        join(fork(act))
    finally:
        for each in folders:
            shutil.rmtree(each, ignore_errors=True)
