"""Kills publishers one after the other while four processes read, and checks the readers.

    python tests/chaos_publishers.py latest --kills 1000 --seconds 60 --seed 7
    python tests/chaos_publishers.py broadcast

Each publisher publishes values of 1 MB with a checksum. It is killed at a random time after its first value: during the
copy, under the lock, or while it waits for a reader. The readers of a broadcast cover every lag policy. No reader may
see a torn value, or one that is older than its previous value. A blocking reader receives every value of a publisher up
to its death. At the end, the arena is consistent and uses no more memory than at the beginning.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import random
import signal
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

import shmtree

sys.path.append(str(Path(__file__).parent / "python" / "support"))

from shared_state import violated

WORDS = (1 << 20) // 8
READERS = ("block", "block", "skip", "latest")  # lag policies of the readers of a broadcast
END = 1 << 40  # publisher number of the last value
CONTEXT = multiprocessing.get_context("fork")


def value_of(publisher: int, number: int) -> dict[str, Any]:
    body = np.arange(WORDS) * (1000 * publisher + number + 1)
    return {"publisher": publisher, "number": number, "sum": zlib.crc32(body), "body": body}


def publish_until_killed(end: Any, publisher: int, begun: int) -> None:
    publish = end.publish if isinstance(end, shmtree.Latest) else end.put
    for number in range(1 << 30):
        publish(value_of(publisher, number))
        if number == 0:
            os.write(begun, b".")


class Seen:
    """Checks the values of one reader, and collects the errors."""

    def __init__(self, misses_nothing: bool) -> None:
        self._misses_nothing = misses_nothing
        self._last = (-1, -1)
        self.count = 0
        self.wrong: list[str] = []

    def look_at(self, value: Any) -> bool:
        """Checks a value. Returns False for the last one."""
        now = (value["publisher"], value["number"])
        if zlib.crc32(value["body"]) != value["sum"]:
            self.wrong.append(f"{now} is torn")
        if now <= self._last:
            self.wrong.append(f"{now} after {self._last}")
        expected = self._last[1] + 1 if now[0] == self._last[0] else 0
        if self._misses_nothing and now[1] != expected:
            self.wrong.append(f"{now} without those before it, after {self._last}")
        self._last = now
        self.count += 1
        return now[0] != END


def read_latest(latest: shmtree.Latest, results: Any) -> None:
    seen, version = Seen(misses_nothing=False), 0
    more = True
    while more:
        newer, value = latest.get(newer_than=version, timeout=60)
        if newer <= version:
            seen.wrong.append(f"version {newer} after {version}")
        version, more = newer, seen.look_at(value)
        del value
    results.put((seen.count, seen.wrong))


def read_broadcast(subscriber: shmtree.Subscriber, on_lag: str, results: Any) -> None:
    seen = Seen(misses_nothing=on_lag == "block")
    while seen.look_at(subscriber.get(timeout=60)):
        pass
    results.put((seen.count, seen.wrong))


def kill_a_publisher(end: Any, publisher: int, wait: float) -> None:
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        publish_until_killed(end, publisher, theirs)
    os.close(theirs)
    os.read(ours, 1)
    os.close(ours)
    time.sleep(wait)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def run(kind: str, kills: int, seconds: float, seed: int) -> list[str]:
    dice = random.Random(seed)
    arena = shmtree.Arena(128 << 20)
    end: Any = shmtree.Latest(arena=arena) if kind == "latest" else shmtree.Broadcast(4, arena=arena)
    publish = end.publish if kind == "latest" else end.put
    publish(value_of(0, 0))  # this process stays a publisher, so that the stream does not end
    gc.collect()
    began_with, began = arena.stats()["used_bytes"], time.monotonic()
    results = CONTEXT.SimpleQueue()
    if kind == "latest":
        calls: list[Any] = [(read_latest, (end, results)) for _ in READERS]
    else:
        calls = [(read_broadcast, (end.subscribe(on_lag=on_lag), on_lag, results)) for on_lag in READERS]
    readers = [CONTEXT.Process(target=target, args=arguments) for target, arguments in calls]
    for reader in readers:
        reader.start()
    killed = 0
    while killed < kills and time.monotonic() < began + seconds:
        killed += 1
        kill_a_publisher(end, killed, dice.uniform(0, 0.004))
    publish(value_of(END, 0))
    told = [results.get() for _ in readers]
    for reader in readers:
        reader.join()
    wrong = [text for _, texts in told for text in texts]
    del calls
    gc.collect()
    if kind == "broadcast":
        end.subscribe().close()  # detects the dead processes
        publish(value_of(END, 1))
    left = time.monotonic() + 30
    while arena.stats()["used_bytes"] > began_with and time.monotonic() < left:  # stats() detects them
        time.sleep(0.05)
    if arena.stats()["used_bytes"] > began_with:
        wrong.append(f"{arena.stats()['used_bytes']} bytes are used, and {began_with} at the beginning")
    wrong += [text for text in (violated(arena),) if text]
    print(f"{kind}: {killed} publishers killed, values read: {[count for count, _ in told]}, wrong: {wrong[:10]}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("latest", "broadcast"))
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds after which no more processes are killed")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    sys.exit(bool(run(given.kind, given.kills, given.seconds, given.seed)))


if __name__ == "__main__":
    main()
