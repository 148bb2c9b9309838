"""An object of another version is refused, and the error has both version numbers.

tests/compatibility runs real other versions.
"""

from __future__ import annotations

import os
import pathlib
import pickle
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import shmtree
from shmtree.recording import Recording
from shmtree.recording._mcap import Writer
from shmtree.recording._tap import record
from shmtree.replay import ReplayBuffer

pytestmark = pytest.mark.usefixtures("runtime_directory")

BOTH = r"version 77; this library reads version \d+"


def places_of(magic: bytes, arena: shmtree.Arena) -> list[int]:
    """Returns the offsets of these bytes in the file of an arena."""
    file, places, end = arena._core.fd, [], 0
    while True:
        try:
            begin = os.lseek(file, end, os.SEEK_DATA)
        except OSError:
            return places
        end = os.lseek(file, begin, os.SEEK_HOLE)
        data = os.pread(file, end - begin, begin)
        places += [begin + found.start() for found in re.finditer(re.escape(magic), data)]


def change_version(arena: shmtree.Arena, magic: bytes, offset: int = 8) -> None:
    """Sets the version of the only structure of an arena that begins with these bytes to 77."""
    (place,) = places_of(magic, arena)
    os.pwrite(arena._core.fd, b"\x4d", place + offset)


OPEN = {
    "pair": "shmtree.open_sender('x')",
    "queue": "shmtree.Queue.open('x')",
    "service": "shmtree.Client('x')",
    "latest": "shmtree.Latest.open('x')",
    "broadcast": "shmtree.Broadcast.open('x')",
    "array": "shmtree.SharedArray.open('x')",
    "arena": "shmtree.Arena.open('x')",
    "replay": "ReplayBuffer.open('x')",
    "pickle": "pickle.loads(bytes.fromhex(sys.argv[1]))",
}


def refusal(call: str, *arguments: str) -> str:
    """Returns the class and the text of the error that a call raises in a new process."""
    program = (
        "import pickle, sys, shmtree; from shmtree.replay import ReplayBuffer\n"
        f"try: {call}\nexcept Exception as error: print(type(error).__name__, error)"
    )
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], check=True, capture_output=True, text=True, timeout=120
    ).stdout


def make(kind: str, arena: shmtree.Arena) -> Any:
    """Makes an object with the name "x" in an arena."""
    return {
        "pair": lambda: arena.create_pair(name="x"),
        "queue": lambda: arena.Queue(name="x"),
        "service": lambda: shmtree.Service("x", arena=arena),
        "latest": lambda: shmtree.Latest(name="x", arena=arena),
        "broadcast": lambda: shmtree.Broadcast(name="x", arena=arena),
        "array": lambda: arena.array(4, int, name="x"),
        "replay": lambda: ReplayBuffer(100, example=0, name="x", arena=arena),
    }[kind]()


MAGIC = {
    "pair": b"smtchann",
    "queue": b"smtchann",
    "service": b"smtchann",
    "latest": b"smtltest",
    "broadcast": b"smtbcast",
    "replay": b"smtreply",
}


@pytest.mark.guarantee("version-mismatch")
@pytest.mark.parametrize("kind", MAGIC)
def test_open_names_both_layout_versions(kind: str) -> None:
    arena = shmtree.Arena(64 << 20)
    made = make(kind, arena)
    change_version(arena, MAGIC[kind])
    said = refusal(OPEN[kind])
    assert said.startswith("IncompatibleArena the "), said
    assert "version 77; this library reads version " in said
    del made


@pytest.mark.parametrize("kind", [*MAGIC, "array"])
def test_open_names_both_versions_of_the_arena(kind: str) -> None:
    arena = shmtree.Arena(64 << 20)
    made = make(kind, arena)
    thing = made[0] if kind == "pair" else made.sender if kind == "service" else made
    handed = pickle.dumps(thing).hex()
    change_version(arena, b"smtarena")
    for said in (refusal(OPEN[kind]), refusal(OPEN["pickle"], handed)):
        assert said.startswith("IncompatibleArena "), said
        assert "the arena has layout version 77; this library reads version " in said


def test_commands_name_both_versions_of_an_arena(tmp_path: pathlib.Path) -> None:
    arena = shmtree.Arena(64 << 20)
    ends = arena.create_pair(name="x")
    change_version(arena, b"smtarena")
    out = str(tmp_path / "file")
    shows = [["inspect", "x"], ["why", "x"], ["why"], ["top", "--once"]]
    for verb in (*shows, ["trace", "x", "--out", out], ["record", "x", "--out", out]):
        done = subprocess.run(
            [sys.executable, "-m", "shmtree", *verb], check=False, capture_output=True, text=True, timeout=120
        )
        assert "version 77; this library reads version " in done.stdout + done.stderr, (verb, done)
        assert "Traceback" not in done.stderr
        assert done.returncode == (0 if verb in shows else 1)
    del ends


def test_open_handle_names_both_versions_of_a_handle() -> None:
    queue = shmtree.Queue()
    handle = queue.handle()
    assert bytes.fromhex(handle).startswith(b"smthand1")
    other = b"smthand7".hex() + handle[16:]
    with pytest.raises(shmtree.IncompatibleArena, match="the handle has version 7; this library reads version 1"):
        shmtree.Queue.open_handle(other)


def test_open_names_both_versions_of_the_file_of_a_name(runtime_directory: pathlib.Path) -> None:
    ends = shmtree.create_pair(name="x")
    with open(runtime_directory / "shmtree" / "x", "r+b") as file:
        assert file.read(8) == b"smtname2"
        file.seek(7)
        file.write(b"7")
    for call in (lambda: shmtree.open_sender("x"), lambda: shmtree.create_pair(name="x")):
        with pytest.raises(
            shmtree.IncompatibleArena, match='"x": its file has version 7; this library reads version 2'
        ):
            call()
    del ends


FRAME = b"SHMT", 14  # its first bytes, and the offset of its version


def other_version(frame: bytes) -> bytes:
    return frame[:14] + bytes([77]) + frame[15:]


@pytest.mark.parametrize(
    "value", [1, b"b" * 10, b"b" * 5000, {"a": [1, 2]}], ids=["int", "bytes", "long bytes", "dict"]
)
def test_readers_name_both_versions_of_a_frame(value: Any, tmp_path: pathlib.Path) -> None:
    frame = other_version(bytes(shmtree.pack(value)))
    (tmp_path / "frame").write_bytes(frame)
    sender, _receiver = shmtree.create_pair()
    calls: list[Callable[[], Any]] = [
        lambda: shmtree.unpack(frame),
        lambda: shmtree.load(tmp_path / "frame"),
        lambda: shmtree.describe(frame),
        lambda: sender.put_frame(frame),
    ]
    for call in calls:
        with pytest.raises(shmtree.IncompatibleMessage, match=BOTH):
            call()


def test_receivers_name_both_versions_of_a_message() -> None:
    arena = shmtree.Arena(64 << 20)
    sender, receiver = arena.create_pair()
    sender.put({"a": [1, 2]})
    change_version(arena, *FRAME)
    with pytest.raises(shmtree.IncompatibleMessage, match=BOTH):
        receiver.get(timeout=0)


def test_latest_names_both_versions_of_its_value() -> None:
    arena = shmtree.Arena(64 << 20)
    latest = shmtree.Latest(arena=arena)
    latest.publish({"a": [1, 2]})
    change_version(arena, *FRAME)
    with pytest.raises(shmtree.IncompatibleMessage, match=BOTH):
        latest.get()


def test_subscribers_name_both_versions_of_a_message() -> None:
    arena = shmtree.Arena(64 << 20)
    broadcast = shmtree.Broadcast(arena=arena)
    subscriber = broadcast.subscribe()
    broadcast.put({"a": [1, 2]})
    change_version(arena, *FRAME)
    with pytest.raises(shmtree.IncompatibleMessage, match=BOTH):
        subscriber.get(timeout=0)


def test_a_recording_names_both_versions_of_its_messages(tmp_path: pathlib.Path) -> None:
    sender, receiver = shmtree.create_pair(8, name="x")

    def put() -> None:
        sender.put({"a": [1, 2]})
        sender.close()
        receiver.get(timeout=60)

    path = tmp_path / "recording"
    with Writer(str(path)) as out:
        record(out, ["x"], threading.Thread(target=put).start, lambda: False)
    recorded = path.read_bytes()
    assert recorded.count(b"SHMT") == 1
    at = recorded.index(b"SHMT")
    path.write_bytes(recorded[:at] + other_version(recorded[at:]))
    (message,) = Recording(path)
    with pytest.raises(shmtree.IncompatibleMessage, match=BOTH):
        message.load()


def test_load_names_both_versions_of_replay_files(tmp_path: pathlib.Path) -> None:
    buffer = ReplayBuffer(100, example=0)
    with buffer.writer() as writer:
        writer.add(1)
    buffer.save(tmp_path / "saved")
    for file in sorted((tmp_path / "saved").iterdir()):
        whole = file.read_bytes()
        file.write_bytes(whole[:8] + struct.pack("<I", 77) + whole[12:])
        with pytest.raises(ValueError, match=f"{file.name} has {BOTH}"):
            ReplayBuffer.load(tmp_path / "saved")
        file.write_bytes(whole)
    assert len(ReplayBuffer.load(tmp_path / "saved")) == 1
