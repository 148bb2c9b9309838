"""Restarts a server under four clients, by SIGKILL and SIGTERM in turns, and checks every point that they sent.

    python tests/chaos_restarts.py --restarts 24 --seed 7

Two clients put points into a pair with `keep_open="both"` and flush after every tenth. Two others send theirs by
`Client.call(retry=)`. The server stores each point in a database before it acks or replies. At the end the database
has each acknowledged point once, and no client has seen an error.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from typing import Any

import shmtree

CONTEXT = multiprocessing.get_context("fork")
LONG_S = 120.0  # limit for one call; a slower one counts as hung


def open_points(path: str) -> sqlite3.Connection:
    points = sqlite3.connect(path, timeout=LONG_S, isolation_level=None)
    points.execute("PRAGMA synchronous = OFF")
    points.execute("CREATE TABLE IF NOT EXISTS points (client INTEGER, number INTEGER, PRIMARY KEY (client, number))")
    return points


def store(points: sqlite3.Connection, point: tuple[int, int]) -> None:
    points.execute("INSERT OR IGNORE INTO points VALUES (?, ?)", point)


def answer(name: str, path: str) -> None:
    points = open_points(path)
    for request in shmtree.Service(f"{name}-service", keep_open="both"):
        store(points, request.value)
        request.reply(True)


def serve(name: str, path: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    threading.Thread(target=answer, args=(name, path), daemon=True).start()
    points = open_points(path)
    _, receiver = shmtree.create_pair(64, name=name, exist_ok=True, keep_open="both")
    while True:
        with receiver.take() as delivery:
            store(points, delivery.item)


def put_points(name: str, me: int, stop: Any, results: Any) -> None:
    sender = shmtree.open_sender(name, timeout=LONG_S)
    count = 0
    while not stop.value:
        sender.put((me, count), timeout=LONG_S)
        count += 1
        if count % 10 == 0:
            sender.flush(timeout=LONG_S)
    sender.flush(timeout=LONG_S)
    results.put((me, count))


def call_with_points(name: str, me: int, stop: Any, results: Any) -> None:
    count = 0
    with shmtree.Client(f"{name}-service", timeout=LONG_S) as client:
        while not stop.value:
            client.call((me, count), timeout=LONG_S, retry=LONG_S)
            count += 1
    results.put((me, count))


def wait_for_more(points: sqlite3.Connection, clients: list[Any]) -> None:
    """Waits until the database has more points of each client, or a client has failed."""
    query = "SELECT client, COUNT(*) FROM points GROUP BY client"
    before = dict(points.execute(query))
    while all(client.is_alive() for client in clients):
        now = dict(points.execute(query))
        if all(now.get(me, 0) > before.get(me, 0) for me in range(len(clients))):
            return
        time.sleep(0.002)


def run(restarts: int, seed: int) -> list[str]:
    dice, name = random.Random(seed), f"restarts-{os.getpid()}"
    stop, results = CONTEXT.RawValue("b"), CONTEXT.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/points.db"
        points = open_points(path)
        kinds = (put_points, put_points, call_with_points, call_with_points)
        clients = [CONTEXT.Process(target=kind, args=(name, me, stop, results)) for me, kind in enumerate(kinds)]
        server = CONTEXT.Process(target=serve, args=(name, path))
        for process in (server, *clients):
            process.start()
        for number in range(restarts):
            wait_for_more(points, clients)
            time.sleep(dice.uniform(0, 0.02))
            os.kill(server.pid, signal.SIGTERM if number % 2 else signal.SIGKILL)
            server.join()
            time.sleep(dice.uniform(0, 0.2))  # no server runs
            server = CONTEXT.Process(target=serve, args=(name, path))
            server.start()
        wait_for_more(points, clients)
        stop.value = 1
        for client in clients:
            client.join()
        server.kill()
        server.join()
        wrong = [f"client {me} failed" for me, client in enumerate(clients) if client.exitcode]
        acked = dict(results.get() for client in clients if not client.exitcode)
        stored = sorted(points.execute("SELECT client, number FROM points"))
        points.close()
    if not wrong and stored != [(me, number) for me in sorted(acked) for number in range(acked[me])]:
        wrong.append(f"{len(stored)} points are stored, and {sum(acked.values())} were acknowledged")
    print(f"restarts: {restarts}, points: {[acked.get(me) for me in range(len(clients))]}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--restarts", type=int, default=24, help="number of restarts of the server")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    wrong = run(given.restarts, given.seed)
    print("\n".join(wrong[:10]) if wrong else "no errors")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
