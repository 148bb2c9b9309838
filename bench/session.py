"""Runs one competitor at one workload in its own process tree, and always ends that tree."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from bench import processes, scenarios
from bench.competitors import Unsupported
from bench.measured import Measured

_FORK = multiprocessing.get_context("fork")


class Session(Measured):
    """Sends commands to a scenario. The first command that fails or exceeds `limit` seconds ends it; see `problem`."""

    def __init__(self, name: str, limit: float, scenario: Callable[[], scenarios.Scenario]) -> None:
        super().__init__(name)
        self.limit = limit
        self.conn, theirs = _FORK.Pipe()
        self.process = _FORK.Process(target=_serve, args=(self.conn, theirs, scenario))
        self.process.start()
        theirs.close()

    def prepare(self) -> None:
        self.result |= self._call("prepare")

    def run(self) -> None:
        if run := self._call("run"):
            self.runs.append(run)

    def detail(self) -> None:
        self.result |= self._call("detail")

    def close(self) -> None:
        self._call("close")
        self._end()

    def _call(self, command: str) -> dict[str, Any]:
        if self.problem:
            return {}
        try:
            self.conn.send(command)
            if self.conn.poll(self.limit if command != "close" else min(self.limit, 3)):
                problem, value = self.conn.recv()
            else:
                problem, value = f"stuck in {command}: ended after {self.limit:.0f} s", {}
        except (EOFError, OSError):
            problem, value = "its process ended unexpectedly", {}
        if problem and command != "close":
            self.problem = problem
            self._end()
        return value or {}

    def _end(self) -> None:
        if self.process.pid is not None and not self.conn.closed:
            processes.end_tree(self.process.pid)
            self.conn.close()


def _serve(ours: Connection, theirs: Connection, make: Callable[[], scenarios.Scenario]) -> None:
    ours.close()
    os.setsid()
    processes.adopt_orphans()
    processes.end_with_parent()
    warnings.simplefilter("ignore")
    silence()
    scenario = make()
    with contextlib.suppress(EOFError):
        while True:
            command = theirs.recv()
            try:
                theirs.send(("", getattr(scenario, command)()))
            except Unsupported as why:
                theirs.send((str(why), {}))
            except BaseException as error:
                theirs.send((f"{type(error).__name__}: {error}".splitlines()[0][:200], {}))
            if command == "close":
                time.sleep(60)  # the parent ends this process, with all its descendants


def silence() -> None:
    """Redirects the output of the competitors' processes to BENCH_LOG, or drops it, so that the table stays
    readable."""
    target = os.open(os.environ.get("BENCH_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
