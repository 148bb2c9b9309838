"""Reports and dumps that `crashdump` writes after a process was killed."""

from __future__ import annotations

import contextlib
import json
import multiprocessing as mp
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peers
import pytest
from test_observe import arena_called, file_bytes, run

import shmtree
from shmtree import _core
from shmtree.cli import crashdump
from shmtree.cli.crashdump import Watch

pytestmark = pytest.mark.usefixtures("runtime_directory")


@contextlib.contextmanager
def watching(directory: Path, *names: str, descriptors: int = 1024) -> Iterator[Any]:
    """Starts `crashdump` and yields its output after the first snapshot. `descriptors`: soft limit of the process."""
    limited = ["sh", "-c", f'ulimit -S -n {descriptors}; exec "$@"', "sh"]
    command = [sys.executable, "-W", "error", "-m", "shmtree", "crashdump", "--json", "--out", str(directory), *names]
    with subprocess.Popen([*limited, *command], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert json.loads(process.stdout.readline())["watching"] >= 1
            yield process.stdout
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()


def dump_in(line: str, directory: Path) -> dict[str, Any]:
    path = Path(json.loads(line)["dump"])
    assert path.parent == directory
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return json.loads(path.read_text())


def kill(process: Any) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)


def test_dump_contains_killed_process_and_queued_messages(name, start, tmp_path):
    sender, receiver = shmtree.create_pair(name=name)
    ours, theirs = mp.Pipe()
    child = start(peers.put_then_hang, sender, {"reward": 1.5}, theirs)
    assert ours.recv() == child.pid
    with watching(tmp_path / "dumps", name) as lines:
        kill(child)
        dump = dump_in(lines.readline(), tmp_path / "dumps")
    (killed,) = dump["killed"]
    assert killed["pid"] == child.pid
    assert killed["senders"] == [name]
    assert killed["receivers"] == []
    (channel,) = dump["arena"]["channels"]
    assert channel["queued"] == 1
    assert "reward" in channel["messages"][0]["description"]
    assert dump["before"]["channels"][0]["put"] == 1
    assert receiver.get()["reward"] == 1.5


def test_dump_contains_the_wait_of_a_killed_process(name, start, tmp_path):
    sender, receiver = shmtree.create_pair(name=name)
    ours, theirs = mp.Pipe()
    sender.put("x")
    child = start(peers.receive_for_ever, receiver, theirs)
    assert ours.recv() == child.pid
    while not any(
        one["waits"]
        for one in arena_called_by_channel(shmtree.observe(), name)["participants"]
        if one["pid"] == child.pid
    ):
        pass
    with watching(tmp_path, name) as lines:
        kill(child)
        dump = dump_in(lines.readline(), tmp_path)
    (wait,) = dump["killed"][0]["waits"]
    assert (wait["what"], wait["channel"]) == ("message", name)


def arena_called_by_channel(look: dict[str, Any], name: str) -> dict[str, Any]:
    (arena,) = [arena for arena in look["arenas"] if any(name in each["names"] for each in arena.get("channels", ()))]
    return arena


def use_alone(name: str, told: Any) -> None:
    """Creates an arena that no other process is attached to."""
    arena = shmtree.Arena(8 << 20)
    sender, _receiver = arena.create_pair(name=name)
    sender.put(["the last words"])
    told.send(os.getpid())
    told.recv()


@pytest.mark.guarantee("dump-of-the-last")
def test_dump_contains_messages_of_the_last_killed_participant(name, start, tmp_path):
    ours, theirs = mp.Pipe()
    child = start(use_alone, name, theirs, method="spawn")
    assert ours.recv() == child.pid
    with watching(tmp_path, str(child.pid)) as lines:
        kill(child)
        dump = dump_in(lines.readline(), tmp_path)
    assert dump["killed"][0]["pid"] == child.pid
    (channel,) = dump["arena"]["channels"]
    assert "the last words" in channel["messages"][0]["description"]
    assert not any(opener["pid"] == child.pid for arena in shmtree.observe()["arenas"] for opener in arena["openers"])


def test_two_watchers_each_dump_and_then_free_the_arena(name, start, tmp_path):
    ours, theirs = mp.Pipe()
    child = start(use_alone, name, theirs, method="spawn")
    assert ours.recv() == child.pid
    with watching(tmp_path / "a", str(child.pid)) as first, watching(tmp_path / "b", str(child.pid)) as second:
        kill(child)
        for lines, directory in ((first, "a"), (second, "b")):
            dump = dump_in(lines.readline(), tmp_path / directory)
            assert dump["killed"][0]["pid"] == child.pid
            left = dump["arena"]["uuid"]
        while left in [arena["uuid"] for arena in shmtree.observe()["arenas"]]:
            pass


def test_crashdump_opens_more_arenas_than_its_soft_limit(name, start, tmp_path):
    ours, theirs = mp.Pipe()
    child = start(use_alone, name, theirs, method="spawn")
    assert ours.recv() == child.pid
    names = [f"{name}-{number}" for number in range(20)]
    arenas = [shmtree.Arena(8 << 20, name=each) for each in names]
    with watching(tmp_path, str(child.pid), *names, descriptors=12) as lines:
        kill(child)
        assert dump_in(lines.readline(), tmp_path)["killed"][0]["pid"] == child.pid
    assert arenas


@pytest.mark.guarantee("observer-is-right")
def test_crashdump_reports_an_arena_it_cannot_retain(name, tmp_path):
    names = [f"{name}-{number}" for number in range(20)]
    arenas = [shmtree.Arena(8 << 20, name=each) for each in names]
    watch = Watch(str(tmp_path), names)
    # including the descriptor of listdir, which is closed by now
    used = {int(each) for each in os.listdir("/proc/self/fd")}
    fifth = [fd for fd in range(1000) if fd not in used][4]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (fifth + 1, hard))
    try:
        for _ in range(2):  # the watcher keeps enough descriptors for further snapshots
            assert list(watch.look()) == []
            assert len(watch) in (1, 2)
            assert " for a last dump: " in watch.trouble
            assert "Too many open files" in watch.trouble
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert list(watch.look()) == []
    assert (len(watch), watch.trouble) == (20, "")
    watch.close()
    assert arenas


def test_crashdump_retries_a_dump_that_it_could_not_write(name, start, tmp_path):
    ours, theirs = mp.Pipe()
    child = start(use_alone, name, theirs, method="spawn")
    assert ours.recv() == child.pid
    watch = Watch(str(tmp_path / "dumps"), [str(child.pid)])
    assert list(watch.look()) == []
    kill(child)
    (tmp_path / "dumps").rmdir()
    for _ in range(2):
        assert list(watch.look()) == []
        assert watch.trouble.startswith("cannot write a dump to ")
    (tmp_path / "dumps").mkdir()
    ((path, pids),) = watch.look()
    assert (Path(path).parent, pids, watch.trouble) == (tmp_path / "dumps", [child.pid], "")
    watch.close()


def test_crashdump_retains_the_arena_of_a_dying_process(name, start, tmp_path, monkeypatch):
    ours, theirs = mp.Pipe()
    child = start(use_alone, name, theirs, method="spawn")
    assert ours.recv() == child.pid
    watch = Watch(str(tmp_path), [str(child.pid)])
    assert list(watch.look()) == []
    looked = crashdump.seen

    def without_its_descriptors(found: Any) -> Any:
        found = looked(found)
        for arena in found["arenas"]:
            arena["openers"] = [each for each in arena["openers"] if each["read_only"]]
        return found

    monkeypatch.setattr(crashdump, "seen", without_its_descriptors)
    assert list(watch.look()) == []
    monkeypatch.undo()
    kill(child)
    ((_, pids),) = watch.look()
    assert pids == [child.pid]
    watch.close()


def test_opening_an_arena_rejects_a_descriptor_of_another():
    arenas = [shmtree.Arena(8 << 20), shmtree.Arena(8 << 20)]
    seen = [
        (bytes.fromhex(one["uuid"]), opener["fd"])
        for one in shmtree.observe()["arenas"]
        for opener in one["openers"]
        if opener["pid"] == os.getpid()
    ]
    first, first_fd = seen[0]
    other_fd = next(fd for uuid, fd in seen if uuid != first)
    os.close(_core.open_arena_for_reading(first, os.getpid(), first_fd))
    with pytest.raises(FileNotFoundError):
        _core.open_arena_for_reading(first, os.getpid(), other_fd)
    assert arenas


def test_unwritable_dump_folder_is_an_error_without_traceback(tmp_path):
    (tmp_path / "file").write_text("x")
    words = run("crashdump", "--out", str(tmp_path / "file"), code=1)
    assert words.startswith("shmtree: ")
    assert "Traceback" not in words


@pytest.mark.guarantee("observer-is-passive")
def test_normal_exit_writes_no_dump_and_changes_no_byte(name, start, tmp_path):
    small = shmtree.Arena(1 << 20, name=name)
    sender, receiver = small.create_pair()
    before = file_bytes(arena_called(shmtree.observe(), name))
    with watching(tmp_path, name):
        pass
    assert file_bytes(arena_called(shmtree.observe(), name)) == before
    ours, theirs = mp.Pipe()
    child = start(peers.put_then_hang, sender, "x", theirs)
    assert ours.recv() == child.pid
    with watching(tmp_path, name):
        ours.send("go on")
        child.join(60)
        assert child.exitcode == 0
    assert list(tmp_path.glob("*.json*")) == []
    assert receiver.get() == "x"
