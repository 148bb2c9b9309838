"""Traces of which process put and received each message, and when, in the format of Chrome's trace viewers."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_record import Recorder, shmtree_run

import shmtree
from shmtree.cli import trace as trace_module

pytestmark = pytest.mark.usefixtures("runtime_directory")


class Tracer:
    """`shmtree trace` in its own process. The constructor returns when it has begun to trace."""

    def __init__(self, path: Path, *arguments: str) -> None:
        self._path = path
        command = [sys.executable, "-W", "error", "-m", "shmtree", "trace", "--out", str(path), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None and self.process.stderr is not None
        line = self.process.stdout.readline()
        assert line.startswith("tracing "), self.process.stderr.read()
        self.count = int(line.split()[1])

    def end(self) -> dict[str, Any]:
        """Stops the command with Ctrl-C and returns the trace."""
        self.process.send_signal(signal.SIGINT)
        self.out, self.err = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, self.err
        traced: dict[str, Any] = json.loads(self._path.read_text())
        return traced


@contextlib.contextmanager
def traced_pair(path: Path, name: str, **options: Any) -> Iterator[tuple[Any, Any, Tracer]]:
    sender, receiver = shmtree.create_pair(name=name, **options)
    tracer = Tracer(path, name)
    try:
        yield sender, receiver, tracer
    finally:
        tracer.process.kill()
        tracer.process.communicate()


def by_kind(trace: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found = defaultdict(list)
    for event in trace["traceEvents"]:
        found[event["ph"]].append(event)
    return found


def receive_all(name: str, count: int) -> None:
    receiver = shmtree.open_receiver(name)
    for _ in range(count):
        receiver.get(timeout=60)


def test_trace_has_an_arrow_from_each_put_to_its_receipt(start, name: str, tmp_path: Path) -> None:
    with traced_pair(tmp_path / "run.json", name) as (sender, _receiver, tracer):
        child = start(receive_all, name, 300)
        before = time.time_ns()
        for step in range(300):
            sender.put({"step": step, "obs": np.zeros(50 if step % 2 else 20_000)})
        child.join(60)
        after = time.time_ns()
        trace = tracer.end()
        assert (tracer.out, tracer.err) == (f"{name}: 300 traced, 0 missed\n", "")

    assert tracer.count == 1
    assert stat.S_IMODE((tmp_path / "run.json").stat().st_mode) == 0o600
    events = by_kind(trace)
    slices = {(each["name"].split()[0], each["args"]["ticket"]): each for each in events["X"]}
    assert len(slices) == len(events["X"]) == 600
    begins = {each["id"]: each for each in events["s"]}
    ends = {each["id"]: each for each in events["f"]}
    assert begins.keys() == ends.keys() and len(begins) == len(events["s"]) == len(events["f"]) == 300
    for flow, begin in begins.items():
        end = ends[flow]
        assert (begin["pid"], begin["tid"]) == (os.getpid(), threading.get_native_id())
        assert (end["pid"], end["tid"], end["bp"]) == (child.pid, child.pid, "e")
        assert begin["ts"] <= end["ts"]
    for one in (*begins.values(), *ends.values()):  # each is within a slice of its thread
        assert any(
            (each["pid"], each["tid"]) == (one["pid"], one["tid"])
            and each["ts"] <= one["ts"] <= each["ts"] + each["dur"]
            for each in events["X"]
        )
    base = trace["baseTimeNanoseconds"]
    assert all(before <= base + each["ts"] * 1000 + 1_000_000 and base + each["ts"] * 1000 <= after + 1_000_000
               for each in events["X"])  # fmt: skip
    names = {each["pid"]: each["args"]["name"] for each in events["M"] if each["name"] == "process_name"}
    assert "python" in names[os.getpid()]
    counters = [each["args"]["messages"] for each in events["C"]]
    assert counters[-1] == 0 and max(counters) > 0 and all(0 <= each <= 300 for each in counters)


def test_slices_of_one_thread_do_not_overlap(name: str, tmp_path: Path) -> None:
    with traced_pair(tmp_path / "run.json", name, capacity=None) as (sender, receiver, tracer):
        sender.put_many(list(range(1000)))
        assert len(receiver.get_many(1000)) == 1000
        slices = sorted(by_kind(tracer.end())["X"], key=lambda each: each["ts"])
    assert len(slices) == 2000
    for one, following in itertools.pairwise(slices):
        assert one["ts"] < following["ts"]
        assert one["ts"] + one["dur"] <= following["ts"] + 0.002  # the precision of a float


def test_unreceived_message_has_a_put_and_no_arrow(name: str, tmp_path: Path) -> None:
    with traced_pair(tmp_path / "run.json", name) as (sender, receiver, tracer):
        for step in range(3):
            sender.put(step)
        receiver.get()
        events = by_kind(tracer.end())
    assert [each["name"].split()[0] for each in events["X"]] == ["put", "put", "put", "get"]
    assert len(events["s"]) == len(events["f"]) == 1
    assert events["C"][-1]["args"] == {"messages": 2}


def test_counter_includes_messages_queued_before_the_trace(name: str, tmp_path: Path) -> None:
    sender, receiver = shmtree.create_pair(10, name=name)
    for number in range(8):
        sender.put(number)
    tracer = Tracer(tmp_path / "run.json", name)
    for _ in range(8):
        receiver.get()
    sender.put("x")
    receiver.get()
    sender.close()
    tracer.process.wait(60)
    curve = [each["args"]["messages"] for each in by_kind(json.loads((tmp_path / "run.json").read_text()))["C"]]
    assert curve[-1] == 0
    tracer.process.communicate()


def test_counter_equals_qsize_after_older_messages_were_dropped(name: str, tmp_path: Path) -> None:
    sender, receiver = shmtree.create_pair(10, name=name, on_full="drop_oldest")
    for number in range(8):
        sender.put(number)
    tracer = Tracer(tmp_path / "run.json", name)
    for number in range(10):
        sender.put(number)
    assert by_kind(tracer.end())["C"][-1]["args"] == {"messages": receiver.qsize()}


def test_counter_reaches_zero_after_an_earlier_requeue(name: str, tmp_path: Path) -> None:
    sender, receiver = shmtree.create_pair(10, name=name)
    for number in range(8):
        sender.put(number)
    receiver.take().requeue()
    tracer = Tracer(tmp_path / "run.json", name)
    for _ in range(8):
        receiver.get()
    assert by_kind(tracer.end())["C"][-1]["args"] == {"messages": 0}


@pytest.mark.serial  # it would trace the channels of other tests
def test_traces_unnamed_channels_and_queues(tmp_path: Path) -> None:
    sender, receiver = shmtree.create_pair()
    tasks = shmtree.Queue()
    tracer = Tracer(tmp_path / "run.json", "--all")
    sender.put(1)
    receiver.get()
    tasks.put(2)
    tasks.get()
    events = by_kind(tracer.end())
    mine = [each for each in events["X"] if each["pid"] == os.getpid()]
    assert len({each["args"]["channel"] for each in mine}) == 2 and len(mine) == 4


def test_trace_and_torch_profiler_share_one_time_base(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with traced_pair(tmp_path / "run.json", name) as (sender, receiver, tracer):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            sender.put(1)
            with torch.profiler.record_function("between"):
                torch.ones(10).sum()
            receiver.get()
        profiler.export_chrome_trace(str(tmp_path / "torch.json"))
        ours = tracer.end()
    theirs = json.loads((tmp_path / "torch.json").read_text())
    assert ours["baseTimeNanoseconds"] == theirs["baseTimeNanoseconds"]
    put, got = (each for each in by_kind(ours)["X"])
    (between,) = [each for each in by_kind(theirs)["X"] if each["name"] == "between"]
    assert (between["pid"], between["tid"]) == (put["pid"], put["tid"])
    assert put["ts"] <= between["ts"] + 1000 and between["ts"] <= got["ts"] + 1000  # the clocks agree to 1 ms


def test_trace_ends_with_the_stream_or_after_its_seconds(name: str, tmp_path: Path) -> None:
    with traced_pair(tmp_path / "run.json", name) as (sender, receiver, tracer):
        sender.put(1)
        sender.close()
        assert receiver.get() == 1
        out, err = tracer.process.communicate(timeout=60)
        assert (out, err, tracer.process.returncode) == (f"{name}: 1 traced, 0 missed\n", "", 0)
    _sender, _receiver = shmtree.create_pair(name=f"{name}-2")
    done = shmtree_run("trace", f"{name}-2", "--seconds", "0.2", "--out", str(tmp_path / "run.json"))
    assert (done.returncode, done.stderr) == (0, "")
    assert by_kind(json.loads((tmp_path / "run.json").read_text()))["X"] == []


@pytest.mark.serial  # it would trace the channels of other tests
def test_unknown_name_and_recorded_channel_are_errors(name: str, tmp_path: Path) -> None:
    out = str(tmp_path / "run.json")
    done = shmtree_run("trace", "unknown", "--out", out)
    assert done.returncode == 1 and "no channel named 'unknown'" in done.stderr
    _sender, _receiver = shmtree.create_pair(name=name)
    recorder = Recorder(tmp_path / "run.mcap", name)
    done = shmtree_run("trace", name, "--out", out)
    assert done.returncode == 1 and "already has a tap" in done.stderr
    done = shmtree_run("trace", "--all", "--seconds", "0.1", "--out", out)
    assert done.returncode == 0 and f"not traced: {name}: " in done.stderr
    recorder.end(signal.SIGINT)


def test_trace_needs_names_or_all_and_attaches_to_nothing(name: str, tmp_path: Path) -> None:
    _sender, _receiver = shmtree.create_pair(name=name)
    for arguments in ((), (name, "--all")):
        done = shmtree_run("trace", *arguments, "--out", str(tmp_path / "run.json"))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "shmtree: trace takes the names of channels, or --all\n"
    assert list(tmp_path.glob("*.json")) == []


@pytest.mark.guarantee("taps-do-not-disturb")
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGSTOP])
def test_killed_or_stopped_tracer_blocks_no_sender(name: str, tmp_path: Path, by: signal.Signals) -> None:
    with traced_pair(tmp_path / "run.json", name, capacity=4) as (sender, receiver, tracer):
        tracer.process.send_signal(by)
        if by == signal.SIGKILL:
            tracer.process.wait(60)
        for step in range(50_000):
            sender.put(step, timeout=60)
            assert receiver.get(timeout=60) == step
        if by == signal.SIGKILL:
            again = Tracer(tmp_path / "again.json", name)
            sender.put(1)
            receiver.get()
            assert len(by_kind(again.end())["X"]) == 2


def test_trace_does_not_wait_for_a_stopped_receiver(start, name: str, tmp_path: Path) -> None:
    sender, _receiver = shmtree.create_pair(name=name)
    child = start(receive_all, name, 10_000_000)
    sender.put(0)
    os.kill(child.pid, signal.SIGSTOP)
    tracer = Tracer(tmp_path / "run.json", name)
    with contextlib.suppress(queue.Full):
        sender.put(1, timeout=0)
    assert len(by_kind(tracer.end())["X"]) >= 1
    child.kill()


def test_trace_ends_at_its_message_limit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "_MAX_MESSAGES", 100)
    sender, receiver = shmtree.create_pair(None, name=name)

    def put(count: int, _refused: list[str]) -> None:
        assert count == 1
        sender.put_many(list(range(500)))
        receiver.get_many(500)

    (traced,) = trace_module.trace([name], put, lambda: False)
    assert 100 <= len(traced.times) <= 500


def test_broadcast_has_a_put_and_a_get_for_each_subscriber(start, name: str, tmp_path: Path) -> None:
    broadcast: shmtree.Broadcast[int] = shmtree.Broadcast(16, name=name)
    subscribers = [broadcast.subscribe(), broadcast.subscribe()]
    broadcast.put(0)
    assert [each.get() for each in subscribers] == [0, 0]
    tracer = Tracer(tmp_path / "run.json", name)
    for step in range(1, 11):
        broadcast.put(step)
        assert [each.get() for each in subscribers] == [step, step]
    events = by_kind(tracer.end())["X"]
    assert [each["args"]["ticket"] for each in events if each["name"].startswith("put")] == list(range(1, 11))
    assert sorted(each["args"]["ticket"] for each in events if each["name"].startswith("get")) == sorted(
        [*range(1, 11), *range(1, 11)]
    )
    assert {each["pid"] for each in events} == {os.getpid()}
    assert tracer.out == f"{name}: 30 traced, 0 missed\n"


def test_trace_of_a_latest_ends_with_its_publisher(name: str, tmp_path: Path) -> None:
    latest: shmtree.Latest[int] = shmtree.Latest(name=name)
    latest.publish(0)
    tracer = Tracer(tmp_path / "run.json", name)
    for version in range(5):
        latest.publish(version)
    latest.close()
    tracer.process.communicate(timeout=60)
    puts = by_kind(json.loads((tmp_path / "run.json").read_text()))["X"]
    assert [each["args"]["ticket"] for each in puts] == [1, 2, 3, 4, 5]


def test_a_damaged_count_adds_at_most_the_limit_of_a_trace():
    counts = iter([(0, [1], [], True), (1 << 63, [1], [(0, 1, 1 << 63)], True)])
    counter = trace_module._Counter(lambda: next(counts), "damaged")
    assert counter.look()
    assert len(counter.times) == trace_module._MAX_MESSAGES
