"""CPU time of a message between two nodes of Ray, by process, and what a cluster of a given size could do with that.

    python -m bench.ray_costs [--seconds 4] [--nodes 100] [--gbits 10]

Two raylets on this machine; what they take is read from /proc, so that a loaded machine does not show in it. Needs Ray.
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
_ROLES = ("sending gateway", "landing gateway", "sending raylet", "landing raylet")


def cpu_s(pid: int) -> float:
    """Of all threads so far, in user and kernel mode."""
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


def _measure(ray: Any, there: str, pids: list[int], nbytes: int, seconds: float) -> dict[str, Any]:
    """CPU seconds of a message, by role."""
    import shmtree.ray

    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(there, soft=False)
    task = ray.remote(num_cpus=0)(_send).options(scheduling_strategy=affinity)
    sender, receiver = shmtree.ray.create_pair(capacity=4096, max_bytes=64 << 20)
    before = [cpu_s(pid) for pid in pids]
    sending = task.remote(sender, nbytes, seconds)
    sender.close()
    received = sum(1 for _ in receiver)
    after = [cpu_s(pid) for pid in pids]
    assert received == ray.get(sending)
    receiver.close()
    costs = [(late - early) / received for early, late in zip(before, after, strict=True)]
    return {"messages": received, "cpu_s": dict(zip(_ROLES, costs, strict=True))}


def measure(seconds: float) -> dict[str, dict[str, Any]]:
    """By size of the message."""
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
        pids = [ray.get(_actors.gateway(node).pid.remote()) for node in (there, here)]
        pids += [node.all_processes["raylet"][0].process.pid for node in (other, cluster.head_node)]
        _measure(ray, there, pids, 1 << 10, 0.5)  # connections, imports
        return {name: _measure(ray, there, pids, nbytes, seconds) for name, nbytes in _SIZES.items()}
    finally:
        ray.shutdown()
        cluster.shutdown()


def costs_table(measured: dict[str, dict[str, Any]]) -> str:
    """Microseconds of CPU time, by message."""
    rows = [
        [name, str(each["messages"]), *(f"{each['cpu_s'][role] * 1e6:.1f}" for role in _ROLES)]
        for name, each in measured.items()
    ]
    return table(["message", "sent", *(f"{role}, us" for role in _ROLES)], rows)


def limits_table(measured: dict[str, dict[str, Any]], nodes: int, gbits: float) -> str:
    """What a home can land when all other nodes send to it: by its busiest process, taken for one thread, and by its
    network.
    """
    rows = []
    for name, nbytes in _SIZES.items():
        cpu_s = measured[name]["cpu_s"]
        sends, lands = (1 / max(cpu_s[f"{side} gateway"], cpu_s[f"{side} raylet"]) for side in ("sending", "landing"))
        limits = {"home": lands, "network": gbits * 1e9 / 8 / nbytes, "senders": sends * (nodes - 1)}
        what = min(limits, key=lambda each: limits[each])
        numbers = (sends, lands, limits["network"], limits[what] / (nodes - 1))
        rows.append([name, *(f"{each:,.1f}" if each < 10 else f"{each:,.0f}" for each in numbers), what])
    head = [
        "message",
        "a node sends, /s",
        "a home lands, /s",
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
