"""Names: how unrelated processes find each other, and what a killed process leaves behind."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import peers
import pytest
from footprints import own_names

import shmtree

pytestmark = pytest.mark.usefixtures("runtime_directory")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process_opens_a_named_channel(name, start, method):
    _sender, receiver = shmtree.create_pair(name=name)
    ours, theirs = mp.get_context(method).Pipe()
    start(peers.use_named, name, theirs, method=method)
    assert ours.recv() == "open"
    assert np.array_equal(receiver.get(timeout=60)["x"], np.arange(5))
    ours.send("leave")


def test_unrelated_program_opens_a_named_channel(name):
    _sender, receiver = shmtree.create_pair(name=name)
    program = f"import shmtree; shmtree.open_sender({name!r}).put('from afar')"
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)
    assert receiver.get(timeout=30) == "from afar"


def test_name_in_use_raises_with_the_pid_that_has_it(name):
    kept = shmtree.create_pair(name=name)
    with pytest.raises(FileExistsError, match=str(os.getpid())):
        shmtree.create_pair(name=name)
    with pytest.raises(FileExistsError):
        shmtree.Arena(8 << 20, name=name)
    del kept


def test_unknown_name_raises_file_not_found(name):
    for open_it in (shmtree.open_sender, shmtree.open_receiver, shmtree.Arena.open, shmtree.SharedArray.open):
        with pytest.raises(FileNotFoundError, match=name):
            open_it(name)


def test_name_is_removed_with_the_last_object_of_its_process(name, runtime_directory):
    sender, receiver = shmtree.create_pair(name=name)
    assert os.listdir(runtime_directory / "shmtree") == [name]
    del sender
    assert os.listdir(runtime_directory / "shmtree") == [name]
    del receiver
    assert os.listdir(runtime_directory / "shmtree") == []
    shmtree.create_pair(name=name)


def test_name_is_removed_when_its_program_exits(name, runtime_directory):
    program = f"import shmtree; pair = shmtree.create_pair(name={name!r})"
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)
    assert os.listdir(runtime_directory / "shmtree") == []


def test_name_is_removed_when_its_child_process_exits(name, start, runtime_directory):
    ours, theirs = mp.Pipe()
    child = start(peers.keep_named, name, theirs)
    assert ours.recv() == "made"
    ours.send("leave")
    child.join(30)
    assert os.listdir(runtime_directory / "shmtree") == []


@pytest.mark.guarantee("names-of-the-dead")
def test_name_of_a_killed_process_can_be_reused(name, start, runtime_directory):
    ours, theirs = mp.Pipe()
    child = start(peers.keep_named, name, theirs)
    assert ours.recv() == "made"
    os.kill(child.pid, signal.SIGKILL)
    child.join(30)
    assert os.listdir(runtime_directory / "shmtree") == [name]
    with pytest.raises(FileNotFoundError, match="has ended"):
        shmtree.open_sender(name)
    sender, receiver = shmtree.create_pair(name=name)
    sender.put(1)
    assert shmtree.open_receiver(name).get() == 1
    del receiver


def test_name_lives_while_a_child_is_attached(name, start):
    sender, receiver = shmtree.create_pair(name=name)
    ours, theirs = mp.Pipe()
    start(peers.hang, sender, theirs)
    ours.recv()
    del sender, receiver
    with pytest.raises(FileExistsError):
        shmtree.create_pair(name=name)
    shmtree.open_sender(name).put(1)


def test_name_lives_while_a_spawned_child_is_attached(name, start):
    sender, receiver = shmtree.create_pair(name=name)
    ours, theirs = mp.get_context("spawn").Pipe()
    start(peers.hang, sender, theirs, method="spawn")
    ours.recv()
    del sender, receiver
    shmtree.open_sender(name).put(1)


def test_named_channel_allows_pickles_only_if_both_sides_do(name):
    kept = shmtree.create_pair(name=name, allow_pickle=True)
    with pytest.raises(shmtree.PickleRefused):
        shmtree.open_sender(name).put(Path.home)
    kept[0].put(Path.home)
    with pytest.raises(shmtree.PickleRefused):
        shmtree.open_receiver(name).get()
    shmtree.open_sender(name, allow_pickle=True).put(os.getcwd)
    assert shmtree.open_receiver(name, allow_pickle=True).get() is os.getcwd


def test_named_channel_refuses_pickles_by_default(name):
    kept = shmtree.create_pair(name=name)
    with pytest.raises(shmtree.PickleRefused):
        kept[0].put(os.getcwd)
    with pytest.raises(shmtree.PickleRefused):
        shmtree.open_sender(name, allow_pickle=True).put(os.getcwd)


def test_named_arena_is_opened_by_name(name):
    arena = shmtree.Arena(16 << 20, name=name)
    assert shmtree.Arena.open(name).max_bytes == 16 << 20
    arena.close()
    with pytest.raises(FileNotFoundError):
        shmtree.Arena.open(name)


def test_arena_of_a_named_channel_is_opened_by_that_name(name):
    kept = shmtree.create_pair(name=name)
    assert shmtree.Arena.open(name)._core.uuid == kept[0]._channel.arena.uuid


@pytest.mark.parametrize("dtype", ["f4", [("a", "i4"), ("b", "f8", (2,))]])
def test_named_array_is_opened_by_name(name, arena, dtype):
    made = arena.array((3, 2), dtype, name=name)
    opened = shmtree.SharedArray.open(name)
    assert opened.array.dtype == made.array.dtype and opened.array.shape == (3, 2)
    opened.array[1, 1] = np.ones((), dtype)
    assert (made.array[1, 1] == opened.array[1, 1]).all()


def test_names_with_slashes_are_found_and_listed(runtime_directory):
    kept = [shmtree.create_pair(name=each) for each in ("robot/lidar", "robot%2Flidar", "robot", "a%b")]
    assert sorted(each.name for each in shmtree.list_names()) == ["a%b", "robot", "robot%2Flidar", "robot/lidar"]
    files = sorted(each.name for each in (runtime_directory / "shmtree").iterdir() if each.name != ".lock")
    assert files == ["a%25b", "robot", "robot%252Flidar", "robot%2Flidar"]
    kept[0][0].put("lidar")
    kept[1][0].put("other")
    assert shmtree.open_receiver("robot/lidar").get(timeout=60) == "lidar"
    with pytest.raises(FileNotFoundError, match='"robot/radar"'):
        shmtree.open_receiver("robot/radar")


def test_files_that_are_no_encoded_names_are_not_listed(name, runtime_directory):
    kept = shmtree.create_pair(name=name)
    folder = runtime_directory / "shmtree"
    for hostile in ("a%zz", "%2F", "a%2F..", "..%2F..%2Fetc", "x%2f", "%2Fa", "a%2F", "a%2F%2Fb", "%"):
        os.link(folder / name, folder / hostile)
    assert [each.name for each in shmtree.list_names()] == [name]
    del kept


@pytest.mark.guarantee("other-users")
def test_file_of_a_name_is_private_to_the_user(name, runtime_directory):
    kept = shmtree.create_pair(name=name)
    folder = runtime_directory / "shmtree"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    del kept


def test_directory_that_others_can_write_is_not_used(name, runtime_directory):
    (runtime_directory / "shmtree").mkdir()
    (runtime_directory / "shmtree").chmod(0o777)
    with pytest.raises(OSError, match="is not this user's alone: its mode is 777, and must be 700"):
        shmtree.create_pair(name=name)
    with pytest.raises(FileNotFoundError, match="its mode is 777"):
        shmtree.open_sender(name)
    assert os.listdir(runtime_directory / "shmtree") == []


@pytest.mark.guarantee("other-users")
def test_symbolic_link_is_not_followed(name, runtime_directory, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"x" * 600)
    elsewhere.chmod(0o600)
    (runtime_directory / "shmtree").mkdir(mode=0o700)
    (runtime_directory / "shmtree" / name).symlink_to(elsewhere)
    with pytest.raises(OSError):
        shmtree.open_sender(name)
    assert elsewhere.read_bytes() == b"x" * 600


@pytest.mark.guarantee("names-of-the-dead")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_any_lookup_removes_the_files_of_killed_processes(name, start, number, runtime_directory):
    names = runtime_directory / "shmtree"

    def leave(what: str) -> None:
        ours, theirs = mp.Pipe()
        child = start(peers.keep_named, what, theirs)
        ours.recv()
        os.kill(child.pid, number)
        child.join(30)
        assert what in os.listdir(names)

    leave(name + "2")
    kept = shmtree.create_pair(name=name)
    assert os.listdir(names) == [name]
    leave(name + "3")
    shmtree.open_sender(name).close()
    assert os.listdir(names) == [name]
    leave(name + "4")
    with pytest.raises(FileNotFoundError):
        shmtree.Queue.open(name + "5")
    assert os.listdir(names) == [name]
    del kept


@pytest.mark.guarantee("names-of-the-dead")
@pytest.mark.parametrize("lookups", [2, 3])
def test_each_lookup_checks_32_names(name, start, runtime_directory, lookups):
    kept, children = [], []
    # a folder lists files in about this order, so no 32 names in a row all belong to children
    for part in range(lookups):
        ours, theirs = mp.Pipe()
        children.append(start(peers.keep_named, f"child-{part}", theirs))
        ours.recv()
        kept += [shmtree.Arena(1 << 20, name=f"kept-{part}-{i}") for i in range(31)]
    for part, child in enumerate(children):
        left = runtime_directory / "shmtree" / f"child-{part}"
        os.kill(child.pid, signal.SIGKILL)
        child.join(30)
        assert left.exists()
        for _ in range(lookups):
            with pytest.raises(FileNotFoundError):
                shmtree.open_sender("there is no such name")
        assert not left.exists()
        kept.append(shmtree.Arena(1 << 20, name=f"kept-instead-of-{part}"))
    assert len(own_names()) == len(kept) == 32 * lookups
    del kept


@pytest.mark.guarantee("names-of-the-dead")
def test_ls_lists_names_and_clean_removes_those_of_the_killed(name, start):
    kept = shmtree.create_pair(name=name)
    ours, theirs = mp.Pipe()
    child = start(peers.keep_named, name + "2", theirs)
    ours.recv()
    os.kill(child.pid, signal.SIGKILL)
    child.join(30)

    def run(verb: str) -> list[str]:
        command = [sys.executable, "-m", "shmtree", verb]
        lines = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
        return [line for line in lines if name in line]

    stale = f"{name}2\tchannel\tno process; shmtree clean removes it"
    assert run("ls") == run("ls") == [f"{name}\tchannel\t{os.getpid()}", stale]
    assert run("clean") == [f"removed {name}2"]
    assert run("ls") == [f"{name}\tchannel\t{os.getpid()}"]
    del kept


def test_one_of_several_processes_creates_a_name(name, start):
    pipes = [mp.Pipe() for _ in range(4)]
    for _, theirs in pipes:
        start(peers.try_named, name, theirs)
    for ours, _ in pipes:
        assert ours.recv() == "ready"
    for ours, _ in pipes:
        ours.send("go")
    assert sorted(ours.recv() for ours, _ in pipes) == ["in use"] * 3 + ["made"]


# --- waiting for a name


@pytest.mark.parametrize("timeout", [60, None])
def test_client_waits_for_a_server_that_starts_later(name, start, timeout):
    ours, theirs = mp.Pipe()
    start(peers.send_to_name, name, timeout, theirs)
    assert ours.recv() == "waits"
    _sender, receiver = shmtree.create_pair(name=name)
    assert receiver.get(timeout=60) == "at last"


def test_ls_with_a_closed_stdout_fails_without_a_traceback() -> None:
    command = f'"{sys.executable}" -m shmtree ls >&-'
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "shmtree: standard output is closed, so nothing can be printed\n")
    done = subprocess.run(command + " 2>&-", shell=True, timeout=60)
    assert done.returncode == 1


NO_PROC = """
import os, sys, tempfile
import shmtree
os.chroot(sys.argv[1])
try:
    shmtree.Arena(4 << 20).Queue().put(1)
except OSError as error:
    print(error)
"""


def test_error_names_proc_if_it_is_not_mounted(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may change the root directory")
    done = subprocess.run([sys.executable, "-c", NO_PROC, tmp_path], capture_output=True, text=True, timeout=60)
    if "PermissionError" in done.stderr:
        pytest.skip("this root may not change the root directory")
    assert "/proc is not mounted" in done.stdout, done.stdout + done.stderr
