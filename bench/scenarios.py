"""Runs each kind of workload for one competitor, in a new process.

A scenario is prepared once: it creates the channel and the processes, checks the received messages, and chooses the
number of messages per run. Then it runs several times, and measures details last. It returns plain numbers;
`bench.report` formats them.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from bench import processes, roles
from bench.competitors import Base, Unsupported
from bench.workloads import Workload

_FORK = multiprocessing.get_context("fork")
MAX_MESSAGES = 2_000_000


class Worker:
    """A process with a role, and the pipe for its orders."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.conn, theirs = _FORK.Pipe()
        self.process = _FORK.Process(target=_serve, args=(self.conn, theirs, make))
        self.process.start()
        theirs.close()
        self.answers: list[Any] = []

    def order(self, *order: Any) -> None:
        self.conn.send(order)

    def poll(self, timeout: float = 0) -> bool:
        """Returns true if there is an answer. Raises the worker's error."""
        if not self.answers and self.conn.poll(timeout):
            try:
                kind, value = self.conn.recv()
            except EOFError:
                raise RuntimeError("a worker process ended unexpectedly") from None
            if kind == "error":
                raise RuntimeError(value)
            self.answers.append(value)
        return bool(self.answers)


def _serve(ours: Connection, theirs: Connection, make: Callable[[], Any]) -> None:
    ours.close()
    processes.end_with_parent()
    roles.serve(theirs, make)


class Scenario:
    """Base class: one or more channels, and workers in their own processes."""

    def __init__(self, competitor: type[Base], workload: Workload, message: Any, seconds: float) -> None:
        self.workload, self.message, self.seconds = workload, message, seconds
        self.competitor = competitor
        self.channels: list[Base] = []
        self.workers: list[Worker] = []
        self.count = 1

    def channel(self) -> Base:
        channel = self.competitor(self.workload.capacity, self.workload.nbytes, self.workload.type)
        self.channels.append(channel)
        return channel

    def worker(self, make: Callable[[], Any]) -> Worker:
        worker = Worker(make)
        self.workers.append(worker)
        return worker

    def prepare(self) -> dict[str, Any]:
        raise NotImplementedError

    def run(self) -> dict[str, Any]:
        raise NotImplementedError

    def detail(self) -> dict[str, Any]:
        return {}

    def answer(self, worker: Worker) -> Any:
        """Waits for the worker's answer. Raises an error of any other worker, after which no answer may ever come."""
        while not worker.poll(0.05):
            for other in self.workers:
                other.poll()
        return worker.answers.pop(0)

    def close(self) -> None:
        for worker in self.workers:
            worker.conn.send(())
        for worker in self.workers:
            self.answer(worker)
        for worker in self.workers:
            worker.process.join()
        for channel in self.channels:
            channel.close()

    def tree(self) -> list[int]:
        """Returns the processes that CPU time and memory include."""
        servers = self.competitor.servers
        return processes.descendants(os.getpid(), *servers) + servers

    def wait_ready(self) -> None:
        for worker in self.workers:
            self.answer(worker)

    def calibrate(self) -> None:
        """Finds the number of messages for a run of the wanted length. Small messages need two long enough runs."""
        slow, enough = 0, 2 if self.workload.nbytes < 1_000_000 else 1
        while slow < enough and self.count < MAX_MESSAGES:
            passed = self.run()["seconds"]
            if passed >= self.seconds / 2:
                slow += 1
                continue
            slow = 0
            wanted = round(self.count * self.seconds / max(passed, 1e-9))
            self.count = min(max(2 * self.count, wanted), 16 * self.count, MAX_MESSAGES)


class Stream(Scenario):
    """Producers put, and consumers get, as fast as they can."""

    def prepare(self) -> dict[str, Any]:
        workload = self.workload
        if max(workload.producers, workload.consumers) > 1 and not self.competitor.is_shared:
            raise Unsupported("one producer and one consumer only")
        copies = self.competitor.copies_of(workload.type)
        needed = (copies - 1) * workload.nbytes  # the producer's copy exists already
        if needed > (available := 0.9 * processes.available_bytes()):
            raise Unsupported(f"needs {needed / 1e9:.0f} GB of memory, {available / 1e9:.0f} are free")
        channel = self.channel()
        produce = partial(roles.Producer, channel, workload, self.message)
        consume = partial(roles.Consumer, channel, workload, self.message)
        self.producers = [self.worker(produce) for _ in range(workload.producers)]
        self.consumers = [self.worker(consume) for _ in range(workload.consumers)]
        self.wait_ready()
        self.baseline = processes.resident_bytes(self.tree())
        first_ms = self.check()
        if first_ms < 1000 * self.seconds:
            self.calibrate()
        return {"first_ms": first_ms}

    def check(self) -> float:
        """Sends different messages and compares each. Returns the milliseconds from the first put to its arrival."""
        if len(self.producers) > 1 or len(self.consumers) > 1:
            self.count = 4 * len(self.producers) * len(self.consumers)
            self.run()
            return 0.0
        n = max(1, min(100, 64_000_000 // max(1, self.workload.nbytes)))
        self.producers[0].order("varied", n)
        self.consumers[0].order("varied", n)
        started = self.answer(self.producers[0])
        arrived, wrong = self.answer(self.consumers[0])
        if wrong:
            raise RuntimeError(f"{len(wrong)} of {n} messages differ from those sent; the first is number {wrong[0]}")
        return float(arrived - started) / 1e6

    def shares(self, workers: list[Worker]) -> list[int]:
        share, rest = divmod(self.count, len(workers))
        return [share + (i < rest) for i in range(len(workers))]

    def run(self) -> dict[str, Any]:
        self.count = max(self.count, len(self.producers), len(self.consumers))
        tree = self.tree()
        cpu = processes.cpu_seconds(tree)
        for consumer, n in zip(self.consumers, self.shares(self.consumers)):
            consumer.order("same", n)
        for producer, n in zip(self.producers, self.shares(self.producers)):
            producer.order(self.workload.put_order, n)
        peak = self.watch_memory(tree)
        puts = [self.answer(producer) for producer in self.producers]
        gets = [self.answer(consumer) for consumer in self.consumers]
        cpu = processes.cpu_seconds(tree) - cpu
        if not all(right for _, _, right in gets):
            raise RuntimeError("the last message differs from the one that was sent")
        began = min(started for started, _ in puts)
        spans = [(last - began) / 1e9 for _, last, _ in gets]
        return {
            "seconds": max(spans),
            "items_per_s": self.count / max(spans),
            "cpu_us_per_item": cpu / self.count * 1e6,
            "peak_mb": max(0, peak - self.baseline) / 1e6,
            "fairness": min(spans) / max(spans),
        }

    def watch_memory(self, tree: list[int]) -> int:
        """Returns the peak resident memory until the last consumer is done.

        Samples 50 times a second, at 10 us each.
        """
        peak = processes.resident_bytes(tree)
        while not self.consumers[-1].poll(0.02):
            peak = max(peak, processes.resident_bytes(tree))
            for worker in self.workers:
                worker.poll()
        return peak

    def detail(self) -> dict[str, Any]:
        """Measures how long each put and each get takes while the channel is busy."""
        if len(self.producers) > 1 or len(self.consumers) > 1 or self.workload.is_huge:
            return {}
        n = max(3, min(self.count // 2, 5000))
        self.consumers[0].order("stamped", n)
        self.producers[0].order("stamped", n, 0)
        puts, gets = self.answer(self.producers[0]), self.answer(self.consumers[0])
        return {"put_us": spread(durations(puts)), "get_us": spread(durations(gets))}


class Forward(Stream):
    """Three processes in a row: the second one forwards each message to the third."""

    def prepare(self) -> dict[str, Any]:
        workload = self.workload
        first, second = self.channel(), self.channel()
        self.producers = [self.worker(partial(roles.Producer, first, workload, self.message))]
        self.middle = self.worker(partial(roles.Forwarder, first, second))
        self.consumers = [self.worker(partial(roles.Consumer, second, workload, self.message))]
        self.wait_ready()
        self.baseline = processes.resident_bytes(self.tree())
        self.middle.order("same", n := 2)
        self.producers[0].order("varied", n)
        self.consumers[0].order("varied", n)
        self.answer(self.producers[0])
        _, wrong = self.answer(self.consumers[0])
        self.answer(self.middle)
        if wrong:
            raise RuntimeError(f"{len(wrong)} of {n} messages differ from those sent")
        self.calibrate()
        return {}

    def run(self) -> dict[str, Any]:
        self.middle.order("same", self.count)
        result = super().run()
        self.answer(self.middle)
        return result

    def detail(self) -> dict[str, Any]:
        self.middle.order("stamped", n := max(3, min(self.count // 2, 2000)))
        self.consumers[0].order("stamped", n)
        self.producers[0].order("stamped", n, 0)
        self.answer(self.producers[0])
        self.answer(self.consumers[0])
        return {"put_us": spread(durations(self.answer(self.middle)))}


class Deep(Stream):
    """Puts all messages before the first get."""

    def prepare(self) -> dict[str, Any]:
        if not self.competitor.is_deep:
            raise Unsupported("cannot hold that many")
        return super().prepare()

    def calibrate(self) -> None:
        self.count = self.workload.capacity

    def run(self) -> dict[str, Any]:
        producer, consumer = self.producers[0], self.consumers[0]
        producer.order("same", self.count)
        put_began, put_ended = self.answer(producer)
        consumer.order("same", self.count)
        first, last, right = self.answer(consumer)
        if not right:
            raise RuntimeError("the last message differs from the one that was sent")
        seconds = (put_ended - put_began + last - first) / 1e9
        return {
            "seconds": seconds,
            "items_per_s": self.count / seconds,
            "put_per_s": self.count / (put_ended - put_began) * 1e9,
            "get_per_s": self.count / max(1, last - first) * 1e9,
        }

    def detail(self) -> dict[str, Any]:
        return {}


def durations(times: list[tuple[int, int]]) -> list[float]:
    return [(after - before) / 1e3 for before, after in times]


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)

    def at(part: float) -> float:
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))]

    return {
        "mean": statistics.fmean(ordered),
        "p50": at(0.5),
        "p90": at(0.9),
        "p95": at(0.95),
        "p99": at(0.99),
        "p99.9": at(0.999),
        "max": ordered[-1],
    }
