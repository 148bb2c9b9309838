"""A Ray cluster for tests: two nodes on one machine, which shmtree treats as separate ones."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

STORE_BYTES = 90 << 20
LONG_S = 300
SETTINGS = {
    "health_check_initial_delay_ms": 5000,
    "health_check_period_ms": 5000,
    "health_check_timeout_ms": 30000,
    "health_check_failure_threshold": 5,
    # Ray's default of 0.95 would make a full store fail on a disk that is that full
    "local_fs_capacity_threshold": 1.0,
}


@contextlib.contextmanager
def cluster_of_two(module: str, **settings: float) -> Iterator[tuple[Any, str, str]]:
    """Starts a cluster with two nodes, with this process on the first one. Yields the cluster and the ids of its nodes.

    Classes of `module` are pickled by value. `settings` of Ray are added to `SETTINGS`, and override them.
    """
    ray.cloudpickle.register_pickle_by_value(sys.modules[module])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHMTREE_RAY_LOCAL", "0")
        options = {"object_store_memory": STORE_BYTES, "num_cpus": 2}
        head = {**options, "include_dashboard": False, "_system_config": {**SETTINGS, **settings}}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            other = cluster.add_node(**options)
            ray.init(address=cluster.address, log_to_driver=False)
            yield cluster, str(ray.get_runtime_context().get_node_id()), str(other.node_id)
        finally:
            ray.shutdown()
            cluster.shutdown()


def on(node: str, cls: Any) -> Any:
    """Starts an actor of that class on that node."""
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=0)(cls).options(scheduling_strategy=strategy).remote()


def kill(actor: Any) -> int:
    """Kills the process of an actor that has a method `pid` and may still be starting. Returns its pid."""
    while True:
        with contextlib.suppress(ray.exceptions.RayActorError):
            pid = int(ray.get(actor.pid.remote(), timeout=LONG_S))
            os.kill(pid, signal.SIGKILL)
            return pid
        time.sleep(0.2)
