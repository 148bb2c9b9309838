"""Describes the machine of a measurement, and saves the figures of stand-alone benchmark programs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.competitors import Base

RESULTS = Path(__file__).parent / "results"


def load() -> float:
    return round(os.getloadavg()[0], 2)


def commit() -> str:
    """Returns the checked-out commit, with "+" if files differ from it."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout.strip() or "unknown"


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
        "commit": commit(),
        "load_before": load(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def line(about: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return (
        f"{about['cpus']} x {about['cpu']}, {about['memory_gb']} GB, Linux {about['kernel']}, "
        f"Python {about['python']}, {versions}; load {about['load_before']}"
    )


def dated(about: dict[str, Any]) -> str:
    """Returns when, with which commit and under which load the figures were measured."""
    return (
        f"Measured on {about['time'][:10]} with commit {about['commit']}; load {about['load_before']} before, "
        f"{about['load_after']} after. "
    )


def draw_if_possible(draw: Callable[[Path, Any], None], path: Path, rows: Any) -> None:
    """Draws, or says why not: matplotlib is optional."""
    try:
        draw(path, rows)
    except ImportError as error:
        print(f"no picture: {error}", file=sys.stderr)


def save(program: str, about: dict[str, Any], folder: Path = RESULTS, **figures: Any) -> None:
    """Writes the figures to `folder`, with a description of the machine."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{program}.json").write_text(json.dumps({"machine": about, **figures}, indent=1))
