"""Describes the machine of a measurement, and saves the figures of stand-alone benchmark programs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from bench.competitors import Base


def load() -> float:
    return round(os.getloadavg()[0], 2)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # on sys.path without being installed
        return "of the path"


def describe(competitors: dict[str, type[Base]]) -> dict[str, Any]:
    models = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    packages = sorted({"numpy", "shmtree"}.union(*(competitor.requires for competitor in competitors.values())))
    return {
        "cpu": models[0] if models else platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {package: _version(package) for package in packages},
        "load_before": load(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def line(about: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return (
        f"{about['cpus']} x {about['cpu']}, {about['memory_gb']} GB, Linux {about['kernel']}, "
        f"Python {about['python']}, {versions}; load {about['load_before']}"
    )


def save(program: str, about: dict[str, Any], **figures: Any) -> None:
    """Writes the figures to bench/results, with a description of the machine."""
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / f"{program}.json").write_text(json.dumps({"machine": about, **figures}, indent=1))
