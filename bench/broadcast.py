"""Sends the same messages to several readers: by Broadcast, a pair or standard queue per reader, ZeroMQ, vLLM's ring.

    python -m bench.broadcast [--seconds 2] [--readers 1 4 8] [--bytes 120 1000000]

Each reader is a process that reads every message and checks one number in it. The rate counts messages that reached all
readers, from the first put until the last reader reports the last message. Two rows add a faulty reader to a Broadcast.
In one, a reader that may skip is stopped. In the other, a blocking reader is killed after its first message, which the
publisher notices when the ring is full. Writes a table to stdout and the figures to bench/results/broadcast.json. Skips
packages that are not installed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import shmtree
from bench import machine, markdown, pubsub, vllm_ring

CONTEXT = multiprocessing.get_context("spawn")
CAPACITY = 64


def read(end: Any, started: Any, done: Any) -> None:
    started.put(None)
    total = 0
    while (message := end.get()) is not None:
        total += int(message["values"][-1])
    done.put(total)


def rate(ends: list[Any], put: Callable[[object], object], message: object, seconds: float) -> float:
    started, done = CONTEXT.SimpleQueue(), CONTEXT.SimpleQueue()
    readers = [CONTEXT.Process(target=read, args=(end, started, done)) for end in ends]
    for reader in readers:
        reader.start()
    for _ in readers:
        started.get()
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        put(message)
        count += 1
    put(None)
    for _ in readers:
        done.get()
    taken = time.perf_counter() - begin
    for reader in readers:
        reader.join()
    return count / taken


def read_one(end: Any, started: Any) -> None:
    end.get()
    started.put(None)
    time.sleep(1000)


@contextlib.contextmanager
def one_more(broadcast: shmtree.Broadcast, on_lag: Any, signal_number: int) -> Iterator[None]:
    """Adds a reader that reads one message and then receives the signal."""
    started = CONTEXT.SimpleQueue()
    reader = CONTEXT.Process(target=read_one, args=(broadcast.subscribe(on_lag=on_lag), started))
    reader.start()
    assert reader.pid is not None
    broadcast.put(None)
    started.get()
    os.kill(reader.pid, signal_number)
    yield
    reader.kill()
    reader.join()


def to_all(ends: list[Any]) -> Callable[[object], object]:
    return lambda message: [end.put(message) for end in ends]


def rates(readers: int, message: object, seconds: float) -> dict[str, float]:
    found = {}
    broadcast = shmtree.Broadcast(CAPACITY)
    found["shmtree.Broadcast"] = rate([broadcast.subscribe() for _ in range(readers)], broadcast.put, message, seconds)
    for name, on_lag, number in (("one more stopped", "skip", signal.SIGSTOP), ("one more killed", "block", 9)):
        broadcast = shmtree.Broadcast(CAPACITY)
        with one_more(broadcast, on_lag, number):
            ends = [broadcast.subscribe() for _ in range(readers)]
            found[f"Broadcast, {name}"] = rate(ends, broadcast.put, message, seconds)
    pairs = [shmtree.create_pair(CAPACITY) for _ in range(readers)]
    senders, receivers = [list(ends) for ends in zip(*pairs, strict=True)]
    found["a shmtree pair per reader"] = rate(receivers, to_all(senders), message, seconds)
    queues = [CONTEXT.Queue(CAPACITY) for _ in range(readers)]
    found["a multiprocessing.Queue per reader"] = rate(queues, to_all(queues), message, seconds)
    if importlib.util.find_spec("zmq"):
        publisher = pubsub.Publisher(readers)
        subscriptions = [pubsub.Subscription(publisher.address) for _ in range(readers)]
        found["ZeroMQ PUB/SUB"] = rate(subscriptions, publisher.put, message, seconds)
        publisher.close()
    if importlib.util.find_spec("vllm"):
        ring = vllm_ring.Publisher(readers)
        found["vLLM's ring"] = rate([ring.subscription(rank) for rank in range(readers)], ring.put, message, seconds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--readers", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--bytes", type=int, nargs="+", default=[120, 1_000_000])
    given = parser.parse_args()
    figures = {
        f"{nbytes} bytes, {readers} readers": rates(readers, {"values": np.ones(nbytes, np.uint8)}, given.seconds)
        for nbytes in given.bytes
        for readers in given.readers
    }
    ways = list(next(iter(figures.values())))
    rows = [[workload, *(f"{found[way]:,.0f}" for way in ways)] for workload, found in figures.items()]
    print(markdown.table(["messages per second to all", *ways], rows))
    machine.save("broadcast", machine.describe({}), rates=figures)


if __name__ == "__main__":
    main()
