"""A cluster of two nodes for tests, told apart though they are on one machine."""

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
    "local_fs_capacity_threshold": 1.0,  # by default 0.95: a full store then fails where a disk is as full as that
}


@contextlib.contextmanager
def cluster_of_two(module: str, **settings: float) -> Iterator[tuple[Any, str, str]]:
    """The cluster, and the ids of its nodes; this process is on the first. What the module has is pickled by value.

    `settings` are Ray's own, beside or instead of `SETTINGS`.
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
    """An actor of that class there."""
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=0)(cls).options(scheduling_strategy=strategy).remote()


def kill(actor: Any) -> int:
    """Of an actor with a method `pid`, which may be starting."""
    while True:
        with contextlib.suppress(ray.exceptions.RayActorError):
            pid = int(ray.get(actor.pid.remote(), timeout=LONG_S))
            os.kill(pid, signal.SIGKILL)
            return pid
        time.sleep(0.2)
