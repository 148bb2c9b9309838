"""Measures messages between two Ray nodes: a pair of shmtree.ray, ray.util.queue, and Ray's own objects.

    python -m bench.ray_nodes [--seconds 3] [--only 1KB nested 32MB] [--pairs-only]

Two raylets on this machine act as two nodes. An actor on one node puts for `--seconds`. An actor on the other node, the
home of the pair or queue, gets all messages. The rate covers the time from the first put until the last message is
received. "results of an actor" are return values of an actor's method, with two calls in flight. A bare ray.get fetches
arrays that are in the other node's store before the timing starts. A pair with both ends at the home is compared with a
pair without Ray. Each way has one warm-up turn. Writes a table to stdout and the figures to
bench/results/ray_nodes.json.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

import numpy as np

from bench import machine, markdown

STORE_BYTES = 1 << 30
FETCHED = 8  # number of arrays with which a bare ray.get is measured
WARM_S = 1.0
BOTH_AT_HOME = "shmtree.ray.create_pair, both ends at its home"

os.environ["SHMTREE_RAY_LOCAL"] = "0"  # every process of the cluster reads it


def make(kind: str) -> Any:
    rng = np.random.default_rng(0)
    if kind == "1KB":
        return rng.bytes(1024)
    if kind == "32MB":
        return rng.random(4 << 20)
    return {
        "observations": {name: rng.random((8, 16), np.float32) for name in ("position", "velocity", "goal")},
        "actions": rng.random(8, np.float32),
        "rewards": [float(each) for each in rng.random(8)],
        "info": {"episode": 17, "policy": "latest", "steps": list(range(8)), "done": (False, True)},
    }


def capacity_for(kind: str) -> int:
    return 8 if kind == "32MB" else 4096


class End:
    """An actor on one node."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}

    def ready(self) -> None: ...

    def first(self, end: Any) -> Any:
        return end.get()

    def put(self, end: Any, kind: str, seconds: float) -> tuple[float, int]:
        """Puts for `seconds`. Returns the start time and the number of messages."""
        message, count, begin = make(kind), 0, time.monotonic()
        while time.monotonic() - begin < seconds:
            end.put(message)
            count += 1
        end.put(None)
        return begin, count

    def put_one(self, end: Any) -> None:
        end.put(None)

    def get_all(self, end: Any) -> float:
        """Gets all messages. Returns the time at which the last one arrived."""
        while end.get() is not None:
            pass
        return time.monotonic()

    def store(self, kind: str) -> list[Any]:
        import ray

        message = make(kind)
        return [ray.put(message) for _ in range(FETCHED)]

    def fetch(self, references: list[Any]) -> float:
        import ray

        begin = time.monotonic()
        for reference in references:
            ray.get(reference)
        return len(references) / (time.monotonic() - begin)

    def give(self, kind: str) -> Any:
        """Returns the message. Ray stores each return value anew, as it would a new message."""
        if kind not in self.made:
            self.made[kind] = make(kind)
        return self.made[kind]

    def get_results(self, source: Any, kind: str, seconds: float) -> float:
        import ray

        begin, count = time.monotonic(), 0
        under_way = [source.give.remote(kind), source.give.remote(kind)]
        while time.monotonic() - begin < seconds:
            ray.get(under_way.pop(0))
            under_way.append(source.give.remote(kind))
            count += 1
        return count / (time.monotonic() - begin)


def rate(source: Any, sink: Any, ends: tuple[Any, Any], kind: str, seconds: float) -> float:
    import ray

    put_into, get_from = ends
    ray.get([source.put_one.remote(put_into), sink.first.remote(get_from)])
    for duration in (WARM_S, seconds):
        putting, getting = source.put.remote(put_into, kind, duration), sink.get_all.remote(get_from)
        begin, count = ray.get(putting)
        end = ray.get(getting)
    return float(count / (end - begin))


def rates_at_home(source: Any, sink: Any, node: str, kind: str, seconds: float) -> dict[str, float]:
    """Measures with both ends at the home of the pair, and without Ray."""
    import shmtree
    import shmtree.ray

    capacity = capacity_for(kind)
    found = {}
    with shmtree.Arena() as arena:  # keep the arena until both are done
        for way, ends in (
            (BOTH_AT_HOME, shmtree.ray.create_pair(capacity, home=node)),
            ("shmtree.create_pair", arena.create_pair(capacity)),
        ):
            found[way] = rate(source, sink, ends, kind, seconds)
            for end in ends:
                end.close()
    return found


def rates(source: Any, sink: Any, node: str, kind: str, seconds: float, pairs_only: bool) -> dict[str, float]:
    import ray
    from ray.util.queue import Queue
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    import shmtree.ray

    capacity = capacity_for(kind)
    sender, receiver = shmtree.ray.create_pair(capacity, home=node)
    found = {"shmtree.ray.create_pair": rate(source, sink, (sender, receiver), kind, seconds)}
    sender.close()
    receiver.close()
    if pairs_only:
        return found
    where = NodeAffinitySchedulingStrategy(node, soft=False)
    queue = Queue(capacity, actor_options={"num_cpus": 0, "scheduling_strategy": where})
    found["ray.util.queue"] = rate(source, sink, (queue, queue), kind, seconds)
    queue.shutdown()
    for duration in (WARM_S, seconds):
        found["results of an actor"] = ray.get(sink.get_results.remote(source, kind, duration))
    if kind == "32MB":
        for _ in range(2):
            found["ray.get"] = ray.get(sink.fetch.remote(ray.get(source.store.remote(kind))))
    return found


def main() -> None:
    import ray
    from ray.cluster_utils import Cluster
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", nargs="+", default=["1KB", "nested", "32MB"])
    parser.add_argument("--pairs-only", action="store_true", help="measure pairs only, not the alternatives")
    given = parser.parse_args()
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "object_store_memory": STORE_BYTES, "include_dashboard": False},
    )
    try:
        other = str(cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES).node_id)
        ray.init(address=cluster.address, log_to_driver=False)
        here = str(ray.get_runtime_context().get_node_id())
        source, beside, sink = (
            ray.remote(End)
            .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
            .remote()
            for node in (other, here, here)
        )
        ray.get([each.ready.remote() for each in (source, beside, sink)])
        figures = {}
        for kind in given.only:
            figures[kind] = rates(source, sink, here, kind, given.seconds, given.pairs_only)
            if not given.pairs_only:
                figures[kind] |= rates_at_home(beside, sink, here, kind, given.seconds)
            print(kind, figures[kind], file=sys.stderr, flush=True)
    finally:
        ray.shutdown()
        cluster.shutdown()
    ways = list(dict.fromkeys(way for found in figures.values() for way in found))
    rows = [[kind, *(f"{found[way]:,.1f}" if way in found else "" for way in ways)] for kind, found in figures.items()]
    print(markdown.table(["messages per second", *ways], rows))
    machine.save("ray_nodes", machine.describe({}), rates=figures)


if __name__ == "__main__":
    main()
