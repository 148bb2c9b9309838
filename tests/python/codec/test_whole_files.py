"""Files that replace others: links, rights, mount points, names, full disks, and writers that are killed."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmtree
from shmtree._codec import whole_files
from shmtree.recording._mcap import Writer
from shmtree.replay import ReplayBuffer

PATIENCE = 60


def record(path: Any) -> None:
    with Writer(path) as writer:
        channel = writer.add_channel("a")
        writer.begin()
        writer.write(channel, [(1, 1, bytes(shmtree.pack(5)))])


WRITERS: dict[str, Callable[[Any], object]] = {
    "dump": lambda path: shmtree.dump([1], path),
    "list": lambda path: shmtree.SharedList([1], path=path),
    "list dump": lambda path: shmtree.SharedList([1]).dump(path),
    "slice dump": lambda path: shmtree.SharedList([1, 2])[:1].dump(path),
    "recording": record,
}


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture(params=WRITERS)
def write(request: pytest.FixtureRequest) -> Callable[[Any], object]:
    return WRITERS[request.param]


@pytest.fixture(params=["unnamed", "named"])
def temporary(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test with and without O_TMPFILE."""
    kind: str = request.param
    if kind == "named":
        without_unnamed_files(monkeypatch)
    return kind


def without_unnamed_files(monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.open

    def opens(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)
        return original(path, flags, *arguments, **options)

    monkeypatch.setattr(whole_files.os, "open", opens)


def old_file(path: Path, mode: int = 0o644) -> Path:
    path.write_bytes(b"old" * 1000)
    path.chmod(mode)
    return path


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def is_new(path: Path) -> bool:
    return not path.read_bytes().startswith(b"old") and not path.read_bytes().endswith(b"old")


@pytest.mark.guarantee("written-files")
def test_link_stays_and_its_target_is_replaced(write: Any, tmp_path: Path, temporary: str) -> None:
    (tmp_path / "disk").mkdir()
    target = old_file(tmp_path / "disk" / "file")
    (tmp_path / "second").symlink_to("disk/file")
    (tmp_path / "first").symlink_to(tmp_path / "second")

    write(tmp_path / "first")

    assert (tmp_path / "first").is_symlink() and (tmp_path / "second").is_symlink() and is_new(target)
    assert os.listdir(tmp_path / "disk") == ["file"]


def test_link_without_target_makes_the_target(write: Any, tmp_path: Path, temporary: str) -> None:
    (tmp_path / "link").symlink_to("file")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and is_new(tmp_path / "file")


@pytest.mark.guarantee("written-files")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o444])
def test_replaced_file_keeps_its_mode(write: Any, tmp_path: Path, temporary: str, mode: int) -> None:
    path = old_file(tmp_path / "file", mode)
    write(path)
    assert mode_of(path) == mode and is_new(path)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")
def test_replaced_file_keeps_its_owner(write: Any, tmp_path: Path, temporary: str) -> None:
    path = old_file(tmp_path / "file", 0o640)
    os.chown(path, 12345, 23456)
    write(path)
    assert (path.stat().st_uid, path.stat().st_gid, mode_of(path)) == (12345, 23456, 0o640)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")
def test_file_in_a_sticky_folder_gives_no_rights_to_its_owner(tmp_path: Path, temporary: str) -> None:
    tmp_path.chmod(0o1777)
    path = old_file(tmp_path / "file", 0o666)
    os.chown(path, 12345, 12345)
    shmtree.dump([1], path)
    assert (path.stat().st_uid, mode_of(path)) == (os.geteuid(), 0o600)


def test_new_file_drops_the_rights_of_another_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(whole_files.os, "fchown", refuses)
    path = old_file(tmp_path / "file", 0o664)
    shmtree.dump([1], path)
    assert mode_of(path) == 0o604


@pytest.mark.parametrize("name", ["n" * 255, "é" * 127, os.fsdecode(b"\xff\xfe"), "a\nb", ".", "-"])
@pytest.mark.parametrize("form", [str, os.fsencode, Path])
def test_writers_accept_every_path_that_open_accepts(tmp_path: Path, temporary: str, form: Any, name: str) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    name = "x." if name == "." else name
    for write in WRITERS.values():
        for _ in range(2):
            write(form(f"{folder}/{name}"))
    assert os.listdir(folder) == [name]


def test_replay_folder_may_be_any_name_or_a_link(tmp_path: Path) -> None:
    buffer = ReplayBuffer(10, example=np.zeros(3))
    with buffer.writer() as writer:
        writer.add(np.ones(3))
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    for path in (tmp_path / "link", os.fsencode(tmp_path / "bytes"), os.fsencode(tmp_path) + b"/\xff"):
        buffer.save(path)
        assert len(ReplayBuffer.load(path)) == 1
    assert (tmp_path / "link").is_symlink() and (tmp_path / "disk" / "manifest").exists()
    with pytest.raises(ValueError, match="null byte"):
        buffer.save(f"{tmp_path}\0x")


def test_saved_replay_buffer_keeps_the_mode_of_its_manifest(tmp_path: Path) -> None:
    buffer = ReplayBuffer(10, example=np.zeros(3))
    for mode in (0o600, 0o640, 0o604):
        with buffer.writer() as writer:
            writer.add(np.ones(3))
        if mode != 0o600:
            (tmp_path / "manifest").chmod(mode)
        before = {path.name for path in tmp_path.iterdir()}
        buffer.save(tmp_path)
        made = {path for path in tmp_path.iterdir() if path.name == "manifest" or path.name not in before}
        assert len(made) == 2 and {mode_of(path) for path in made} == {mode}


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("folder", errno.EISDIR),
        ("folder/", errno.EISDIR),
        ("new/", errno.EISDIR),
        ("loop", errno.ELOOP),
        ("no/file", errno.ENOENT),
        ("nowhere", errno.ENOENT),
        ("file/x", errno.ENOTDIR),
        ("file/", errno.ENOTDIR),
        ("fifo", errno.EEXIST),
        ("n" * 256, errno.ENAMETOOLONG),
    ],
)
def test_path_that_cannot_be_written_is_named(write: Any, tmp_path: Path, name: str, number: int) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("no/file")
    os.mkfifo(tmp_path / "fifo")
    old_file(tmp_path / "file")
    before = sorted(os.listdir(tmp_path))

    with pytest.raises(OSError) as refused:
        write(f"{tmp_path}/{name}")

    assert (refused.value.errno, refused.value.filename) == (number, f"{tmp_path}/{name}")
    assert sorted(os.listdir(tmp_path)) == before and not is_new(tmp_path / "file")


def test_empty_path_is_not_found(write: Any) -> None:
    with pytest.raises(FileNotFoundError):
        write("")


MOUNTS = shutil.which("unshare") is not None and (
    subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode == 0
)


@pytest.mark.skipif(not MOUNTS, reason="this machine does not allow mount namespaces")
@pytest.mark.parametrize("writer", WRITERS)
def test_file_that_is_a_mount_point_is_written_in_place(tmp_path: Path, writer: str) -> None:
    mounted, over = old_file(tmp_path / "mounted"), old_file(tmp_path / "file")
    program = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\nimport test_whole_files as t\n"
    program += f"t.WRITERS[{writer!r}]({str(over)!r})"
    script = f'mount --bind {mounted} {over} && exec "$0" -c "$1"'
    command = ["unshare", "-rm", "sh", "-c", script, sys.executable, program]

    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)

    assert ran.returncode == 0, ran.stderr
    assert is_new(mounted) and not is_new(over)
    assert sorted(os.listdir(tmp_path)) == ["file", "mounted"]
    WRITERS[writer](over)
    assert mounted.stat().st_size == over.stat().st_size


def refuse_rename(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuses(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(whole_files.os, "rename", refuses)


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EPERM, errno.EACCES])
def test_refused_rename_copies_into_the_old_file(
    write: Any, tmp_path: Path, temporary: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = old_file(tmp_path / "file", 0o640)
    inode = path.stat().st_ino
    refuse_rename(monkeypatch, number)
    write(path)
    assert is_new(path) and (path.stat().st_ino, mode_of(path)) == (inode, 0o640)
    assert os.listdir(tmp_path) == ["file"]


def test_dump_without_new_files_keeps_the_old_until_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any) -> None:  # a folder's mode would not stop root
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    path = old_file(tmp_path / "file")
    monkeypatch.setattr(whole_files.NewFile, "_create", refuses)

    def items() -> Iterator[int]:
        yield 1
        assert not is_new(path)

    assert list(shmtree.SharedList(items(), path=path)) == [1]
    with pytest.raises(PermissionError) as refused:
        shmtree.dump([1], tmp_path / "new")
    assert refused.value.filename == str(tmp_path / "new")


def test_path_of_an_open_file_writes_to_that_file(tmp_path: Path) -> None:
    with open(tmp_path / "file", "w+b") as file:
        os.unlink(tmp_path / "file")
        shmtree.dump([7], f"/proc/self/fd/{file.fileno()}")
        assert shmtree.unpack(file.read()) == [7]
    assert os.listdir(tmp_path) == []


@pytest.mark.guarantee("list-files")
@pytest.mark.guarantee("written-files")
@pytest.mark.parametrize("in_place", [False, True])
def test_full_disk_keeps_the_old_file(tmp_path: Path, temporary: str, in_place: bool) -> None:
    path = old_file(tmp_path / "file")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with pytest.MonkeyPatch.context() as patched:
        if in_place:
            refuse_rename(patched, errno.EBUSY)
            patched.setattr(whole_files.os, "posix_fallocate", is_full)
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        try:
            for write in (
                lambda: shmtree.dump(np.zeros(100_000), path),
                lambda: shmtree.SharedList([np.zeros(100_000)], path=path),
            ):
                with pytest.raises(OSError) as refused:
                    write()
                assert refused.value.errno in (errno.EFBIG, errno.ENOSPC) and refused.value.filename == str(path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == b"old" * 1000 and os.listdir(tmp_path) == ["file"]


def is_full(fd: int, offset: int, nbytes: int) -> None:
    os.ftruncate(fd, nbytes // 2)  # as glibc's emulation may have done
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_exception_keeps_the_old_file_and_leaves_no_other(tmp_path: Path, temporary: str) -> None:
    path = old_file(tmp_path / "file")

    def fail() -> None:
        with whole_files.replacing(path) as file:
            file.write(b"part")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_bytes() == b"old" * 1000 and os.listdir(tmp_path) == ["file"]


KILLED = """
import os, signal, sys, errno
sys.path.insert(0, {folder!r})
import pytest, test_whole_files as t
from shmtree._codec import whole_files
kind, path, target = sys.argv[1:]
if kind == "named":
    t.without_unnamed_files(pytest.MonkeyPatch())
def dies(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
if target == "rename":
    whole_files.os.rename = dies
with whole_files.replacing(path) as file:
    file.write(b"part")
    file.flush()
    if target == "write":
        dies()
"""


def kill_writer(kind: str, path: Path, call: str) -> None:
    program = KILLED.format(folder=os.path.dirname(__file__))
    ran = subprocess.run([sys.executable, "-c", program, kind, path, call], timeout=PATIENCE, check=False)
    assert ran.returncode == -signal.SIGKILL


@pytest.mark.guarantee("written-files")
@pytest.mark.parametrize("kind", ["unnamed", "named"])
@pytest.mark.parametrize("call", ["write", "rename"])
def test_next_write_removes_the_file_of_a_killed_writer(tmp_path: Path, kind: str, call: str) -> None:
    path = old_file(tmp_path / "file")
    kill_writer(kind, path, call)
    assert path.read_bytes() == b"old" * 1000
    assert len(os.listdir(tmp_path)) == (1 if (kind, call) == ("unnamed", "write") else 2)

    shmtree.dump([1], tmp_path / "other")
    shmtree.dump([1], path)

    assert sorted(os.listdir(tmp_path)) == ["file", "other"] and shmtree.load(path) == [1]


@pytest.mark.guarantee("written-files")
def test_file_of_a_living_writer_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = old_file(tmp_path / "file")
    without_unnamed_files(monkeypatch)
    with whole_files.replacing(path) as first, whole_files.replacing(path) as second:
        first.write(b"first")
        shmtree.dump([1], path)
        assert len(os.listdir(tmp_path)) == 3
        second.write(b"second")
    assert path.read_bytes() == b"first" and os.listdir(tmp_path) == ["file"]


def test_writer_whose_new_file_was_removed_makes_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer removes the new file before its writer has locked it."""
    without_unnamed_files(monkeypatch)
    lock, calls = fcntl.flock, []

    def removes_first(fd: int, how: int) -> None:
        calls.append(fd)
        if len(calls) == 1:
            for path in tmp_path.iterdir():
                path.unlink()
        lock(fd, how)

    monkeypatch.setattr(whole_files.fcntl, "flock", removes_first)
    shmtree.dump([1], tmp_path / "file")
    assert len(calls) == 2 and shmtree.load(tmp_path / "file") == [1]


LOOP = """
import os, sys, shmtree
if sys.argv[2] == "named":
    sys.path.insert(0, {folder!r})
    import pytest, test_whole_files as t
    t.without_unnamed_files(pytest.MonkeyPatch())
items = shmtree.SharedList([bytes(1000)] * 100)
print(flush=True)
while True:
    items.dump(sys.argv[1])
"""


@pytest.mark.guarantee("list-files")
@pytest.mark.guarantee("written-files")
@pytest.mark.parametrize("kind", ["unnamed", "named"])
def test_kill_at_any_moment_leaves_one_complete_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    program = LOOP.format(folder=os.path.dirname(__file__))
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", program, path, kind], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            while not path.exists():
                pass
            process.kill()
        assert len(shmtree.SharedList.load(path)) == 100
    shmtree.dump([1], path)
    assert os.listdir(tmp_path) == ["file"]
