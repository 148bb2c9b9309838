"""Observation of arenas from outside: the commands report the right state, and change nothing."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import signal
import subprocess
import sys
import types
from typing import Any

import numpy as np
import peers
import pytest

import shmtree
from shmtree._ipc.observer import Observer, bottlenecks
from shmtree.cli import drawing, tables

pytestmark = pytest.mark.usefixtures("runtime_directory")

RATES = {"put_per_s", "received_per_s"}


def run(*arguments: str, code: int = 0) -> str:
    """Returns the output of a command in a process that is not attached to any arena."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "shmtree", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "COLUMNS": "300"},  # of `top`
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def channel_called(look: dict[str, Any], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the channel with that name, and its arena."""
    ((arena, channel),) = [
        (arena, channel)
        for arena in look["arenas"]
        for channel in arena.get("channels", ())
        if name in channel["names"]
    ]
    return arena, channel


def arena_called(look: dict[str, Any], name: str) -> dict[str, Any]:
    (arena,) = [arena for arena in look["arenas"] if name in arena["names"]]
    return arena


def file_bytes(arena: dict[str, Any]) -> bytes:
    """Returns all bytes of an arena that this process has open."""
    (fd,) = [opener["fd"] for opener in arena["openers"] if opener["pid"] == os.getpid()]
    return os.pread(fd, os.fstat(fd).st_size, 0)


def wait_until_stopped(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])


def test_snapshot_of_a_channel_agrees_with_its_stats(name):
    sender, receiver = shmtree.create_pair(capacity=4, name=name)
    for number in range(3):
        sender.put(number)
    receiver.get()
    arena, channel = channel_called(shmtree.observe(), name)
    stats = receiver.stats()
    assert {key: channel[key] for key in stats.keys() - RATES} == {key: stats[key] for key in stats.keys() - RATES}
    assert channel.keys() >= RATES
    assert (channel["name"], channel["refused"], channel["consistent"]) == (name, None, True)
    assert os.getpid() in [opener["pid"] for opener in arena["openers"]]
    assert [one["pid"] for one in arena["participants"]] == [os.getpid()]
    assert json.loads(json.dumps(arena)) == arena


def test_snapshot_shows_holders_of_an_unnamed_arena():
    arena = shmtree.Arena(33 << 20)
    view = arena.array((1000, 1000), np.uint8).array
    looked = shmtree.observe()["arenas"]
    ours = [one for one in looked if os.getpid() in [opener["pid"] for opener in one["openers"]]]
    (seen,) = [one for one in ours if one.get("max_bytes") == 33 << 20]
    assert seen["name"] is None
    (holder,) = seen["holders"]
    assert holder["pid"] == os.getpid()
    assert holder["bytes"] >= view.nbytes
    assert holder["seconds"] >= 0


def test_a_full_channel_is_limited_by_its_receiving_end(name, start):
    sender, receiver = shmtree.create_pair(capacity=2, name=name)
    ours, theirs = mp.Pipe()
    child = start(peers.put_then_hang, sender, "x", theirs)
    assert ours.recv() == child.pid
    sender.put("y")
    _, channel = channel_called(shmtree.observe(), name)
    assert channel["queued"] == channel["capacity"] == 2
    assert channel["limiting"]["end"] == "receiver"
    assert channel["limiting"]["pids"] == channel["receiver_pids"]
    assert child.pid in channel["sender_pids"]
    assert receiver.get() == "x"
    assert channel_called(shmtree.observe(), name)[1]["limiting"] is None


def test_snapshots_give_rates_and_age_of_oldest_message(name):
    sender, _receiver = shmtree.create_pair(capacity=100, name=name)
    sender.put(0)
    observer = Observer()
    first = channel_called(observer.look(), name)[1]
    assert (first["put_per_s"], first["oldest_seconds"]) == (0.0, 0.0)
    for number in range(50):
        sender.put(number)
    second = channel_called(observer.look(), name)[1]
    assert second["put_per_s"] > 0
    assert second["received_per_s"] == 0
    assert second["oldest_seconds"] > 0
    third = channel_called(observer.look(), name)[1]
    assert third["put_per_s"] == 0
    assert third["oldest_seconds"] > second["oldest_seconds"]


@pytest.mark.guarantee("observer-is-passive")
def test_observer_commands_change_no_byte_of_an_arena(name, start):
    small = shmtree.Arena(1 << 20, name=name)  # small, because file_bytes() reads the whole file
    sender, _receiver = small.create_pair(capacity=8)
    ours, theirs = mp.Pipe()
    child = start(peers.put_then_hang, sender, {"x": np.arange(1000), "text": "words"}, theirs)
    assert ours.recv() == child.pid
    wait_until_stopped(child.pid)
    arena = arena_called(shmtree.observe(), name)
    assert arena["channels"][0]["queued"] == 1
    before = file_bytes(arena)
    look = json.loads(run("top", "--once", "--json", "--interval", "0"))
    run("ls", "--all")
    run("ls", "--all", "--json")
    run("inspect", name)
    run("inspect", str(child.pid), "--json")
    run("top", "--once", "--interval", "0")
    run("why")
    run("why", str(child.pid), "--json")
    for _ in range(3):  # observers that are killed
        with subprocess.Popen(
            [sys.executable, "-m", "shmtree", "top", "--json", "--interval", "0"], stdout=subprocess.PIPE
        ) as observer:
            observer.stdout.readline()
            observer.kill()
    assert file_bytes(arena) == before
    seen = arena_called(look, name)["participants"]
    assert {one["pid"]: one["stopped"] for one in seen} == {os.getpid(): False, child.pid: True}
    os.kill(child.pid, signal.SIGCONT)


def test_snapshot_shows_a_killed_process_as_dead(name, start):
    sender, _receiver = shmtree.create_pair(name=name)
    ours, theirs = mp.Pipe()
    child = start(peers.put_then_hang, sender, "x", theirs)
    assert ours.recv() == child.pid
    os.kill(child.pid, signal.SIGKILL)
    child.join(60)
    arena, channel = channel_called(json.loads(run("top", "--once", "--json", "--interval", "0")), name)
    assert {one["namespace_pid"]: one["alive"] for one in arena["participants"]} == {
        os.getpid(): True,
        child.pid: False,
    }
    assert child.pid not in channel["sender_pids"]
    assert channel["queued"] == 1
    assert "killed" in run("inspect", name)


def test_inspect_describes_queued_messages_and_takes_none(name):
    sender, receiver = shmtree.create_pair(capacity=8, name=name)
    sender.put({"obs": np.zeros((84, 84), np.uint8), "reward": 1.5})
    sender.put(["a text", 7])
    words = run("inspect", name)
    for part in (f"channel {name}: 2 of 8 queued", "message 0", "message 1", "obs", "84", "a text"):
        assert part in words, words
    assert str(os.getpid()) in words
    (arena,) = json.loads(run("inspect", f"{os.getpid()}:{name}", "--json", "--messages", "1"))["arenas"]
    (message,) = arena["channels"][0]["messages"]
    assert (message["ticket"], message["sender"]) == (0, os.getpid())
    assert "reward" in message["description"]
    assert receiver.get()["reward"] == 1.5
    assert receiver.get() == ["a text", 7]


def test_inspect_finds_channels_by_number_and_reports_no_match(name):
    arena = shmtree.Arena(8 << 20, name=name)
    first, second = arena.create_pair(capacity=3), arena.create_pair(capacity=5)
    assert "0 of 3" in run("inspect", f"{name}:0")
    words = run("inspect", f"{name}:1")
    assert "0 of 5" in words
    assert "0 of 3" not in words
    assert "no process, name or uuid" in run("inspect", f"{name}:2", code=1)
    assert "no process, name or uuid" in run("inspect", "no-such-name", code=1)
    assert first
    assert second


def test_ls_shows_unnamed_arenas_only_with_all(name):
    _sender, _receiver = shmtree.create_pair(name=name)
    assert name in run("ls")
    assert name in run("ls", "--all")
    unnamed = shmtree.Arena(8 << 20)
    pids = [one["openers"] for one in json.loads(run("ls", "--all", "--json"))["arenas"] if not one["names"]]
    assert any(opener["pid"] == os.getpid() for openers in pids for opener in openers)
    known = json.loads(run("ls", "--json"))["names"]
    assert {"name": name, "kind": "channel", "pids": [os.getpid()]} in known
    unnamed.close()


def test_snapshot_shows_latests_and_broadcasts_of_an_arena(name):
    arena = shmtree.Arena(8 << 20, name=name)
    latest = shmtree.Latest(arena=arena)
    latest.publish(1)
    broadcast = shmtree.Broadcast(capacity=4, arena=arena)
    reader = broadcast.subscribe()
    broadcast.put("x")
    seen = arena_called(shmtree.observe(), name)
    assert seen["latests"][0]["version"] == 1
    assert seen["latests"][0]["publishers"] == [os.getpid()]
    assert seen["broadcasts"][0]["put"] == 1
    assert seen["broadcasts"][0]["subscribers"][0]["behind"] == 1
    words = run("inspect", name)
    assert "version 1" in words
    assert "1 put" in words
    assert reader.get() == "x"


def test_top_reports_the_limiting_stage_in_one_line(name):
    sender, _receiver = shmtree.create_pair(capacity=1, name=name)
    sender.put(1)
    lines = run("top", "--once", "--interval", "0").splitlines()
    assert any(line.startswith(name) and "1 of 1" in line for line in lines)
    assert sum(line.startswith(("Bottleneck:", "No bottleneck")) for line in lines) >= 1


@pytest.mark.parametrize("interval", ["-1", "nan", "inf", "soon"])
def test_top_rejects_an_invalid_interval(interval):
    words = run("top", "--interval", interval, code=2)
    assert "--interval" in words
    assert "Traceback" not in words


def test_top_exits_silently_when_its_output_pipe_is_closed():
    command = [sys.executable, "-W", "error", "-m", "shmtree", "top", "--interval", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def run_with_descriptors(count: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Returns the output of a process that has `count` free descriptors after its imports."""
    code = (
        "import json, os, resource, sys, shmtree; from shmtree.__main__ import main;"
        f" free = os.dup(0); resource.setrlimit(resource.RLIMIT_NOFILE, (free + {count}, 4096)); os.close(free);"
        " sys.exit(main(sys.argv[1:]) if sys.argv[1:] else print(json.dumps(shmtree.observe())))"
    )
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_snapshot_shows_more_arenas_than_free_descriptors(name):
    names = [f"{name}-{number}" for number in range(20)]
    arenas = [shmtree.Arena(8 << 20, name=each) for each in names]
    pairs = [arena.create_pair() for arena in arenas]
    look = json.loads(run_with_descriptors(2).stdout)
    for each in names:
        seen = arena_called(look, each)
        assert seen["refused"] is None
        assert [one["pid"] for one in seen["openers"]] == [os.getpid()]
        assert [one["pid"] for one in seen["participants"]] == [os.getpid()]
    assert pairs


def test_snapshot_without_descriptors_reports_only_the_error():
    arena = shmtree.Arena(8 << 20)
    (refused,) = json.loads(run_with_descriptors(0).stdout)["arenas"]
    assert refused.keys() == {"uuid", "name", "names", "refused", "openers"}
    assert "Too many open files" in refused["refused"]
    assert (refused["uuid"], refused["openers"]) == ("0" * 32, [])
    assert arena


@pytest.mark.guarantee("observer-is-right")
@pytest.mark.parametrize(
    "arguments", [("why",), ("inspect", "x"), ("top", "--once"), ("ls", "--all"), ("ls",), ("clean",)]
)
def test_commands_without_descriptors_report_the_error(arguments):
    done = run_with_descriptors(0, *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("shmtree: ")
    assert "Too many open files" in done.stderr
    assert "Traceback" not in done.stderr


def channel_look(name: str, **values: Any) -> dict[str, Any]:
    """Returns a channel of a snapshot. Processes 1 to 3 are the stages of its pipeline."""
    values |= {"senders_never_used": [], "receivers_never_used": []}
    known = {"name": name, "refused": None, "queued": 0, "full_share": 0.0, "empty_share": 0.0, "limiting": None}
    return {**known, "put_per_s": 1.0, "received_per_s": 1.0, **values}


@pytest.mark.parametrize(
    ("full", "empty", "limits"),
    [
        ((0.9, 0.0), (0.0, 0.9), 2),  # both neighbours wait for the middle stage
        ((0.9, 0.9), (0.0, 0.0), 3),  # the middle stage waits for the last one
        ((0.0, 0.0), (0.9, 0.9), 1),
        ((0.9, 0.3), (0.0, 0.1), 2),
    ],
)
def test_limiting_stage_of_a_chain_does_not_wait_itself(full, empty, limits):
    channels = []
    for number in (0, 1):
        sending, receiving = [number + 1], [number + 2]
        is_full = full[number] >= empty[number]
        limiting = {"end": "receiver", "pids": receiving} if is_full else {"end": "sender", "pids": sending}
        channels.append(
            channel_look(
                f"c{number}",
                full_share=full[number],
                empty_share=empty[number],
                sender_pids=sending,
                receiver_pids=receiving,
                limiting=limiting if max(full[number], empty[number]) else None,
            )
        )
    assert limiting_line(*channels).endswith(f", {limits}.")


def limiting_lines(*channels: dict[str, Any], stopped: int = 0) -> list[str]:
    people = [{"pid": pid, "stopped": pid == stopped} for pid in (1, 2, 3)]
    snapshot = {"arenas": [{"name": "a", "uuid": "0" * 32, "participants": people, "channels": channels}]}
    return tables.limiting_lines({**snapshot, "bottlenecks": bottlenecks(snapshot)})


def limiting_line(*channels: dict[str, Any], stopped: int = 0) -> str:
    (line,) = limiting_lines(*channels, stopped=stopped)
    return line


def test_idle_services_and_readers_are_no_bottleneck():
    idle = {"empty_share": 1.0, "put_per_s": 0.0, "received_per_s": 0.0}
    waits = channel_look("c0", **idle, sender_pids=[1], receiver_pids=[2], limiting={"end": "sender", "pids": [1]})
    unserved = channel_look("c1", **idle, sender_pids=[], receiver_pids=[2], limiting={"end": "sender", "pids": []})
    assert limiting_line(waits, unserved) == "No bottleneck found among the channels in use."
    busy = channel_look(
        "c2", full_share=0.5, sender_pids=[3], receiver_pids=[4], limiting={"end": "receiver", "pids": [4]}
    )
    assert limiting_line(waits, busy, unserved) == "Bottleneck: the process that receives from c2, 4."


def test_each_program_has_its_own_bottleneck():
    first = channel_look(
        "c0", full_share=0.5, sender_pids=[1], receiver_pids=[2], limiting={"end": "receiver", "pids": [2]}
    )
    same = channel_look(
        "c1", full_share=0.4, sender_pids=[3], receiver_pids=[2], limiting={"end": "receiver", "pids": [2]}
    )
    other = channel_look(
        "c2", empty_share=0.9, sender_pids=[5], receiver_pids=[6], limiting={"end": "sender", "pids": [5]}
    )
    assert limiting_lines(first, same, other) == [
        "Bottleneck: the process that sends to c2, 5.",
        "Bottleneck: the process that receives from c0, 2.",
    ]


def test_stalled_full_channel_is_a_bottleneck():
    stalled = channel_look(
        "c0",
        queued=8,
        put_per_s=0.0,
        received_per_s=0.0,
        full_share=1.0,
        sender_pids=[1],
        receiver_pids=[2],
        limiting={"end": "receiver", "pids": [2]},
    )
    assert limiting_line(stalled, stopped=2) == "Bottleneck: the process that receives from c0, 2, which is stopped."


def test_top_shows_only_the_named_arenas(name):
    other, _theirs = shmtree.create_pair(capacity=1, name=f"{name}-other")
    sender, _receiver = shmtree.create_pair(capacity=1, name=name)
    sender.put(1)
    other.put(1)
    words = run("top", name, "--once", "--interval", "0")
    assert name in words and f"{name}-other" not in words
    (limit,) = json.loads(run("top", name, "--json", "--once", "--interval", "0"))["bottlenecks"]
    assert (limit["end"], limit["channel"]) == ("receiver", 0)
    assert f"no process, name or uuid '{name}-none'" in run("top", f"{name}-none", "--once", code=1)


def test_limiting_line_names_unattached_and_unused_ends():
    waits = {"full_share": 0.9, "sender_pids": [1], "receiver_pids": [2]}
    served = channel_look("c0", **waits, limiting={"end": "receiver", "pids": [2]})
    deserted = channel_look("c1", **waits | {"receiver_pids": []}, limiting={"end": "receiver", "pids": []})
    unused = channel_look("c2", **waits, limiting={"end": "receiver", "pids": [2]}) | {"receivers_never_used": [2]}
    assert limiting_line(served) == "Bottleneck: the process that receives from c0, 2."
    assert limiting_line(served, stopped=2) == "Bottleneck: the process that receives from c0, 2, which is stopped."
    assert limiting_line(served, deserted) == "Bottleneck: no process receives from c1."
    says = "Bottleneck: no process has used the receiver of c2; 2"
    assert limiting_line(unused) == f"{says} is attached."
    assert limiting_line(unused, stopped=2) == f"{says}, which is stopped, is attached."


def test_limiting_end_follows_from_time_spent_waiting(name, start):
    sender, receiver = shmtree.create_pair(capacity=1, name=name)
    ours, theirs = mp.Pipe()
    child = start(peers.send_for_ever, sender, theirs)
    assert ours.recv() == child.pid
    sender.close()
    observer = Observer()
    channel = channel_called(observer.look(), name)[1]
    while not channel["full_share"]:
        channel = channel_called(observer.look(), name)[1]
    assert 0 < channel["full_share"] <= 1
    assert channel["empty_share"] == 0
    assert channel["limiting"]["end"] == "receiver"
    arena, channel = channel_called(observer.look(), name)
    assert channel["full_seconds"] > 0
    (wait,) = [wait for one in arena["participants"] if one["pid"] == child.pid for wait in one["waits"]]
    assert (wait["what"], wait["channel"]) == ("space", name)
    assert wait["seconds"] > 0
    assert receiver.get() == 0


def test_sizes_have_units():
    assert [drawing.size(count) for count in (5, 2048, 3 << 20, 1 << 30, 5 << 40)] == [
        "5 B",
        "2.0 KiB",
        "3.0 MiB",
        "1.0 GiB",
        "5.0 TiB",
    ]


def test_printable_escapes_control_characters():
    assert drawing.printable("a\x1b[2J") == "a\\x1b[2J"


# C0, DEL, C1, direction marks and overrides, line and paragraph separators.
CONTROLS = "a\x07\x1b[2J\x7f\x85\x9b31m\u200e\u202e\u2066\u2028\u2029z"


@pytest.mark.parametrize("verb", [("ls",), ("ls", "--all"), ("inspect", str(os.getpid())), ("top", "--once"), ("why",)])
def test_observer_commands_print_no_control_characters(verb):
    sender, receiver = shmtree.create_pair(name=CONTROLS)
    broadcast, latest = shmtree.Broadcast(name=CONTROLS + "b"), shmtree.Latest(name=CONTROLS + "l")
    for message in (CONTROLS, {CONTROLS: [CONTROLS]}, types.SimpleNamespace(**{CONTROLS: 1})):
        sender.put(message)
    text = run(*verb)
    assert [each for each in text if not each.isprintable() and each not in "\n\t"] == []
    least = {"why": 0, "inspect": 7}.get(verb[0], 1)  # "inspect" prints the messages too
    assert text.count(ascii(CONTROLS)[1:-1]) >= least
    del receiver, broadcast, latest


def test_snapshot_of_a_queue_rejects_short_and_unknown_uuids():
    with pytest.raises(ValueError, match="16 bytes; this has 3"):
        shmtree._core.look_at_queue(b"abc", 0, 1, 1)
    with pytest.raises(FileNotFoundError):
        shmtree._core.look_at_queue(bytes(16), 0, 1, 1)


def test_new_name_of_a_process_is_seen_once_it_opens_an_end(name, monkeypatch):
    arena = shmtree.Arena(8 << 20, name=name)
    monkeypatch.setattr(mp.current_process(), "_name", "renamed")
    _ends = arena.create_pair()
    (me,) = [each for each in arena_called(shmtree.observe(), name)["participants"] if each["pid"] == os.getpid()]
    assert me["name"] == "renamed"
