"""The processes of chaos.py and their logs, in a module of their own that spawned processes can import."""

from __future__ import annotations

import contextlib
import os
import queue
import random
import struct
import time
import traceback
import zlib
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

STARTING, WORKING, PUTTING, GETTING, ENDED = range(5)
PHASES = ("starting", "working", "putting", "getting", "ended")
MAX_LIVES = 1 << 16
LIFE = np.dtype([(name, "i8") for name in ("phase", "begun", "done", "in_hand", "held", "descriptors", "memory")])
RECORD = np.dtype([("life", "<i4"), ("again", "<i4"), ("number", "<i8")])
EVENT = np.dtype([("kind", "<i8"), ("began", "<f8"), ("ended", "<f8"), ("ready", "<f8")])
CLOCK_S = 0.005


class Board:
    """State and logs that the processes share, in files that survive a kill."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)
        self.lives = self._mapped("lives", LIFE, MAX_LIVES)
        self.stop = self._mapped("stop", np.dtype("i8"), 2)  # stop flags of producers and consumers

    def _mapped(self, name: str, dtype: np.dtype[Any], count: int) -> Any:
        path = self.directory / name
        with path.open("a+b") as file:
            file.truncate(dtype.itemsize * count)
        return np.memmap(path, dtype, "r+", shape=(count,))

    def log(self, name: str) -> int:
        return os.open(self.directory / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def read(self, name: str, dtype: np.dtype[Any]) -> Any:
        path = self.directory / name
        whole = path.stat().st_size // dtype.itemsize if path.exists() else 0
        return np.fromfile(path, dtype, whole) if whole else np.empty(0, dtype)

    def fail(self, text: str) -> None:
        with (self.directory / "failures").open("a") as file:
            file.write(text + "\n")

    def failures(self) -> list[str]:
        path = self.directory / "failures"
        return path.read_text().splitlines() if path.exists() else []


def ready_ns() -> int:
    """Returns the total time that this process was ready to run but did not run."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    except (OSError, IndexError):
        return 0


def anonymous_bytes() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


def descriptors() -> int:
    """Returns the number of open descriptors, except that of memory claims, which a process opens once."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the list itself
            count += not os.readlink(f"/proc/self/fd/{number}").endswith("/.claims")
    return count


class Life:
    """One process, from start to exit."""

    def __init__(self, directory: str, number: int, seed: int, survives: bool) -> None:
        self.board = Board(directory)
        self.number = number
        self.random = random.Random(f"{seed} {number}")
        self.survives = survives
        self.phase = self.board.lives["phase"]
        self.messages = self.board.log(f"messages {number}")
        self.events = self.board.log(f"events {number}")
        self.pause_s = self.random.choice((0.0, 0.0005, 0.002))
        self._waits_since: tuple[float, int] | None = None
        self._count = 0

    def note(self, field: str, value: int) -> None:
        self.board.lives[field][self.number] = value

    def call(self, phase: int, timeout: float, function: Any, *arguments: Any) -> Any:
        """Makes a call with a timeout, and logs an event if it returns late."""
        was_ready, began = ready_ns(), time.monotonic()
        if self._waits_since is None:
            self._waits_since = began, was_ready
        self.phase[self.number] = phase
        try:
            return function(*arguments, timeout=timeout)
        finally:
            self.phase[self.number] = WORKING
            ended = time.monotonic()
            if ended - began - timeout > 0.01:
                self._event(phase - PUTTING + 2, began + timeout, ended, was_ready)

    def went(self, phase: int) -> None:
        """Records that a message was put or received. The wait for it began with the first call that tried."""
        assert self._waits_since is not None
        began, was_ready = self._waits_since
        self._waits_since = None
        self._count += 1
        ended = time.monotonic()
        # The first message waits for other processes to start, and the last one for them to exit.
        if ended - began > 0.05 and self._count > 1 and not self.board.stop[0]:
            self._event(phase - PUTTING, began, ended, was_ready)
        if self.survives and self._count == 100:
            self.note("descriptors", descriptors())
            self.note("memory", anonymous_bytes())

    def _event(self, kind: int, began: float, ended: float, was_ready: int) -> None:
        if self.survives:
            os.write(self.events, struct.pack("<qddd", kind, began, ended, (ready_ns() - was_ready) / 1e9))

    def rest(self) -> None:
        if self.pause_s and self.random.random() < 0.3:
            time.sleep(self.random.random() * self.pause_s)

    def timeout(self) -> float:
        return self.random.choice((0.0, self.random.random() * 0.03, 0.2))

    def finish(self) -> None:
        if self.survives and self._count > 100:
            more = descriptors() - int(self.board.lives["descriptors"][self.number])
            if more:
                self.board.fail(f"process {self.number} had {more} more descriptors at its end than at its start")
            grown = anonymous_bytes() - int(self.board.lives["memory"][self.number])
            os.write(self.board.log("growth"), struct.pack("<q", grown))
        self.phase[self.number] = ENDED


def guarded(work: Any, life: Life, *arguments: Any) -> None:
    try:
        work(life, *arguments)
        life.finish()
    except BaseException:
        life.board.fail(f"process {life.number}: {traceback.format_exc()}")
        raise


# ---------------------------------------------------------------------------------------------------- producing


def make(life: Life, end: Any, number: int) -> tuple[int, int, int, Any]:
    size = life.random.choice((0, 0, 0, 1, 1, 2))
    if size == 0:
        payload: Any = life.random.randbytes(life.random.randrange(300))
        return life.number, number, zlib.crc32(payload), payload
    words = life.random.randrange(100, 2_000) if size == 1 else life.random.randrange(3_000, 40_000)
    if life.random.random() < 0.3 and hasattr(end, "new_empty"):
        payload = end.new_empty(words, "i8")  # is sent without a copy
    else:
        payload = np.empty(words, "i8")
    payload[:] = number * 1_000_003 + life.number
    payload[:: 1 + number % 7] += np.arange(len(payload[:: 1 + number % 7]))
    return life.number, number, zlib.crc32(payload), payload


def produce(directory: str, number: int, seed: int, survives: bool, end: Any) -> None:
    guarded(_produce, Life(directory, number, seed, survives), end)


def _produce(life: Life, end: Any) -> None:
    done = 0
    life.phase[life.number] = WORKING
    while not life.board.stop[0]:
        batch = [make(life, end, done + i) for i in range(life.random.choice((1, 1, 1, 1, 4)))]
        life.note("begun", done + len(batch))
        while batch:
            try:
                if len(batch) == 1:
                    life.call(PUTTING, life.timeout(), end.put, batch[0])
                    sent = 1
                else:
                    sent = life.call(PUTTING, life.timeout(), end.put_many, batch)
            except queue.Full as full:
                sent = full.sent if len(batch) > 1 else 0
            if sent:
                done += sent
                life.note("done", done)
                life.went(PUTTING)
                del batch[:sent]
            elif life.board.stop[0]:
                return
        life.rest()


# ---------------------------------------------------------------------------------------------------- consuming


class Kept:
    """Arrays that are checked again later: their contents must not change."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._short: deque[tuple[Any, int, int]] = deque()
        self._long: list[tuple[Any, int, int]] = []

    def add(self, item: tuple[int, int, int, Any]) -> None:
        _, number, crc, payload = item
        if not isinstance(payload, np.ndarray) or payload.nbytes < 20_000:
            return
        if len(self._long) < 3:
            self._long.append((payload, crc, number))
        elif self._life.random.random() < 0.5:
            self._short.append((payload, crc, number))
        if len(self._short) > 6:
            self._check(self._short.popleft())
        if self._life.random.random() < 0.02:
            self.check_all()
        self._life.note("held", len(self._short) + len(self._long))

    def check_all(self) -> None:
        for each in (*self._short, *self._long):
            self._check(each)

    def _check(self, kept: tuple[Any, int, int]) -> None:
        payload, crc, number = kept
        if zlib.crc32(payload) != crc:
            raise AssertionError(f"a view of message {number} changed while it was held")


def consume(directory: str, number: int, seed: int, survives: bool, end: Any, takes: bool) -> None:
    life = Life(directory, number, seed, survives)
    guarded(_take if takes else _get, life, end)


def record(life: Life, item: tuple[int, int, int, Any], again: bool = False) -> None:
    sender, number, crc, payload = item
    if zlib.crc32(payload) != crc:
        raise AssertionError(f"message {number} of process {sender} is torn")
    os.write(life.messages, struct.pack("<iiq", sender, again, number))


def _get(life: Life, end: Any) -> None:
    kept = Kept(life)
    life.phase[life.number] = WORKING
    while True:
        most = life.random.choice((1, 1, 1, 3))
        life.note("in_hand", most)
        try:
            if most == 1:
                items = [life.call(GETTING, life.timeout(), end.get)]
            else:
                items = life.call(GETTING, life.timeout(), end.get_many, most)
        except queue.Empty:
            if life.board.stop[1]:
                break
            continue
        for item in items:
            record(life, item)
        life.note("in_hand", 0)
        life.went(GETTING)
        for item in items:
            kept.add(item)
        del items, item
        life.rest()
    kept.check_all()


def _take(life: Life, end: Any) -> None:
    kept = Kept(life)
    taken: list[Any] = []
    life.phase[life.number] = WORKING
    while True:
        try:
            taken.append(life.call(GETTING, life.timeout(), end.take))
            life.went(GETTING)
        except queue.Empty:
            if life.board.stop[1]:
                break
        while len(taken) > life.random.choice((0, 0, 3)):
            delivery = taken.pop(life.random.randrange(len(taken)))
            if life.random.random() < 0.1:
                delivery.nack()
                continue
            record(life, delivery.item, delivery.redelivered)
            delivery.ack()
            kept.add(delivery.item)
            del delivery
        life.rest()
    kept.check_all()
    for delivery in taken:
        record(life, delivery.item, delivery.redelivered)
        delivery.ack()


# ---------------------------------------------------------------------------------------------------- the machine


def run_clock(directory: str, processor: int) -> None:
    """Alternates between sleep and work on one processor, and logs the time of each round."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {processor})
    log = Board(directory).log(f"clock {processor}")
    work = bytes(400_000)
    while True:
        time.sleep(CLOCK_S)
        zlib.crc32(work)
        os.write(log, struct.pack("<d", time.monotonic()))


class Machine:
    """Share of the processor time that the machine gave to processes that were ready to run."""

    def __init__(self, board: Board, processors: list[int]) -> None:
        self._clocks = [board.read(f"clock {processor}", np.dtype("<f8")) for processor in processors]
        self._round_s = min((np.percentile(np.diff(clock), 5) for clock in self._clocks if len(clock) > 20), default=0)

    def share(self, began: float, ended: float) -> float:
        began, ended = began - 0.05, ended + 0.05
        rounds = min(np.searchsorted(clock, ended) - np.searchsorted(clock, began) for clock in self._clocks)
        return float(rounds * self._round_s / (ended - began))

    def overall(self) -> float:
        return self.share(self._clocks[0][0], self._clocks[0][-1]) if self._round_s else 0.0

    def is_to_blame(self, event: Any, limit_s: float) -> bool:
        took = event["ended"] - event["began"]
        if took > 40 * limit_s:  # only a hang takes that long
            return False
        return took - event["ready"] <= limit_s or self.share(event["began"], event["ended"]) < 0.75
