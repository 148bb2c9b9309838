"""Recordings: made by a tap, read by mapping them, put into channels again, and exported."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmtree
from shmtree.recording import Recording
from shmtree.recording._mcap import ALIGNMENT, Writer
from shmtree.recording._tap import record

pytestmark = pytest.mark.usefixtures("runtime_directory")


def shmtree_run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shmtree", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


class Recorder:
    """`shmtree record` in its own process. The constructor returns once the tap is attached."""

    def __init__(self, path: Path, *arguments: str, count: int | None = None, **options: Any) -> None:
        command = [sys.executable, "-m", "shmtree", "record", *arguments, "--out", str(path)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith(f"recording {count or len(arguments)} channel")

    def end(self, by: signal.Signals | None = None) -> tuple[str, str]:
        if by is not None:
            self.process.send_signal(by)
        return self.process.communicate(timeout=120)


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[..., Path]:
    """Returns a function that makes a recording in this process, with a channel for each name."""

    def make(**channels: list[Any]) -> Path:
        path = tmp_path / "made.mcap"
        pairs = {name: shmtree.create_pair(100, name=name, allow_pickle=True) for name in channels}

        def put() -> None:
            count = 0
            for name, values in channels.items():
                sender, receiver = pairs[name]
                for value in values:
                    sender.put(value)
                    receiver.get()
                    count += 1
                    while writer.messages < count:  # wait, so that the tap misses none
                        time.sleep(0)
                sender.close()

        thread = threading.Thread(target=put)
        with Writer(path) as writer:
            record(writer, list(channels), thread.start, lambda: False)
        thread.join()
        for _, receiver in pairs.values():
            receiver.close()
        return path

    return make


def test_recorded_messages_are_also_received(name: str, tmp_path: Path) -> None:
    sender, receiver = shmtree.create_pair(4, name=name)
    recorder = Recorder(tmp_path / "run.mcap", name)
    for step in range(500):
        sender.put({"step": step, "obs": np.full(50 if step % 2 else 20_000, step)})
        assert receiver.get()["step"] == step
    sender.close()
    out, err = recorder.end()
    assert (recorder.process.returncode, err) == (0, "")
    assert out == f"{name}: 500 recorded, 0 missed\n"
    recording = Recording(tmp_path / "run.mcap")
    assert (recording.channels, recording.missed, recording.whole, len(recording)) == ({name: 500}, {}, True, 500)
    last = 0
    for step, message in enumerate(recording):
        assert (message.channel, message.sequence) == (name, step)
        value = message.load()
        assert value["step"] == step
        assert (value["obs"] == step).all()
        assert message.time_ns >= last
        last = message.time_ns


def test_recorded_arrays_are_views_and_the_file_is_private(recorded) -> None:
    path = recorded(frames=[{"obs": np.arange(100_000)}])
    (message,) = Recording(path)
    array = message.load()["obs"]
    address = np.frombuffer(message.frame, np.uint8).ctypes.data
    assert address % ALIGNMENT == 0
    assert address <= array.ctypes.data < address + message.frame.nbytes
    assert not array.flags.writeable
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    os.truncate(path, path.stat().st_size)
    del message
    assert array.sum() == 100_000 * 99_999 // 2


def test_frames_of_a_writer_without_begin_are_aligned(tmp_path: Path) -> None:
    with Writer(tmp_path / "made.mcap") as writer:
        number = writer.add_channel("a")
        writer.write(number, [(1, 0, shmtree.pack(np.zeros(5000))), (2, 1, shmtree.pack(np.ones(5000)))])
    for message in Recording(tmp_path / "made.mcap"):
        frame = np.frombuffer(message.frame, np.uint8)
        assert frame.ctypes.data % ALIGNMENT == 0


def test_channel_with_parts_in_its_name_is_recorded(name: str, tmp_path: Path) -> None:
    sender, _receiver = shmtree.create_pair(name=f"{name}/lidar")
    recorder = Recorder(tmp_path / "run.mcap", f"{name}/lidar")
    sender.put(7)
    out, err = recorder.end(signal.SIGINT)
    assert (out, err) == (f"{name}/lidar: 1 recorded, 0 missed\n", "")
    assert Recording(tmp_path / "run.mcap").channels == {f"{name}/lidar": 1}


def test_several_channels_are_recorded_in_one_file(tmp_path: Path) -> None:
    tasks = shmtree.Queue(name="tasks")
    sender, receiver = shmtree.create_pair(name="frames")
    recorder = Recorder(tmp_path / "run.mcap", "tasks", "frames")
    for i in range(5):
        tasks.put(i)
        sender.put(-i)
    out, _ = recorder.end(signal.SIGINT)
    assert out == "tasks: 5 recorded, 0 missed\nframes: 5 recorded, 0 missed\n"
    recording = Recording(tmp_path / "run.mcap")
    assert [each.load() for each in recording if each.channel == "tasks"] == [0, 1, 2, 3, 4]
    assert [each.load() for each in recording if each.channel == "frames"] == [0, -1, -2, -3, -4]
    assert [tasks.get() for _ in range(5)] == [0, 1, 2, 3, 4]
    assert [receiver.get() for _ in range(5)] == [0, -1, -2, -3, -4]


@pytest.mark.guarantee("taps-do-not-disturb")
def test_stopped_recorder_blocks_no_sender_and_reports_misses(name: str, tmp_path: Path) -> None:
    sender, receiver = shmtree.create_pair(2, name=name)
    recorder = Recorder(tmp_path / "run.mcap", name)
    recorder.process.send_signal(signal.SIGSTOP)
    for step in range(3000):
        sender.put(step, timeout=60)
        assert receiver.get(timeout=60) == step
    recorder.process.send_signal(signal.SIGCONT)
    out, _ = recorder.end(signal.SIGTERM)
    recording = Recording(tmp_path / "run.mcap")
    missed = recording.missed[name]
    assert out == f"{name}: {len(recording)} recorded, {missed} missed\n"
    assert len(recording) + missed == 3000
    assert 0 < missed < 3000
    numbers = [each.load() for each in recording]
    assert numbers == sorted(set(numbers))


def test_killed_recorder_leaves_its_file_and_frees_the_tap(name: str, tmp_path: Path) -> None:
    sender, receiver = shmtree.create_pair(None, name=name)
    recorder = Recorder(tmp_path / "run.mcap", name)
    for step in range(100):
        sender.put({"step": step, "obs": np.zeros(5000)})
        receiver.get()
    while len(Recording(tmp_path / "run.mcap")) < 100:
        pass
    recorder.process.kill()
    recorder.end()
    recording = Recording(tmp_path / "run.mcap")
    assert not recording.whole
    assert [each.load()["step"] for each in recording] == list(range(100))
    again = Recorder(tmp_path / "again.mcap", name)
    sender.put({"step": 100, "obs": np.zeros(5000)})
    assert again.end(signal.SIGINT)[0] == f"{name}: 1 recorded, 0 missed\n"
    assert receiver.get()["step"] == 100


@pytest.mark.guarantee("taps-do-not-disturb", "recordings")
def test_truncated_recording_has_the_messages_before_the_cut(recorded, tmp_path: Path) -> None:
    data = recorded(a=[{"n": n, "x": np.arange(n)} for n in range(6)], b=["text"]).read_bytes()
    whole = [each.load()["n"] for each in Recording(recorded(a=[])) if each.channel == "a"]
    assert whole == []
    cut = tmp_path / "cut.mcap"
    counts = []
    for size in range(len(data) + 1):
        cut.write_bytes(data[:size])
        if size < 8:
            with pytest.raises(shmtree.CorruptMessage, match="too few"):
                Recording(cut)
            continue
        recording = Recording(cut)
        values = [each.load() for each in recording]
        assert [value["n"] for value in values[:6]] == list(range(min(len(values), 6)))
        counts.append(len(values))
    assert counts == sorted(counts)
    assert counts[-1] == 7
    assert recording.whole


@pytest.mark.guarantee("recordings")
def test_damaged_recording_raises_only_documented_errors(recorded, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"something else entirely")
    with pytest.raises(shmtree.CorruptMessage, match="it has no MCAP header"):
        Recording(other)
    data = bytearray(recorded(a=[1, 2, 3]).read_bytes())
    for at in range(8, len(data)):
        other.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        with contextlib.suppress(shmtree.Error, ValueError):
            for message in Recording(other):
                message.load()


def test_opening_a_pipe_folder_or_device_raises_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        with pytest.raises(OSError, match="no regular file|Is a directory"):
            Recording(path)


def test_failed_record_leaves_the_existing_file_unchanged(recorded, name: str) -> None:
    path = recorded(a=[1, 2, 3])
    for names in (["nothing"], [name, "nothing"]):
        ends = shmtree.create_pair(name=name)
        ran = shmtree_run("record", *names, "--out", str(path))
        assert ran.returncode == 1
        assert ran.stderr.startswith("shmtree: ")
        assert len(Recording(path)) == 3
        for end in ends:
            end.close()


def test_unencodable_channel_name_is_an_error_and_makes_no_file(tmp_path: Path) -> None:
    ran = shmtree_run("record", os.fsdecode(b"\xffchannel"), "--out", str(tmp_path / "run.mcap"))
    assert ran.returncode == 1
    assert "characters that cannot be in a file name" in ran.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.guarantee("taps-do-not-disturb")
def test_full_disk_is_an_error_and_written_messages_are_readable(name: str, tmp_path: Path) -> None:
    sender, receiver = shmtree.create_pair(4, name=name)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    recorder = Recorder(tmp_path / "run.mcap", name, preexec_fn=limit)
    for step in range(300):
        sender.put({"step": step, "obs": np.zeros(1000)})
        receiver.get()
    _, err = recorder.end()
    recording = Recording(tmp_path / "run.mcap")
    count = len(recording)
    assert recorder.process.returncode == 1
    assert f"; the file has {count} messages (" in err
    assert 120 < count < 131
    assert not recording.whole
    assert [each.load()["step"] for each in recording] == list(range(count))
    sender.put(None)
    assert receiver.get() is None


def test_full_disk_at_the_start_leaves_the_existing_recording(recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recorded(a=[1, 2, 3])

    def is_full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched, Writer(path) as writer:
        patched.setattr(os, "writev", is_full)
        with pytest.raises(OSError, match="No space left"):
            writer.begin()
    assert len(Recording(path)) == 3
    assert list(path.parent.glob(".*")) == []


def test_record_rejects_an_arena_and_a_second_recorder(name: str, tmp_path: Path) -> None:
    arena = shmtree.Arena(1 << 20, name=name)
    ran = shmtree_run("record", name, "--out", str(tmp_path / "run.mcap"))
    assert ran.returncode == 1
    assert "is the name of an arena, not of a channel" in ran.stderr
    assert shmtree_run("record", "nothing", "--out", str(tmp_path / "run.mcap")).returncode == 1
    arena.close()
    ends = shmtree.create_pair(name=name)
    recorder = Recorder(tmp_path / "run.mcap", name)
    ran = shmtree_run("record", name, "--out", str(tmp_path / "other.mcap"))
    assert ran.returncode == 1
    assert "the channel already has a tap" in ran.stderr
    recorder.end(signal.SIGINT)
    for end in ends:
        end.close()


def test_play_sends_to_the_process_that_opens_its_channel(recorded) -> None:
    values = [{"n": n, "x": np.full(5000, n)} for n in range(50)]
    path = recorded(a=values[:25], b=values[25:])
    command = [sys.executable, "-m", "shmtree", "play", str(path), "--to", "again", "--rate", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as player:
        receiver = shmtree.open_receiver("again", timeout=60)
        got = [(item["n"], int(item["x"][-1])) for item in receiver]
        assert player.communicate(timeout=60)[0] == "playing 50 messages to again\n50 messages played\n"
    assert got == [(n, n) for n in range(50)]


def test_play_with_loop_repeats_until_it_is_interrupted(recorded) -> None:
    path = recorded(a=[1, 2, 3])
    sender, receiver = shmtree.create_pair(name="again")
    command = [sys.executable, "-m", "shmtree", "play", str(path), "--to", "again", "--loop", "--channel", "a"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as player:
        assert [receiver.get(timeout=60) for _ in range(10)] == [1, 2, 3, 1, 2, 3, 1, 2, 3, 1]
        player.send_signal(signal.SIGINT)
        while player.poll() is None:
            with contextlib.suppress(queue.Empty, shmtree.ChannelClosed):
                receiver.get(timeout=0.1)
        assert player.returncode == 0
    sender.close()
    ran = shmtree_run("play", str(path), "--to", "again", "--channel", "c")
    assert (ran.returncode, ran.stderr) == (1, f"shmtree: {str(path)!r} has no channel 'c'; it has 'a'\n")


def lines(text: str) -> Iterator[dict[str, Any]]:
    return map(json.loads, text.splitlines())


def test_an_export_has_a_line_for_each_message(recorded) -> None:
    values = [
        {"n": 1, "x": np.float32([[1, 2], [3, 4]]), "b": b"\x00\x01", "bad": float("nan")},
        ("text", None, {1: 2}),
    ]
    ran = shmtree_run("export", str(recorded(a=values)), "--format", "jsonl")
    assert (ran.returncode, ran.stderr) == (0, "")
    first, second = lines(ran.stdout)
    assert first["value"] == {"n": 1, "x": [[1.0, 2.0], [3.0, 4.0]], "b": "AAE=", "bad": None}
    assert second["value"] == ["text", None, {"1": 2}]
    assert (first["channel"], first["sequence"], second["sequence"]) == ("a", 0, 1)
    assert second["time_ns"] >= first["time_ns"]


class Own:
    pass


def test_export_loads_pickles_only_if_allowed(recorded, tmp_path: Path) -> None:
    path = recorded(a=[{"own": {1, 2, 3}.__reduce__}])
    assert shmtree_run("export", str(path), "--format", "jsonl").returncode == 1
    out = tmp_path / "out.jsonl"
    assert shmtree_run("export", str(path), "--format", "jsonl", "--allow-pickle", "--out", str(out)).returncode == 0
    assert "own" in next(lines(out.read_text()))["value"]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_an_export_to_the_recording_itself_is_refused(recorded, form: str) -> None:
    path = recorded(a=[1, 2, 3])
    ran = shmtree_run("export", str(path), "--format", form, "--out", str(path))
    assert (ran.returncode, ran.stderr) == (1, f"shmtree: --out {path} is the recording itself; name another file\n")
    assert len(Recording(path)) == 3


def test_an_export_to_parquet_has_a_column_for_each_leaf(recorded, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    values: list[Any] = [{"n": n, "info": {"x": np.arange(n)}} for n in range(2000)] + [{"m": 1.5}]
    out = tmp_path / "out.parquet"
    ran = shmtree_run("export", str(recorded(a=values)), "--format", "parquet", "--out", str(out))
    assert (ran.returncode, ran.stderr) == (0, "")
    table = parquet.read_table(out).to_pydict()
    assert list(table) == ["channel", "time_ns", "sequence", "value.n", "value.info.x", "value.m"]
    assert table["value.n"] == [*range(2000), None]
    assert table["value.info.x"][3] == [0, 1, 2]
    assert table["value.m"][-2:] == [None, 1.5]
    ran = shmtree_run("export", str(recorded(a=[{"n": 1}, {"n": "text"}])), "--format", "parquet", "--out", str(out))
    assert ran.returncode == 1
    assert "do not have the same columns" in ran.stderr
    assert shmtree_run("export", str(out), "--format", "parquet").returncode == 1
    ran = shmtree_run("export", str(out), "--format", "parquet", "--out", str(out), "--arrays", "omit")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "--arrays omit is for --format jsonl" in ran.stderr


def test_repr_of_a_recording_has_its_path_and_size(recorded: Callable[..., Path]) -> None:
    path = recorded(a=[1, 2])
    assert repr(Recording(path)) == f"<Recording {str(path)!r} of 2 messages>"
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 8)
    assert repr(Recording(path)).endswith("messages, without its end>")
