"""The page of `top`: the limiting stage, what fits a terminal, the order of channels, and keys."""

from __future__ import annotations

import fcntl
import io
import os
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from terminals import pseudo_terminal
from test_observe import channel_look, limiting_line

from shmtree.cli import drawing, screen, tables
from shmtree.cli.processes import command

LEFT_SCREEN = b"\x1b[?1049l"  # what rich writes last


def test_full_channel_without_waiting_senders_limits_last():
    served = channel_look(
        "c0", full_share=0.5, sender_pids=[1], receiver_pids=[2], limiting={"end": "receiver", "pids": [2]}
    )
    waits = channel_look("c2", empty_share=0.9, sender_pids=[3], receiver_pids=[2])
    left = channel_look("c1", queued=9, sender_pids=[1], receiver_pids=[], limiting={"end": "receiver", "pids": []})
    assert limiting_line(served, waits, left) == "Bottleneck: the process that receives from c0, 2."
    assert limiting_line(left) == "Bottleneck: no process receives from c1."


def test_top_on_a_terminal_without_descriptors_is_an_error(runtime_directory):
    pytest.importorskip("rich")
    code = (
        "import os, resource, sys, rich.live, rich.text, shmtree; from shmtree.__main__ import main;"
        " free = os.dup(0); resource.setrlimit(resource.RLIMIT_NOFILE, (free, 4096)); os.close(free);"
        " sys.exit(main(['top']))"
    )
    with pseudo_terminal() as (_, theirs):
        ran = subprocess.run(
            [sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert ran.returncode == 1
    assert "Too many open files" in ran.stderr
    assert "Traceback" not in ran.stderr


def snapshot(*found: dict[str, Any]) -> dict[str, Any]:
    """Returns a snapshot of these channels. Process 1 sends to each, and process 2 receives."""
    known = {"queued_bytes": 0, "capacity": 8, "put_per_s": 0.0, "received_per_s": 0.0, "oldest_seconds": 0.0}
    ends = {"sender_pids": [1], "receiver_pids": [2]}
    shown = [{**known, **ends, "names": [each["name"]], **each} for each in found]
    people = [
        {"pid": pid, "namespace_pid": pid, "alive": True, "stopped": False, "leaving": False, "waits": [], "name": ""}
        for pid in (1, 2)
    ]
    openers = [{"pid": pid, "read_only": False} for pid in (1, 2)]
    objects: dict[str, list[Any]] = {"holders": [], "latests": [], "broadcasts": [], "replays": []}
    sizes = {"used_bytes": 1 << 20, "max_bytes": 1 << 30}
    arena = {"name": "a", "uuid": "0" * 32, "refused": None, "openers": openers, "participants": people}
    return {"arenas": [{**arena, **objects, **sizes, "channels": shown}], "bottlenecks": []}


def shown(look: dict[str, Any], width: int = 300, sort: str = "name", height: int | None = None) -> list[str]:
    """Returns the lines that rich draws."""
    console = pytest.importorskip("rich.console")
    made = console.Console(file=io.StringIO(), width=width)
    made.print(*(drawing.drawn(each, width) for each in screen.blocks(look, sort, height)), sep="\n")
    return [line.rstrip() for line in made.file.getvalue().splitlines()]


def channels_in(lines: list[str]) -> list[str]:
    first = next(number for number, line in enumerate(lines) if line.startswith("CHA"))
    return [line.split()[0] for line in lines[first + 1 : lines.index("", first)]]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_long_names_and_commands_fit_the_terminal(width):
    look = snapshot(*(channel_look(letter * 200, queued=10**6, capacity=10**6) for letter in "ab\u4e2d"))
    lines = shown(look, width)
    assert all(pytest.importorskip("rich.cells").cell_len(line) <= width for line in lines)
    names = channels_in(lines)
    assert [name[:2] for name in names] == ["aa", "bb", "\u4e2d\u4e2d"]
    assert all("\u2026" in line for line in lines if line[:2] in ("aa", "bb", "\u4e2d"))


def test_a_short_terminal_shows_how_many_lines_are_left_out():
    look = snapshot(*(channel_look(f"c{number}") for number in range(30)))
    lines = shown(look, 80, height=20)
    assert len(lines) <= 20
    assert any(line.startswith("+ ") and line.endswith(" more") for line in lines)


def test_channels_are_sorted_by_the_chosen_column():
    look = snapshot(
        channel_look("a", queued=1, put_per_s=9.0),
        channel_look("c", queued=5),
        channel_look("b", queued=5, full_share=1.0),
    )
    assert channels_in(shown(look)) == ["a", "b", "c"]
    assert channels_in(shown(look, sort="depth")) == ["b", "c", "a"]
    assert channels_in(shown(look, sort="put")) == ["a", "b", "c"]


def test_process_rows_name_commands_and_channels():
    look = snapshot(channel_look("c"))
    arena = look["arenas"][0]
    for key in ("openers", "participants"):
        arena[key][0]["pid"] = os.getpid()
    arena["channels"][0]["sender_pids"] = [os.getpid()]
    arena["participants"][0].update(stopped=True, name="Process-3")
    arena["holders"] = [{"pid": os.getpid(), "bytes": 2048, "blocks": 1, "seconds": 1.5}]
    (row,) = [line for line in shown(look, 3000) if line.split()[:1] == [str(os.getpid())]]
    assert row.split()[1] == "Process-3"
    assert command(os.getpid()) in row
    assert row.split()[-7:] == ["c", "-", "2.0", "KiB", "1.5", "s", "stopped"]


def test_tables_without_rich_are_aligned(monkeypatch, capsys):
    monkeypatch.setattr(drawing, "has_rich", lambda: False)
    drawing.show(drawing.Table(("A", "B"), [[("long", ""), ("x", "")], [("s", ""), ("y", "")]]), ("end", "red"))
    assert capsys.readouterr().out == "A     B\nlong  x\ns     y\nend\n"


def test_only_killed_processes_are_reported_as_killed():
    look = snapshot(channel_look("c"))
    killed, ended = look["arenas"][0]["participants"]
    killed["alive"] = ended["alive"] = False
    ended["leaving"] = True
    assert "Killed, memory not freed yet: 1." in shown(look)
    assert (
        tables.participant({**killed, "seconds": 2}) == "  process 1: was killed, awaits recovery; attached 2.0 s ago"
    )
    assert tables.participant({**ended, "seconds": 2}) == "  process 2: has exited, awaits recovery; attached 2.0 s ago"


def test_text_is_wrapped_at_the_width_of_a_terminal_only(capsys):
    pytest.importorskip("rich")
    text = f"  first {'word ' * 9}word\n\n{' ' * 30}{'x' * 30}"
    drawing.show((text, ""))
    assert capsys.readouterr().out == f"{text}\n"
    drawing.show((text, ""), width=40)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 40
    assert "".join(out.split()) == "".join(text.split())


def _prepare() -> None:
    os.setpgrp()  # the system ignores SIGTSTP if no process of the session could continue the group
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has set it to be ignored


class Drawn:
    """The command top on a pseudo-terminal."""

    def __init__(self, ours: int, theirs: int, **variables: str) -> None:
        pytest.importorskip("rich")
        self.ours, self.theirs, self.read = ours, theirs, b""
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(theirs)
        known = {each: value for each, value in os.environ.items() if each not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "shmtree", "top", "--interval", "3600"],
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
            env={**known, "TERM": "xterm", **variables},
            preexec_fn=_prepare,
        )

    def __enter__(self) -> Drawn:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def read_until(self, text: bytes) -> None:
        while text not in self.read:
            self.read += os.read(self.ours, 1 << 16)

    def check_restored(self) -> None:
        assert termios.tcgetattr(self.theirs) == self.before
        self.read_until(LEFT_SCREEN)
        assert self.read.endswith(LEFT_SCREEN) and b"\x1b[?25h" in self.read

    def check_ended(self) -> None:
        assert self.process.wait(60) == 0
        assert self.process.stderr is not None and self.process.stderr.read() == b""
        self.check_restored()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda each: each.name)
def test_a_signal_ends_top_and_restores_the_terminal(number: signal.Signals, runtime_directory: Path) -> None:
    with pseudo_terminal() as ends, Drawn(*ends) as top:
        top.read_until(b"PROCESSES")
        top.process.send_signal(number)
        top.check_ended()


def test_top_prints_plain_text_on_a_dumb_terminal(runtime_directory: Path) -> None:
    with pseudo_terminal() as ends, Drawn(*ends, TERM="dumb") as top:
        top.read_until(b"CHANNEL")
        assert b"\x1b" not in top.read
