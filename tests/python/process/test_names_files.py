"""Files in the folder of names that are not names, fallback folders, and valid texts of names."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading

import pytest

import shmtree


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Returns the folder of names of this test. It does not exist yet."""
    monkeypatch.setenv("SHMTREE_NAMES_DIR", str(tmp_path / "shmtree"))
    return tmp_path / "shmtree"


@pytest.fixture
def name(request) -> str:
    return f"test-{os.getpid()}-{request.node.name}"[:200]


OPENERS = {
    "channel": [shmtree.open_sender, shmtree.open_receiver],
    "queue": [shmtree.Queue.open, shmtree.JoinableQueue.open, shmtree.SimpleQueue.open],
    "array": [shmtree.SharedArray.open],
}
MAKERS = {
    "channel": lambda name: shmtree.create_pair(name=name),
    "queue": lambda name: shmtree.Queue(name=name),
    "array": lambda name: shmtree.Arena(8 << 20).array((3,), name=name),
    "arena": lambda name: shmtree.Arena(8 << 20, name=name),
}


@pytest.mark.parametrize("made", MAKERS)
def test_name_has_one_kind(name, made):
    kept = MAKERS[made](name)
    assert [known.kind for known in shmtree.list_names() if known.name == name] == [made]
    for kind, openers in OPENERS.items():
        for opening in openers:
            if kind == made:
                opening(name)
            else:
                with pytest.raises(ValueError, match=f"belongs to an? {made}"):
                    opening(name)
    assert shmtree.Arena.open(name).max_bytes > 0  # the arena of the named object, of any kind
    for making in MAKERS.values():
        with pytest.raises(FileExistsError):
            making(name)
    del kept


@pytest.mark.parametrize(
    "text",
    ["x", "a b", "-rf", "%s%n", "tab\there", "line\nbreak", "ünïcödé", "名前", "x" * 200, "ü" * 100, "a.b", "~", "*"],
)
def test_unusual_text_can_be_a_name(text, folder):
    kept = shmtree.create_pair(name=text)
    shmtree.open_sender(text).put(1)
    assert kept[1].get(timeout=30) == 1
    assert os.listdir(folder) == [text.replace("%", "%25")]
    assert text in [known.name for known in shmtree.list_names()]


@pytest.mark.parametrize(
    "text",
    ["", ".", "..", "/", "/tmp/x", "a/", "a//b", "a/./b", "a/../b", "nul\0", "x" * 201, "ü" * 101, "\udc80", ".new"],
)
def test_invalid_name_raises_and_creates_no_file(text, folder):
    for act in [*MAKERS.values(), *OPENERS["channel"], *OPENERS["queue"], shmtree.Arena.open]:
        with pytest.raises(ValueError):
            act(text)
    assert not folder.exists() or os.listdir(folder) == []


@pytest.mark.parametrize("wrong", [b"bytes", 5, ("a",), object()])
def test_name_that_is_no_text_raises_type_error(wrong):
    for act in [*MAKERS.values(), *OPENERS["channel"], *OPENERS["queue"], shmtree.Arena.open]:
        with pytest.raises(TypeError, match="name is"):
            act(wrong)


def test_directory_that_is_a_link_is_not_used(name, folder, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    folder.symlink_to(elsewhere)
    with pytest.raises(OSError, match=str(folder)):
        shmtree.create_pair(name=name)
    assert os.listdir(elsewhere) == []


def make_directory(path):
    path.mkdir(mode=0o700)


def make_fifo(path):
    os.mkfifo(path, 0o600)


def make_socket(path):
    here = os.getcwd()
    os.chdir(path.parent)  # the full path is too long for a socket address
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)
    path.chmod(0o600)


def make_dangling_link(path):
    path.symlink_to(path.parent / "nothing")


def make_link_to_itself(path):
    path.symlink_to(path)


def make_file(mode, content):
    def make(path):
        path.write_bytes(content)
        path.chmod(mode)

    return make


HEADER = b"smtname2" + bytes(16) + bytes(8) + (1).to_bytes(4, "little") + bytes(476)
STRANGE = {
    "a directory": make_directory,
    "a pipe": make_fifo,
    "a socket": make_socket,
    "a dangling link": make_dangling_link,
    "a link to itself": make_link_to_itself,
    "an empty file": make_file(0o600, b""),
    "a short file": make_file(0o600, HEADER[:511]),
    "a large file": make_file(0o600, b"x" * (3 << 20)),
    "a file that others may read": make_file(0o644, HEADER),
    "a file with too long a note": make_file(0o600, HEADER[:36] + b"\xff" * 4 + HEADER[40:]),
}


@pytest.mark.parametrize("make", STRANGE.values(), ids=STRANGE.keys())
def test_file_that_is_no_name_raises_and_stays_unchanged(name, folder, make):
    folder.mkdir(mode=0o700)
    make(folder / name)
    before = os.lstat(folder / name)
    for act in (shmtree.open_sender, shmtree.Queue.open, *MAKERS.values()):
        with pytest.raises((OSError, shmtree.IncompatibleArena)):
            act(name)
    assert name not in [known.name for known in shmtree.list_names()]
    assert name not in shmtree.clean_names()
    after = os.lstat(folder / name)
    assert (before.st_ino, before.st_size, before.st_mode) == (after.st_ino, after.st_size, after.st_mode)


@pytest.mark.parametrize(
    "entries",
    [b"", b"\0" * 80, b"\xff" * 80, b"odd", (1 << 30).to_bytes(4, "little") * 20],
    ids=["none", "free", "negative", "half", "far"],
)
def test_name_that_lists_no_live_process_is_free(name, folder, entries):
    folder.mkdir(mode=0o700)
    make_file(0o600, HEADER + entries)(folder / name)
    with pytest.raises(FileNotFoundError):
        shmtree.open_sender(name)
    kept = shmtree.create_pair(name=name)
    assert [known.pids for known in shmtree.list_names() if known.name == name] == [(os.getpid(),)]
    del kept
    make_file(0o600, HEADER + entries)(folder / name)
    assert name in shmtree.clean_names()


def test_reused_pid_does_not_keep_a_name(name, folder):
    folder.mkdir(mode=0o700)
    others = [os.open(os.devnull, os.O_RDWR), *os.pipe(), shmtree.Arena(8 << 20)._core.fd]
    entries = b"".join(os.getpid().to_bytes(4, "little") + fd.to_bytes(4, "little") for fd in others)
    make_file(0o600, HEADER + entries)(folder / name)
    shmtree.create_pair(name=name)
    for fd in others[:3]:
        os.close(fd)


def test_one_of_several_threads_creates_a_name(name, folder):
    for _ in range(20):
        made = []
        together = threading.Barrier(4)

        def make(made=made, together=together) -> None:
            together.wait()
            with contextlib.suppress(FileExistsError):
                made.append(shmtree.Arena(1 << 20, name=name))

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(made) == 1
        made.clear()


def test_threads_that_open_and_drop_a_name_leave_it_unchanged(name, folder):
    queue = shmtree.Queue(name=name)
    errors = []

    def open_and_drop() -> None:
        try:
            for i in range(100):
                shmtree.Queue.open(name).put(i)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=open_and_drop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert queue.qsize() == 300
    assert [known.pids for known in shmtree.list_names() if known.name == name] == [(os.getpid(),)]
    del queue
    assert os.listdir(folder) == []


@pytest.mark.parametrize("command", [[sys.executable, "-m", "shmtree"], ["shmtree"]], ids=["module", "script"])
def test_ls_and_clean_list_and_remove_names_of_queues(name, folder, command):
    if shutil.which(command[0]) is None:
        pytest.skip("the script is not installed")
    kept = shmtree.Queue(name=name)
    make_file(0o600, HEADER)(folder / f"{name}2")

    def run(*arguments: str) -> str:
        ran = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=True)
        assert ran.stderr == ""
        return ran.stdout

    listed = f"{name}\tqueue\t{os.getpid()}\n{name}2\tarena\tno process; shmtree clean removes it\n"
    assert listed in run("ls") and listed in run("ls")
    assert f"removed {name}2\n" in run("clean")
    assert subprocess.run([*command, "what"], capture_output=True, timeout=60).returncode == 2
    del kept


def test_ls_and_clean_escape_unprintable_names(name, folder):
    folder.mkdir(mode=0o700)
    for end in (b"\xff", b"\t", b"\x1b[31m"):
        make_file(0o600, HEADER)(folder / os.fsdecode(name.encode() + end))
    shown = [rf"{name}\t", rf"{name}\x1b[31m", rf"{name}\udcff"]

    def run(verb: str) -> list[str]:
        command = [sys.executable, "-m", "shmtree", verb]
        lines = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
        return [line for line in lines if name in line]

    assert run("ls") == [f"{each}\tarena\tno process; shmtree clean removes it" for each in shown]
    assert run("clean") == [f"removed {each}" for each in shown]
    assert os.listdir(folder) == []


def in_own_mounts(script: str, program: str) -> str:
    """Runs a program in its own mount namespace, where the script has mounted file systems. Returns the output."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("this user may not mount anything")
    hide = "unset SHMTREE_NAMES_DIR XDG_RUNTIME_DIR\nmount -t tmpfs none /run"
    shell = f"set -e\n{hide}\n{script}\nexec {sys.executable} -"
    ran = subprocess.run(
        ["unshare", "-m", "sh", "-c", shell], input=program, capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


ELSEWHERE = f"/tmp/shmtree-{os.getuid()}"
# A separate file system, so that other tests do not find these names.
MOUNT_ELSEWHERE = f"mkdir -p -m 700 {ELSEWHERE}; mount -t tmpfs -o mode=700 none {ELSEWHERE}"
USE = """
import os, shmtree
sender, receiver = shmtree.create_pair(name="somewhere")
shmtree.open_sender("somewhere").put("found")
print(receiver.get(timeout=30), sender._name.path)
"""


def test_names_fall_back_if_dev_shm_is_full():
    script = "mount -t tmpfs -o size=4k,mode=1777 none /dev/shm; head -c 4096 /dev/zero > /dev/shm/full"
    assert in_own_mounts(f"{MOUNT_ELSEWHERE}; {script}", USE) == f"found {ELSEWHERE}/somewhere\n"


def test_names_fall_back_if_dev_shm_is_read_only():
    made = f"mkdir -m 700 /dev/shm/shmtree-{os.getuid()}"
    script = f"mount -t tmpfs -o mode=1777 none /dev/shm; {made}; mount -o remount,ro /dev/shm"
    assert in_own_mounts(f"{MOUNT_ELSEWHERE}; {script}", USE) == f"found {ELSEWHERE}/somewhere\n"


def test_names_fall_back_if_another_user_owns_the_folder():
    script = f"mount -t tmpfs -o mode=1777 none /dev/shm; mkdir /dev/shm/shmtree-{os.getuid()}; chown 1 /dev/shm/shm*"
    runtime = f"/run/user/{os.getuid()}"
    assert in_own_mounts(f"{script}; mkdir -p {runtime}", USE) == f"found {runtime}/shmtree/somewhere\n"


def test_folder_reached_by_two_paths_is_used_once():
    program = f"{USE}\nprint([known.name for known in shmtree.list_names()].count('somewhere'))"
    runtime = f"/run/user/{os.getuid()}"
    script = f"mount -t tmpfs -o ro none /dev/shm; mkdir -p {runtime}; export XDG_RUNTIME_DIR=/proc/self/root{runtime}"
    assert in_own_mounts(script, program) == f"found {runtime}/shmtree/somewhere\n1\n"


def test_without_a_writable_folder_only_names_fail():
    program = """
import shmtree
try:
    shmtree.create_pair(name="nowhere")
except OSError as error:
    print(str(error).count("ead-only"))
print(shmtree.list_names(), shmtree.clean_names())
sender, receiver = shmtree.create_pair()
sender.put(bytes(10_000_000))
print(len(receiver.get(timeout=30)))
"""
    script = "mount -t tmpfs -o ro none /dev/shm; mount --bind /tmp /tmp; mount -o remount,bind,ro /tmp"
    listed = in_own_mounts(script, program).splitlines()
    assert (int(listed[0]) >= 2, listed[-1]) == (True, "10000000")


def test_file_modes_do_not_depend_on_the_umask(name, folder):
    before = os.umask(0)
    try:
        kept = shmtree.Queue(name=name)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    del kept


@pytest.mark.parametrize("kind", [shmtree.Latest, shmtree.Broadcast])
def test_name_of_a_latest_or_broadcast_opens_nothing_else(name, kind):
    with kind(name=name):
        for opening in (shmtree.open_sender, shmtree.open_receiver, shmtree.Queue.open):
            with pytest.raises(ValueError, match=f"belongs to a {kind.__name__}"):
                opening(name)
