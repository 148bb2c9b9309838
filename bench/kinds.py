"""Maps each kind of workload to the scenario that runs it."""

from __future__ import annotations

from bench.latencies import BusyPingPong, Cold, Latency, PingPong, Wake
from bench.scenarios import Deep, Forward, Scenario, Stream

KINDS: dict[str, type[Scenario]] = {
    "stream": Stream,
    "loan": Stream,
    "leaf": Stream,
    "forward": Forward,
    "deep": Deep,
    "latency": Latency,
    "wake": Wake,
    "pingpong": PingPong,
    "busy": BusyPingPong,
    "cold": Cold,
}
