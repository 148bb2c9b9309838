"""Kills servers and clients of a `Service` at random moments, and checks the clients that survive.

    python tests/chaos_service.py --seconds 60 --seed 7

One server and two clients live from the beginning to the end. The others are killed in the middle of a request and
replaced. A surviving client checks each of its requests:

- it ends, with the reply to this request, or with `PeerDied` that names killed servers only;
- the reply has the right bytes;
- no reply comes twice, and none goes to another client.

At the end the shared memory, the descriptors and the participants of the arena are as they were at the beginning.
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
from pathlib import Path
from typing import Any

import chaos_processes
import numpy as np

import shmtree

sys.path.append(str(Path(__file__).parent / "python" / "support"))

from shared_state import violated

CONTEXT = multiprocessing.get_context("fork")
SIZES = (1, 100, 4_000, 40_000)  # float64 items of a request: fit in a slot, or need a block
LONGEST_S = 120.0  # limit for one request; a slower one counts as hung


def serve(service: shmtree.Service[Any]) -> None:
    for request in service:
        client, number, values = request.value
        request.reply((client, number, values * 2))


def call(client: shmtree.Client, me: int, number: int, size: int) -> tuple[list[str], set[int]]:
    """Returns the errors in the reply, and the pids of the dead if the call raised `PeerDied`."""
    try:
        reply = client.call((me, number, np.full(size, float(number))), timeout=LONGEST_S)
    except shmtree.PeerDied as death:
        return [], set(death.pids)
    return check(me, number, size, reply), set()


def submit(client: shmtree.Client, me: int, first: int, many: int) -> tuple[list[str], set[int]]:
    """Same as call(), for several requests at once."""
    wrong: list[str] = []
    dead: set[int] = set()
    futures = {}
    for number in range(first, first + many):
        try:
            futures[number] = client.submit((me, number, np.full(number % 3_000, float(number))))
        except shmtree.PeerDied as death:
            dead.update(death.pids)
    for number, future in futures.items():
        error = future.exception(timeout=LONGEST_S)
        if isinstance(error, shmtree.PeerDied):
            dead.update(error.pids)
        elif error is not None:
            wrong.append(f"client {me}, request {number}: {error!r}")
        else:
            wrong += check(me, number, number % 3_000, future.result())
    return wrong, dead


def check(me: int, number: int, size: int, reply: Any) -> list[str]:
    client, which, values = reply
    if (client, which) != (me, number):
        return [f"client {me}, request {number}: the reply to request {which} of client {client}"]
    if values.shape != (size,) or np.any(values != 2.0 * number):
        return [f"client {me}, request {number}: the reply has wrong bytes"]
    return []


def ask(sender: Any, me: int, seed: int, results: Any, stop: Any) -> None:
    dice, count = random.Random(f"{seed} {me}"), 0
    wrong: list[str] = []
    dead: set[int] = set()
    with shmtree.Client(sender, timeout=LONGEST_S) as client:
        while not stop.value:
            many = dice.choice((1, 1, 1, 8))
            texts, pids = call(client, me, count, dice.choice(SIZES)) if many == 1 else submit(client, me, count, many)
            wrong += texts
            dead |= pids
            count += many
    if results is not None:
        results.put((count, wrong, dead))


class Chaos:
    """A service with its servers and clients."""

    def __init__(self, arena: shmtree.Arena, seed: int) -> None:
        self._seed = seed
        self._dice = random.Random(seed)
        self._stop, self._results = CONTEXT.RawValue("b"), CONTEXT.SimpleQueue()
        self._service: shmtree.Service[Any] = shmtree.Service(arena=arena)
        self._clients_made = 0
        self.killed = {"server": 0, "client": 0}
        self.killed_servers: set[int] = set()

    def _start(self, kind: str, survives: bool) -> Any:
        if kind == "server":
            process = CONTEXT.Process(target=serve, args=(self._service,))
        else:
            self._clients_made += 1
            results = self._results if survives else None
            arguments = (self._service.sender, self._clients_made, self._seed, results, self._stop)
            process = CONTEXT.Process(target=ask, args=arguments)
        process.start()
        return process

    def run(self, seconds: float) -> list[str]:
        server = self._start("server", survives=True)
        survivors = [self._start("client", survives=True) for _ in range(2)]
        victims = {kind: self._start(kind, survives=False) for kind in self.killed}
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(self._dice.uniform(0, 0.05))
            kind = self._dice.choice(list(self.killed))
            self._kill(kind, victims[kind])
            victims[kind] = self._start(kind, survives=False)
        self._stop.value = 1
        told = [self._results.get() for _ in survivors]
        for process in survivors:
            process.join()
        for kind, process in victims.items():
            self._kill(kind, process)
        os.kill(server.pid, signal.SIGKILL)
        server.join()
        self._service.close()
        wrong: list[str] = [text for _, texts, _ in told for text in texts]
        for _, _, dead in told:
            if dead - self.killed_servers:
                wrong.append(f"PeerDied named {dead - self.killed_servers}, which were not killed")
        wrong += ["a client that was to survive died"] * sum(process.exitcode != 0 for process in survivors)
        deaths = sum(len(dead) for _, _, dead in told)
        print(f"killed: {self.killed}, requests: {[count for count, _, _ in told]}, deaths reported: {deaths}")
        return wrong

    def _kill(self, kind: str, process: Any) -> None:
        if kind == "server":
            self.killed_servers.add(process.pid)
        if self._dice.random() < 0.15:
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(self._dice.uniform(0, 0.1))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        self.killed[kind] += 1


def run(seconds: float, seed: int) -> list[str]:
    arena = shmtree.Arena(128 << 20)
    CONTEXT.RawValue("b")  # opens a file that multiprocessing keeps open
    began_with, descriptors = arena.stats(), chaos_processes.descriptors()
    wrong = Chaos(arena, seed).run(seconds)
    gc.collect()
    latest = time.monotonic() + 60
    while arena.stats()["used_bytes"] > began_with["used_bytes"] and time.monotonic() < latest:
        time.sleep(0.05)  # stats() frees the memory of dead processes
    arena.trim()
    after = arena.stats()
    for key in ("used_bytes", "participants"):
        if after[key] != began_with[key]:
            wrong.append(f"{key}: {after[key]}, and {began_with[key]} at the beginning")
    if chaos_processes.descriptors() > descriptors:
        wrong.append(f"{chaos_processes.descriptors()} descriptors are open, and {descriptors} at the beginning")
    assert arena._core is not None
    return wrong + [text for text in (violated(arena),) if text]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long processes are killed")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    wrong = run(given.seconds, given.seed)
    print("\n".join(wrong[:10]) if wrong else "no errors")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
