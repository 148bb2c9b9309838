"""Searches for messages that crash the Python bindings. Uses the outcomes of reading instead of code coverage.

    python tests/fuzz/bindings.py TARGET... (--seconds N | --runs N | --replay FILE...)
        [--seed N] [--found FOLDER] [--max-mib N] [--max-ms N]

A target reads messages in one way:

    unpack:    `shmtree.unpack` without pickles, as views and as copies, and the text of the result
    describe:  `shmtree.describe`
    channel:   `get` and `take` of a channel that refuses pickles: also device memory and ends
    service:   `Service.get`, and the reply to a request

For the last two targets, the program changes each message in shared memory after the put, as another process could.
Four of ten executions read a new frame. In some of these, each node has the parts that its kind requires, but with
numbers and names that no sender writes. Others have device memory, ends or the header of a request, with a few odd
parts. The other executions damage a few values of a seed, or of an earlier frame with a new outcome.

An execution may return, or raise an exception that a damaged message may cause. The program prints the number of
executions, and the largest CPU time and growth of resident memory of one execution. It stops with an error if an
execution raises another exception, grows the memory by more than --max-mib (64), or takes longer than --max-ms
(default: no limit). It also stops if 1,000 executions take more than 10 minutes. FOLDER/bindings-TARGET-last has the
input of the last execution, also after a crash.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import mmap
import os
import pathlib
import random
import re
import resource
import signal
import sys
import time
import traceback
import warnings
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "python" / "support"))
from bindings_frames import Damage, Grow
from bindings_targets import MIB, TARGETS


class Peak:
    """Measures the growth of the resident memory, with the kernel's counter of its peak."""

    def __init__(self) -> None:
        self._fd = os.open("/proc/self/clear_refs", os.O_WRONLY)

    def begin(self) -> int:
        os.pwrite(self._fd, b"5", 0)
        return self.now()

    @staticmethod
    def now() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Last:
    """Keeps the current input in a file, for after a crash."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w+b") as file:
            file.truncate(MIB)
            self._memory = mmap.mmap(file.fileno(), MIB)

    def write(self, frame: bytes) -> None:
        self._memory[: len(frame) + 8] = len(frame).to_bytes(8, "little") + frame


def read_input(path: pathlib.Path) -> bytes:
    """Returns the frame in a file: as it is, or as `Last` wrote it."""
    contents = path.read_bytes()
    if contents[:4] == b"SHMT" or len(contents) != MIB:
        return contents
    return contents[8 : 8 + int.from_bytes(contents[:8], "little")]


def outcome_of(error: Exception) -> str:
    """Returns the kind of an error, and the first sentence of its text without numbers and names."""
    sentence = re.split(r"It is at|\. | needs ", str(error))[0]
    return type(error).__name__ + re.sub(r"'[^']*'|\"[^\"]*\"|[0-9]+", "", sentence)[:80]


class Unexpected(Exception):
    """An execution did what no message may cause."""


class Search:
    """Executions of one target, with their worst costs."""

    def __init__(self, name: str, seed: int, found: pathlib.Path, max_mib: float, max_ms: float | None) -> None:
        self._generator = random.Random(seed)
        self._damage = Damage(self._generator)
        self._grow = Grow(self._generator)
        self._target = TARGETS[name]()
        self._name = name
        self._peak = Peak()
        self._last = Last(found / f"bindings-{name}-last")
        self._max_kib = max_mib * 1024
        self._max_ms = max_ms
        self._frames = list(self._target.frames())
        self._registered = list(self._target.registered())
        self._seeds = len(self._frames)
        self._outcomes: set[Any] = set()
        self.runs = 0
        self.read = 0
        self.worst_ms = 0.0
        self.worst_kib = 0

    def run(self, runs: int | None, seconds: float | None) -> None:
        for frame in list(self._frames):
            self.execute(frame)
        end = None if seconds is None else time.monotonic() + seconds
        while (runs is None or self.runs < runs) and (end is None or time.monotonic() < end):
            faulthandler.dump_traceback_later(600, exit=True)
            for _ in range(1000 if runs is None else min(1000, runs - self.runs)):
                frame = self._next_frame()
                if self.execute(frame) and len(frame) < 16384:
                    self._keep(frame)
        faulthandler.cancel_dump_traceback_later()

    def _next_frame(self) -> bytes:
        chosen = self._generator.random()
        if chosen < 0.15 and self._registered:
            name, parts = self._generator.choice(self._registered)
            return self._grow.registered(name, parts, self._target.has_header)
        if chosen < 0.4:
            return self._grow.frame(self._target.has_header)
        return self._damage.damaged(self._generator.choice(self._frames))

    def _keep(self, frame: bytes) -> None:
        if len(self._frames) < 3000:
            self._frames.append(frame)
        else:
            self._frames[self._generator.randrange(self._seeds, 3000)] = frame

    def execute(self, frame: bytes) -> bool:
        """Reads one frame. Returns True if no earlier execution had this outcome."""
        self._last.write(frame)
        self._target.put(frame)
        before_kib = self._peak.begin()
        began = time.thread_time_ns()
        try:
            outcome = self._target.read()
            self.read += 1
        except self._target.refusals as error:
            outcome = outcome_of(error)
        ms = (time.thread_time_ns() - began) / 1e6
        kib = self._peak.now() - before_kib
        self.runs += 1
        self.worst_ms = max(self.worst_ms, ms)
        self.worst_kib = max(self.worst_kib, kib)
        if kib > self._max_kib or (self._max_ms is not None and ms > self._max_ms):
            raise Unexpected(f"too costly: {ms:.1f} ms, {kib} KiB")
        if outcome in self._outcomes:
            return False
        self._outcomes.add(outcome)
        return True

    @property
    def input_path(self) -> pathlib.Path:
        return self._last.path

    def report(self) -> str:
        return (
            f"{self.runs} runs, {self.read} of them read a value, {len(self._outcomes)} outcomes, "
            f"worst: {self.worst_ms:.1f} ms, {self.worst_kib} KiB"
        )


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("targets", choices=TARGETS, nargs="+", metavar="TARGET")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--seconds", type=float, help="for each target")
    length.add_argument("--runs", type=int, help="of each target")
    length.add_argument("--replay", type=pathlib.Path, nargs="+", metavar="FILE")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--found", type=pathlib.Path, default=pathlib.Path("build/fuzz/found"))
    parser.add_argument("--max-mib", type=float, default=64.0)
    parser.add_argument("--max-ms", type=float)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401  # so that frames with tensors make tensors
    faulthandler.enable()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    warnings.simplefilter("ignore")
    for target in options.targets:
        search = Search(target, options.seed, options.found, options.max_mib, options.max_ms)
        try:
            if options.replay:
                for path in options.replay:
                    search.execute(read_input(path))
            else:
                search.run(options.runs, options.seconds)
        except KeyboardInterrupt:
            print(f"{target}: interrupted after {search.report()}, seed {options.seed}", flush=True)
            return 130
        except Exception:
            traceback.print_exc()
            print(f"{target}: seed {options.seed}, input in {search.input_path}", file=sys.stderr)
            return 1
        print(f"{target}: {search.report()}, seed {options.seed}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
