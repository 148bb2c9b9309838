"""Kills producers and consumers at random moments, and checks all other processes.

    python tests/chaos.py --seconds 60 --method spawn --seed 7

There are three channels: a pair, a pair with receivers that take and acknowledge, and a queue. On each channel, one
producer and one consumer run from the beginning to the end. All other processes are killed in put, in get, while they
hold views and while they start, and are replaced. Each process logs what it does in files outside of shmtree. The
checks at the end compare these logs:

- no survivor waits long for its next message or for space, and calls with a timeout return in time;
- each message arrives exactly once, unless its receiver was killed; messages that were taken always arrive;
- no byte is wrong, even in views that are held for long, and the messages of a sender keep their order;
- shared memory, descriptors and memory of the processes return to their initial levels.

A loaded machine delays all processes. To measure by how much, a clock process on each processor alternates between
sleeping and a little work. A delay of a survivor is excused if the machine caused it, unless it is out of all
proportion.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing as mp
import os
import queue
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from chaos_processes import (
    EVENT,
    GETTING,
    PHASES,
    PUTTING,
    RECORD,
    STARTING,
    WORKING,
    Board,
    Life,
    Machine,
    consume,
    descriptors,
    produce,
    record,
    run_clock,
)

import shmtree

sys.path.append(str(Path(__file__).parent / "python" / "support"))

from shared_state import violated

CHANNELS = ("pair", "take", "queue")
EVENTS = ("put", "get", "put with a timeout", "get with a timeout")
BUDGET = 64 << 20
MAX_CLOCKS = 8


class Chaos:
    """Processes of several kinds. Of each kind one survives, and the others are killed and replaced."""

    events = EVENTS

    def __init__(self, options: argparse.Namespace, directory: str) -> None:
        self.options = options
        self.board = Board(directory)
        self.random = random.Random(options.seed)
        self.context = mp.get_context(options.method)
        self.arena = shmtree.Arena(BUDGET)
        self.ends: dict[str, tuple[Any, Any]] = {}
        self.lives: list[tuple[str, bool]] = []  # channel (or kind of process), consumes
        self.victims: dict[int, Any] = {}
        self.survivors: dict[int, Any] = {}
        self.unreaped: list[Any] = []
        self.clocks: list[Any] = []
        self.processors = sorted(os.sched_getaffinity(0))[:MAX_CLOCKS]
        self.kills = dict.fromkeys((*PHASES, "holding views", "after a stop"), 0)
        self.stops = 0
        self.killed: set[int] = set()

    def run(self) -> bool:
        if self.options.method != "fork":  # allocates what the first start of a process allocates for good
            self.reap(self._process(Board))
        began_with = descriptors()
        self.make_ends()
        for processor in self.processors:
            self.clocks.append(self._process(run_clock, processor))
        for name, consumes, count in self.processes():
            for i in range(1 + count):
                self.start(name, consumes, survives=i == 0)
        ends_s = time.monotonic() + self.options.seconds
        while time.monotonic() < ends_s and not self.board.failures():
            self.kill_one()
        self.finish()
        return self.judge(began_with)

    def make_ends(self) -> None:
        for name in CHANNELS:
            capacity = self.random.choice((1, 3, 8, 64))
            if name == "queue":
                both = self.arena.Queue(capacity)
                self.ends[name] = both, both
            else:
                self.ends[name] = self.arena.create_pair(capacity)

    def processes(self) -> Iterator[tuple[str, bool, int]]:
        """Yields each kind of process: name, True if it consumes, number of processes that may be killed."""
        for name in CHANNELS:
            yield name, True, self.options.consumers
            yield name, False, self.options.producers

    def _process(self, function: Any, *arguments: Any) -> Any:
        process = self.context.Process(target=function, args=(str(self.board.directory), *arguments), daemon=True)
        process.start()
        return process

    def start(self, name: str, consumes: bool, survives: bool = False) -> None:
        number = len(self.lives)
        self.lives.append((name, consumes))
        process = self.begin(name, consumes, number, self.options.seed, survives)
        (self.survivors if survives else self.victims)[number] = process

    def begin(self, name: str, consumes: bool, *common: Any) -> Any:
        if consumes:
            return self._process(consume, *common, self.ends[name][1], name == "take")
        return self._process(produce, *common, self.ends[name][0])

    def kill_one(self) -> None:
        if not self.victims:
            return time.sleep(0.05)
        phase = self.board.lives["phase"]
        # Usually kills a process inside a call. Sometimes picks one that may not have started its work yet.
        working = [number for number in self.victims if phase[number] != STARTING]
        if self.random.random() < 0.02:
            working = list(self.victims)
        if not working:
            return time.sleep(0.02)
        number = self.random.choice(working)
        process = self.victims.pop(number)
        time.sleep(self.random.random() * 0.03)
        wanted = self.random.choice((None, PUTTING, GETTING, WORKING))
        for _ in range(5_000):
            if wanted is None or phase[number] == wanted:
                break
        if self.random.random() < 0.15:
            self.stops += 1
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(self.random.random() * 0.1)
            if self.random.random() < 0.5:
                os.kill(process.pid, signal.SIGCONT)
                self.victims[number] = process
                return None
            self.kills["after a stop"] += 1
        os.kill(process.pid, signal.SIGKILL)
        self.killed.add(number)
        self.kills[PHASES[phase[number]]] += 1
        self.kills["holding views"] += bool(self.board.lives["held"][number])
        self.unreaped.append(process)
        if len(self.unreaped) > 3:  # leave a few zombies: recovery must work before they are reaped
            self.reap(self.unreaped.pop(0), expected=-signal.SIGKILL)
        self.start(*self.lives[number])
        return None

    def reap(self, process: Any, expected: int = 0) -> None:
        process.join(60)
        if process.exitcode != expected:
            self.board.fail(f"a process exited with {process.exitcode}, not {expected}")
            process.kill()
            process.join()
        process.close()

    def finish(self) -> None:
        # Stop the producers first. When all messages are put, stop the consumers.
        for consumes in (False, True):
            self.board.stop[int(consumes)] = 1
            for group in (self.survivors, self.victims):
                for number in [number for number in group if self.lives[number][1] == consumes]:
                    self.reap(group.pop(number))
        for process in self.unreaped:
            self.reap(process, -signal.SIGKILL)
        for clock in self.clocks:
            clock.kill()
            self.reap(clock, -signal.SIGKILL)
        self.unreaped.clear()

    def drain(self, name: str) -> None:
        """Receives the messages that the killed processes returned or left in the channel."""
        number = len(self.lives)
        self.lives.append((name, True))
        life = Life(str(self.board.directory), number, self.options.seed, survives=False)
        receiver = self.ends[name][1]
        while True:
            try:
                if name == "take":
                    with receiver.take(block=False) as delivery:
                        record(life, delivery.item, delivery.redelivered)
                else:
                    record(life, receiver.get_nowait())
            except (queue.Empty, shmtree.ChannelClosed, shmtree.PeerDied):  # the last sender of a pair has closed
                break
        os.close(life.messages)
        os.close(life.events)

    # ------------------------------------------------------------------------------------------------ judging

    def judge(self, began_with: int) -> bool:
        self.judge_messages()
        self.judge_waits()
        self.judge_leaks(began_with)
        parts = [f"{count} {phase}" for phase, count in self.kills.items() if count]
        print(f"killed {len(self.killed)}: {', '.join(parts)}; stopped {self.stops}")
        failures = self.board.failures()
        print("\n".join(failures) if failures else "no errors")
        return not failures

    def judge_messages(self) -> None:
        for name in CHANNELS:
            self.drain(name)
        begun, done = self.board.lives["begun"], self.board.lives["done"]
        for name in CHANNELS:
            mine = [number for number, (channel, _) in enumerate(self.lives) if channel == name]
            logs = [self.board.read(f"messages {number}", RECORD) for number in mine if self.lives[number][1]]
            for log in logs:
                self.judge_order(name, log[log["again"] == 0])
            got = np.concatenate(logs)
            keys = got["life"].astype("i8") << 40 | got["number"]
            if np.any(got["number"] >= begun[got["life"]]):
                self.board.fail(f"{name}: a message arrived that no process had put")
            first = keys[got["again"] == 0]
            if len(np.unique(first)) != len(first) or (name != "take" and len(first) != len(keys)):
                self.board.fail(f"{name}: {len(first) - len(np.unique(first))} messages arrived twice")
            arrived = set(keys.tolist())
            put = sum(int(done[number]) for number in mine)
            lost = sum(
                key not in arrived for number in mine for key in range(number << 40, (number << 40) + int(done[number]))
            )
            # A killed receiver loses the message that it was receiving. Messages that were only taken are never lost.
            most = sum(int(self.board.lives["in_hand"][number]) for number in self.killed if number in mine)
            most = 0 if name == "take" else most
            again = len(keys) - len(arrived)
            print(f"{name}: {put} put, {len(arrived)} arrived, {again} again, {lost} lost of at most {most}")
            if lost > most:
                self.board.fail(f"{name}: {lost} messages are lost, only {most} can be with their receivers")

    def judge_order(self, name: str, log: Any) -> None:
        if name == "take":  # messages are acknowledged in any order
            return
        for life in np.unique(log["life"]):
            if np.any(np.diff(log["number"][log["life"] == life]) <= 0):
                self.board.fail(f"{name}: messages of process {life} arrived out of order")

    def judge_waits(self) -> None:
        machine = Machine(self.board, self.processors)
        events = np.concatenate([self.board.read(f"events {number}", EVENT) for number in range(len(self.lives))])
        for kind, what in enumerate(self.events):
            limit_s = self.options.stall if kind < 2 else self.options.late
            mine = events[events["kind"] == kind]
            took = mine["ended"] - mine["began"]
            over = mine[took > limit_s]
            excused = sum(machine.is_to_blame(event, limit_s) for event in over)
            longest = f"{1000 * took.max():.0f} ms" if len(mine) else f"under {50 if kind < 2 else 10} ms"
            print(f"{what}: {'late by at most' if kind > 1 else 'waited at most'} {longest}", end="")
            print(f"; {len(over)} over {1000 * limit_s:.0f} ms, {excused} of them the machine's" if len(over) else "")
            for event in over:
                if not machine.is_to_blame(event, limit_s):
                    share = machine.share(event["began"], event["ended"])
                    took_s = event["ended"] - event["began"]
                    self.board.fail(f"{what}: {took_s:.3f} s, {event['ready']:.3f} s of them ready, share {share:.2f}")
        print(f"the machine gave {100 * machine.overall():.0f} % of what was asked of it")

    def judge_leaks(self, began_with: int) -> None:
        self.judge_arena()
        grown = self.board.read("growth", np.dtype("<i8"))
        print(f"the survivors grew by {max(grown, default=0) / 1e6:.1f} MB at most")
        if len(grown) and max(grown) > 16 << 20:
            self.board.fail(f"a survivor grew by {max(grown)} bytes")
        if descriptors() != began_with:
            self.board.fail(f"{descriptors() - began_with} more descriptors are open than at the start")

    def judge_arena(self) -> None:
        self.arena.stats()  # stats() runs recovery
        used = self.arena.stats()["used_bytes"]
        self.ends.clear()
        gc.collect()
        self.arena.trim()
        after = self.arena.stats()
        pages = os.fstat(self.arena._core.fd).st_blocks * 512
        wrong = violated(self.arena)
        print(f"left: {after['used_bytes']} bytes used (with the channels {used}), {after['blocks']} blocks, ", end="")
        print(f"{after['participants']} participants, {pages >> 10} KiB of tables", end="")
        print(f"; {after['reconciles']} reconciles")
        if wrong or after["used_bytes"] or after["blocks"] or after["committed_bytes"] or after["participants"] != 1:
            self.board.fail(f"the arena is left with {after} {wrong}")
        if pages > 8 << 20:
            self.board.fail(f"the arena is left with {pages} bytes of tables")


def parser_of(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="how long processes are killed (default 10)")
    parser.add_argument("--seed", type=int, default=None, help="seed of all random choices (default: a new one)")
    parser.add_argument("--method", choices=("fork", "spawn", "forkserver"), default="fork", help="how they start")
    parser.add_argument("--stall", type=float, default=0.5, help="longest wait of a survivor, in seconds")
    parser.add_argument("--late", type=float, default=0.05, help="latest return after a timeout, in seconds")
    return parser


def run(parser: argparse.ArgumentParser, kind: type[Chaos]) -> int:
    options = parser.parse_args()
    if options.seed is None:
        options.seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed {options.seed}, {options.method}, {options.seconds:g} s", flush=True)
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        return 0 if kind(options, directory).run() else 1


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--producers", type=int, default=1, help="producers of each channel that are killed (default 1)"
    )
    parser.add_argument(
        "--consumers", type=int, default=1, help="consumers of each channel that are killed (default 1)"
    )
    return run(parser, Chaos)


if __name__ == "__main__":
    sys.exit(main())
