"""Measures the CPU time of a message between two Ray nodes, by process, and projects it to a larger cluster.

    python -m bench.ray_costs [--seconds 4] [--nodes 100] [--gbits 10]

Runs two raylets on this machine, and reads their CPU time from /proc, which does not depend on other load. Needs Ray.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import numpy as np

from bench.machine import describe, line, save
from bench.markdown import table

_STORE_BYTES = 200 << 20
_SIZES = {"1 KB": 1 << 10, "32 KB": 32 << 10, "4 MB": 4 << 20}
TO_HOME, FROM_HOME = "to its home", "from its home"
_ROLES = ("sending gateway", "landing gateway", "sending raylet", "landing raylet")


def cpu_s(pid: int) -> float:
    """Returns the user and kernel CPU seconds of all threads so far."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _send(sender: Any, nbytes: int, seconds: float) -> int:
    message = np.zeros(nbytes, np.uint8)
    end, sent = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        sender.put(message)
        sent += 1
    sender.close()
    return sent


def _receive(receiver: Any) -> int:
    received = sum(1 for _ in receiver)
    receiver.close()
    return received


def _measure(ray: Any, there: str, pids: dict[str, list[int]], way: str, nbytes: int, seconds: float) -> dict[str, Any]:
    """Returns the CPU seconds of a message, by role."""
    import shmtree.ray

    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(there, soft=False)
    task = ray.remote(num_cpus=0)(_send if way == TO_HOME else _receive).options(scheduling_strategy=affinity)
    sender, receiver = shmtree.ray.create_pair(capacity=4096, max_bytes=64 << 20)
    before = [cpu_s(pid) for pid in pids[way]]
    if way == TO_HOME:
        other = task.remote(sender, nbytes, seconds)
        sender.close()
        counts = _receive(receiver), ray.get(other)
    else:
        other = task.remote(receiver)
        receiver.close()
        counts = _send(sender, nbytes, seconds), ray.get(other)
    after = [cpu_s(pid) for pid in pids[way]]
    assert counts[0] == counts[1]
    costs = [(late - early) / counts[0] for early, late in zip(before, after, strict=True)]
    return {"messages": counts[0], "cpu_s": dict(zip(_ROLES, costs, strict=True))}


def measure(seconds: float) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the costs by direction, then by message size."""
    os.environ["SHMTREE_RAY_LOCAL"] = "0"
    import ray
    import ray.util.scheduling_strategies
    from ray.cluster_utils import Cluster

    from shmtree.ray import _actors

    options = {"num_cpus": 2, "object_store_memory": _STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
    try:
        other = cluster.add_node(**options)
        ray.init(address=cluster.address, log_to_driver=False)
        there, here = str(other.node_id), str(ray.get_runtime_context().get_node_id())
        gateways = [ray.get(_actors.gateway(node).pid.remote()) for node in (there, here)]
        raylets = [node.all_processes["raylet"][0].process.pid for node in (other, cluster.head_node)]
        pids = {TO_HOME: gateways + raylets, FROM_HOME: gateways[::-1] + raylets[::-1]}
        _measure(ray, there, pids, TO_HOME, 1 << 10, 0.5)  # connections, imports
        return {
            way: {name: _measure(ray, there, pids, way, nbytes, seconds) for name, nbytes in _SIZES.items()}
            for way in (TO_HOME, FROM_HOME)
        }
    finally:
        ray.shutdown()
        cluster.shutdown()


def costs_table(measured: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Formats the microseconds of CPU time per message."""
    rows = [
        [f"{name} {way}", f"{each['messages']:,}", *(f"{each['cpu_s'][role] * 1e6:,.1f}" for role in _ROLES)]
        for way, by_size in measured.items()
        for name, each in by_size.items()
    ]
    return table(["message", "sent", *(f"{role}, us" for role in _ROLES)], rows)


def limits_table(measured: dict[str, dict[str, dict[str, Any]]], nodes: int, gbits: float) -> str:
    """Formats the message rates if all other nodes send to one home, or receive from it. The busiest process on either
    side, taken as one thread, and the home's network limit the rate.
    """
    rows = []
    for way, by_size in measured.items():
        for name, nbytes in _SIZES.items():
            cpu_s = by_size[name]["cpu_s"]
            sends, lands = (
                1 / max(cpu_s[f"{side} gateway"], cpu_s[f"{side} raylet"]) for side in ("sending", "landing")
            )
            home, other = (lands, sends) if way == TO_HOME else (sends, lands)
            limits = {"home": home, "network": gbits * 1e9 / 8 / nbytes, "others": other * (nodes - 1)}
            what = min(limits, key=lambda each: limits[each])
            numbers = (other, home, limits["network"], limits[what] / (nodes - 1))
            rows.append([f"{name} {way}", *(f"{each:,.1f}" if each < 10 else f"{each:,.0f}" for each in numbers), what])
    head = [
        "message",
        "another node, /s",
        "the home, /s",
        f"{gbits:g} Gb/s, /s",
        f"each of {nodes - 1}, /s",
        "limit",
    ]
    return table(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--gbits", type=float, default=10.0)
    given = parser.parse_args()
    about = describe({})
    measured = measure(given.seconds)
    print(line(about), costs_table(measured), limits_table(measured, given.nodes, given.gbits), sep="\n\n")
    save("ray_costs", about, messages=measured)


if __name__ == "__main__":
    main()
