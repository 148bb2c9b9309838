"""Ray: sends references to objects in its store through its queue, and small objects in the queue itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
import ray.util.queue

from bench import processes
from bench.competitors import Base

_IN_STORE = 100_000  # bytes; Ray does not store smaller arguments and results
_PORT = 20_000 + os.getpid() % 10_000
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


class Competitor(Base):
    requires = ("ray",)
    is_shared = True
    copies = 3
    _made = 0

    @classmethod
    def start(cls) -> None:
        """Starts one cluster on this machine for all channels, because a start takes seconds."""
        before = set(processes.descendants(os.getpid()))
        store = min(4_000_000_000, processes.available_bytes() // 4)
        command = [str(Path(sys.executable).with_name("ray")), "start", "--head", f"--port={_PORT}", "--num-cpus=4"]
        options = ["--include-dashboard=false", "--disable-usage-stats", f"--object-store-memory={store}"]
        subprocess.run([*command, *options], check=True, capture_output=True, timeout=90)
        cls.servers = [pid for pid in processes.descendants(os.getpid()) if pid not in before]

    def __init__(self, capacity: int, nbytes: int, kind: type) -> None:
        Competitor._made += 1
        self.name = f"bench-{os.getpid()}-{Competitor._made}"
        self.capacity, self.is_stored = capacity, nbytes >= _IN_STORE

    def queue(self) -> Any:
        """Opens the queue. Each end is its own driver, and finds the queue's actor by name."""
        if not ray.is_initialized():
            ray.init(f"127.0.0.1:{_PORT}", namespace="bench", log_to_driver=False, configure_logging=False)
        options = {
            "name": self.name,
            "get_if_exists": True,
            "num_cpus": 0,
        }  # the actor ends with the driver that created it
        return ray.util.queue.Queue(self.capacity, actor_options=options)

    def sender(self) -> Callable[[Any], Any]:
        queue = self.queue()
        if self.is_stored:
            return lambda message: queue.put([ray.put(message)])
        put: Callable[[Any], Any] = queue.put
        return put

    def receiver(self) -> Callable[[], Any]:
        queue = self.queue()
        if self.is_stored:
            return lambda: ray.get(queue.get()[0])
        get: Callable[[], Any] = queue.get
        return get
