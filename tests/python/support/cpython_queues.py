"""Runs CPython's own tests of process queues and pipes on shmtree's queues and pipes.

    python cpython_queues.py list                      prints the tests, one a line: RUN and CLASS.TEST
    python cpython_queues.py run RUN REPORT [TEST...]  runs all or some tests, and appends each result to REPORT

RUN is a start method, or "threads" for the tests that start no processes. All code in this program that imports
`multiprocessing` gets `shmtree.multiprocessing`. So do its child processes, because they import its main module first.
"""

from __future__ import annotations

import faulthandler
import json
import os
import queue
import socket
import sys
import unittest
from collections.abc import Iterator
from typing import Any, TextIO

import forks

import shmtree
import shmtree.multiprocessing

#: True below `shmtree run`, which replaces the classes of the standard module itself.
BELOW_RUN = "SHMTREE_RUN" in os.environ
if not BELOW_RUN:
    sys.modules["multiprocessing"] = shmtree.multiprocessing

import multiprocessing  # noqa: E402  ours from here on

from test import _test_multiprocessing, test_queue  # noqa: E402

START_METHODS = ["fork", "spawn", "forkserver"]

#: Tests of `test._test_multiprocessing` that use queues, pipes, or pools, which are made of queues.
PROCESS_TESTS = [
    "MiscTestCase",
    "TestInitializers",
    "TestNoForkBomb",
    "TestPoolNotLeakOnFailure",
    "TestSimpleQueue",
    "TestStartMethod",
    "TestStdinBadfiledescriptor",
    "TestWait",
    "WithProcessesTestBarrier.test_wait_return",  # the only one of its class with a queue
    "WithProcessesTestConnection",
    "WithProcessesTestPicklingConnections",
    "WithProcessesTestPoll",
    "WithProcessesTestPool",
    "WithProcessesTestPoolWorkerErrors",
    "WithProcessesTestPoolWorkerLifetime",
    "WithProcessesTestProcess",
    "WithProcessesTestQueue",
]

#: Tests that do not apply, with the reason.
CANNOT_APPLY = {
    "test_closed_queue_empty_exceptions": "expects that close has no effect where nothing was put; ours closes",
    "test_queue_feeder_donot_stop_onexc": "expects that put hides an error, which a feeder thread then prints",
    "test_queue_feeder_on_queue_feeder_error": "overrides a method of the standard class's feeder thread",
    "test_missing_fd_transfer": "sends no file descriptor over the socket that a standard pipe is; ours is none",
    "test_mixed_startmethod": "expects that a queue of a fork context is refused where spawn starts; ours works there",
    "test_negative_timeout_raises_exception": "a negative timeout is no time at all for multiprocessing's queues",
}
try:
    socket.getaddrinfo("localhost", 0)
except OSError:  # no /etc/hosts, as in a new root of debootstrap
    for listens in ("test_pickling", "test_wait_socket", "test_wait_socket_slow"):
        CANNOT_APPLY[listens] = "this machine does not know the name localhost"

#: Its pools start workers while threads of the pool run.
REPLACED_WORKERS = "WithProcessesTestPoolWorkerLifetime"

#: Seconds after which a hanging test ends its run, and the stacks of all threads are printed.
HANGS_AFTER = 300


class Queue(shmtree.JoinableQueue):
    """Adds the attributes of `queue.Queue` that its tests use and multiprocessing lacks.

    The tests derive the order from the class's name.
    """

    maxsize: int
    is_shutdown = False

    def shutdown(self, immediate: bool = False) -> None:
        super().shutdown(immediate)
        self.is_shutdown = True

    @property
    def unfinished_tasks(self) -> int:
        return int(self.stats()["unfinished"])


class TestThreads(test_queue.BaseQueueTestMixin, unittest.TestCase):
    """Attributes that the tests of `queue` need for each kind of queue."""

    queue = queue

    def type2test(self, maxsize: int = 0) -> Queue:
        made = Queue(maxsize)
        made.maxsize = maxsize
        return made


def classes() -> list[str]:
    """Returns the classes of the queues and connections that the tests get."""
    found = [multiprocessing.Queue(), multiprocessing.get_context("spawn").Queue(), multiprocessing.SimpleQueue()]
    found += [_test_multiprocessing.ProcessesMixin.Queue(), _test_multiprocessing.multiprocessing.JoinableQueue()]
    found += [_test_multiprocessing.ProcessesMixin.Pipe()[0], multiprocessing.get_context("spawn").Pipe()[1]]
    return [f"{type(each).__module__}.{type(each).__name__}" for each in found]


class TestSubstitution(unittest.TestCase):
    """Checks that the tests get shmtree's classes, in this process and in children."""

    def check(self, found: list[str]) -> None:
        queues = ["Queue", "Queue", "SimpleQueue", "Queue", "JoinableQueue"]
        module, pipes = ("shmtree._run.queues", "shmtree._run.pipes") if BELOW_RUN else ("shmtree", "shmtree._ipc.pipe")
        assert found == [f"{module}.{name}" for name in queues] + [f"{pipes}.Connection"] * 2

    def test_here(self) -> None:
        self.check(classes())

    def test_in_children(self) -> None:
        with multiprocessing.Pool(1) as pool:
            self.check(pool.apply(classes))


def tests_of(run: str) -> Iterator[unittest.TestCase]:
    load = unittest.defaultTestLoader
    if run == "threads":
        from test import test_logging  # imported here, because children do not need it

        assert BELOW_RUN or test_logging.multiprocessing is shmtree.multiprocessing
        yield from load.loadTestsFromTestCase(TestThreads)
        yield from load.loadTestsFromTestCase(test_logging.QueueListenerTest)
    else:
        for name in ["TestSubstitution", *PROCESS_TESTS]:
            yield from load.loadTestsFromName(name, sys.modules[__name__])


def name_of(test: unittest.TestCase) -> str:
    return f"{type(test).__name__}.{test._testMethodName}"


class Report(unittest.TestResult):
    """Writes each result at once, so that a test that hangs does not lose the results of others."""

    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self._file = file

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        faulthandler.cancel_dump_traceback_later()
        wrong = "\n".join(text for _, text in self.failures + self.errors)
        skipped = "\n".join(text for _, text in self.skipped)
        self._file.write(json.dumps({"test": name_of(test), "wrong": wrong, "skipped": skipped}) + "\n")
        self._file.flush()
        for each in (self.failures, self.errors, self.skipped):
            each.clear()


def run_tests(run: str, report: str, *names: str) -> None:
    chosen = [test for test in tests_of(run) if not names or name_of(test) in names]
    with open(report, "a") as file:
        result = Report(file)
        unittest.TestSuite(chosen).run(result)
    faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)  # for a hang while the interpreter exits
    for _, text in result.errors + result.skipped:  # from the setup of a class or of the whole module
        print(text, file=sys.stderr)


def list_tests() -> None:
    for run in [*START_METHODS, "threads"]:
        for test in tests_of(run):
            print(run, name_of(test))


def install() -> None:
    """Adds the test classes to this module, where child processes look them up too."""
    method = next((each for each in sys.argv[2:3] if each in START_METHODS), None)
    _test_multiprocessing.PRELOAD[:] = ["cpython_queues"]
    _test_multiprocessing.install_tests_in_module_dict(globals(), method)
    if method == "fork" and forks.WITHOUT_GIL:
        globals()[REPLACED_WORKERS] = unittest.skip(forks.NOT_BESIDE_THREADS)(globals()[REPLACED_WORKERS])
    for each in list(globals().values()):
        for name, why in CANNOT_APPLY.items():
            if isinstance(each, type) and hasattr(each, name):
                setattr(each, name, unittest.skip(why)(getattr(each, name)))


install()

if __name__ == "__main__":
    commands: dict[str, Any] = {"list": list_tests, "run": run_tests}
    commands[sys.argv[1]](*sys.argv[2:])
