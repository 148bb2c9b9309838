"""Runs the cases of end_cases.py with the ends of Python and with those of C++."""

from __future__ import annotations

import contextlib
import os
import pathlib
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import end_cases
import numpy as np
import pytest

import shmtree

PROGRAMS = os.environ.get("SHMTREE_PROGRAMS")

# Names of exceptions. The first class that matches is used.
WORDS: list[tuple[type[BaseException], str]] = [
    (queue.Full, "full"),
    (queue.Empty, "empty"),
    (shmtree.ChannelClosed, "closed"),
    (shmtree.MessageTooLarge, "message too large"),
    (TimeoutError, "timeout"),
    (ValueError, "invalid"),
]
COUNT = 4096


def said(call: Callable[[], Any]) -> str:
    try:
        result = call()
    except Exception as error:
        return next(word for kind, word in WORDS if isinstance(error, kind))
    return "ok" if result is None else str(result)


class PythonEnds:
    def __init__(self) -> None:
        self.arrays: dict[str, Any] = {}
        self.deliveries: list[shmtree.Delivery] = []

    def call(self, line: str) -> str:
        name, _, argument = line.partition(" ")
        return said(lambda: getattr(self, f"do_{name}")(*([argument] if argument else [])))

    def do_pair(self, text: str = "") -> None:
        limits = {key: int(number) for key, _, number in (word.partition("=") for word in text.split()) if number}
        options: Any = {
            "keep_open": "keep_open" in text,
            "on_full": "drop_oldest" if "drop_oldest" in text else "block",
        }
        arena = shmtree.Arena(16 << 20)
        self.sender, self.receiver = shmtree.create_pair(arena=arena, **options, **{"capacity": 8, **limits})

    def value_of(self, text: str) -> Any:
        if text.startswith("part "):
            return self.arrays[text[5:]][: COUNT // 2]
        if text.startswith("big "):
            return "x" * int(text[4:])
        return self.arrays[text] if text in self.arrays else int(text)

    def shown(self, item: Any) -> str:
        if isinstance(item, str):
            return "big"
        if not isinstance(item, np.ndarray):
            return str(item)
        at = item.__array_interface__["data"][0]
        given = [each.__array_interface__["data"][0] for each in self.arrays.values()]
        return "given" if at in given else "copied"

    def do_put(self, text: str) -> str:
        return f"ticket {self.sender.put(self.value_of(text), timeout=0)}"

    def do_get(self) -> str:
        return self.shown(self.receiver.get(timeout=0))

    def do_get_many(self, most: str) -> str:
        return " ".join(self.shown(item) for item in self.receiver.get_many(int(most), timeout=0))

    def do_take(self) -> str:
        self.deliveries.append(self.receiver.take(timeout=0))
        return f"{self.shown(self.deliveries[-1].item)} attempt {self.deliveries[-1].attempts}"

    def do_dead_letters(self) -> int:
        found = self.receiver.dead_letters()
        self.deliveries += found
        return len(found)

    def do_ack(self, which: str) -> None:
        self.deliveries[int(which)].ack()

    def do_nack(self, which: str) -> None:
        self.deliveries[int(which)].nack()

    def do_requeue(self, which: str) -> None:
        self.deliveries[int(which)].requeue()

    def do_drop(self) -> None:
        self.deliveries.clear()

    def do_new_array(self, name: str) -> None:
        self.arrays[name] = self.sender.new_empty(COUNT, "int64")

    def do_size(self) -> int:
        return self.receiver.qsize()

    def do_space(self) -> str:
        return "yes" if self.sender.has_space() else "no"

    def do_dropped(self) -> int:
        return self.sender.dropped

    def do_pending(self) -> int:
        return self.sender.pending_acks

    def do_acked(self, ticket: str = "") -> None:
        if ticket:
            self.sender.wait_for_ack(int(ticket), timeout=0)
        else:
            self.sender.wait_for_all_ack(timeout=0)

    def do_stats(self, name: str) -> Any:
        return self.receiver.stats()[name]

    def do_close(self, end: str) -> None:
        getattr(self, end).close()

    def do_closed(self, end: str) -> str:
        return "yes" if getattr(self, end).closed else "no"

    def do_start(self, what: str) -> None:
        sender, receiver = self.sender, self.receiver
        calls: dict[str, Callable[[], Any]] = {
            "get": lambda: self.shown(receiver.get()),
            "take": lambda: receiver.take() and None,
            "put": lambda: sender.put(1) and None,
            "acks": sender.wait_for_all_ack,
        }

        def run() -> None:
            self.outcome = said(calls[what])

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def do_join(self) -> str:
        self.thread.join()
        return self.outcome


class CppEnds:
    def __init__(self, program: subprocess.Popen[str]) -> None:
        self.program = program

    def call(self, line: str) -> str:
        assert self.program.stdin and self.program.stdout
        self.program.stdin.write(line + "\n")
        self.program.stdin.flush()
        return self.program.stdout.readline().rstrip("\n")


@contextlib.contextmanager
def ends_of(language: str) -> Iterator[PythonEnds | CppEnds]:
    if language == "python":
        yield PythonEnds()
        return
    if not PROGRAMS:
        pytest.skip("SHMTREE_PROGRAMS does not say where the C++ programs were built")
    program = pathlib.Path(PROGRAMS) / "ends"
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        yield CppEnds(running)
        assert running.stdin
        running.stdin.close()
        assert running.wait(timeout=60) == 0


@pytest.mark.guarantee("one-behaviour")
@pytest.mark.parametrize("language", ["python", "c++"])
@pytest.mark.parametrize("case", end_cases.CASES)
def test_ends_behave_alike_in_python_and_cpp(case: str, language: str) -> None:
    script = [line.strip() for line in end_cases.CASES[case].strip().splitlines()]
    with ends_of(language) as ends:
        came = []
        for line in script:
            call, _, _ = line.partition(" = ")
            outcome = ends.call(call)
            came.append(call if outcome == "ok" and " = " not in line else f"{call} = {outcome}")
    assert came == script
