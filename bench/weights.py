"""Sends weights to several actors: by shmtree, and by the queues of multiprocessing and torch.multiprocessing.

    python -m bench.weights [--actors 4] [--megabytes 20] [--versions 20] [--rounds 3]

A version is a new copy of ten tensors, like that of a trainer that continues training. Its time starts with that copy,
and ends when every actor has reported that it has read one number of each tensor. All ways run in this process, in
turns. The standard queue gets NumPy arrays, because with torch it sends tensors as torch's queue does. Writes a table
to stdout and the figures to bench/results/weights.json.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing

import shmtree
import shmtree.torch
from bench import machine, markdown

TENSORS = 10
Weights = dict[str, Any]


def act(inbox: Any, done: Any) -> None:
    torch.set_num_threads(1)
    while (weights := inbox.get()) is not None:
        done.put(sum(float(tensor[-1]) for tensor in weights.values()))


class Way:
    """One way to send weights to actors."""

    def __init__(self, inboxes: list[tuple[Any, Any]], copied: Callable[[Weights], Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._done = context.SimpleQueue()
        self._copied = copied
        self._senders = [sender for sender, _ in inboxes]
        self._actors = [context.Process(target=act, args=(receiver, self._done)) for _, receiver in inboxes]
        for actor in self._actors:
            actor.start()
        self.publish({"first": torch.ones(1)})

    def publish(self, weights: Weights) -> float:
        """Returns the seconds until all actors have read the weights."""
        begin = time.perf_counter()
        copied = self._copied(weights)
        for sender in self._senders:
            sender.put(copied)
        for _ in self._actors:
            self._done.get()
        return time.perf_counter() - begin

    def end(self) -> None:
        for sender in self._senders:
            sender.put(None)
        for actor in self._actors:
            actor.join()


def ways(actors: int) -> dict[str, Way]:
    arena = shmtree.Arena()
    ours = [arena.create_pair() for _ in range(actors)]
    theirs = [multiprocessing.get_context("spawn").Queue() for _ in range(actors)]
    of_torch = [torch.multiprocessing.get_context("spawn").Queue() for _ in range(actors)]
    return {
        "multiprocessing": Way(
            list(zip(theirs, theirs)), lambda weights: {key: each.clone().numpy() for key, each in weights.items()}
        ),
        "torch.multiprocessing": Way(
            list(zip(of_torch, of_torch)), lambda weights: {key: each.clone() for key, each in weights.items()}
        ),
        "shmtree": Way(list(ours), lambda weights: shmtree.torch.share(weights, arena)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("actors", 4), ("megabytes", 20), ("versions", 20), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    torch.set_num_threads(1)
    weights = {f"layer {i}": torch.rand(given.megabytes * 10**6 // 4 // TENSORS) for i in range(TENSORS)}
    made = ways(given.actors)
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(given.rounds):
        for name, way in made.items():
            seconds[name] += [way.publish(weights) for _ in range(given.versions)]
    for way in made.values():
        way.end()
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    ours = medians["shmtree"]
    rows = [[name, f"{1e3 * median:.2f}", f"{median / ours:.1f}"] for name, median in medians.items()]
    print(markdown.table(["queue", "ms a version", "times ours"], rows))
    machine.save("weights", machine.describe({}), seconds=seconds)


if __name__ == "__main__":
    main()
