"""Prints, as JSON, which requirements of tests/gpu/run this interpreter and this machine meet."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

PACKAGES = "torch numpy cupy numba numba-cuda pybind11 scikit-build-core pytest pytest-timeout".split()
BUILD_PACKAGES = ("numpy", "pybind11", "scikit_build_core", "pip")


def version(package: str) -> str | None:
    """Returns the installed version. The names of CuPy's packages contain the CUDA version."""
    names = [package] + ([f"cupy-cuda{number}x" for number in (11, 12, 13, 14)] if package == "cupy" else [])
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def lacks() -> list[str]:
    """Returns the missing build requirements, in words for the person that installs them."""
    missing = [name for name in BUILD_PACKAGES if importlib.util.find_spec(name) is None]
    for program in ("cmake", "ninja"):  # these also exist as Python packages
        if not shutil.which(program) and importlib.util.find_spec(program) is None:
            missing.append(program)
    if not shutil.which("capnp"):
        missing.append("Cap'n Proto, or a wheel for this Python of tests/gpu/prepare")
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        missing.append("a C++ compiler")
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        missing.append("the headers of Python")
    return missing


def gpus() -> list[dict[str, Any]]:
    asked = "name,uuid,driver_version,memory.total,pci.bus_id"
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode != 0:
        return []
    return [
        dict(zip(asked.split(","), map(str.strip, line.split(",")), strict=False)) for line in done.stdout.splitlines()
    ]


def torch_cuda() -> dict[str, Any]:
    """Returns torch's CUDA version and device. "problem" says why there is no device."""
    try:
        import torch
    except ImportError as error:
        return {"problem": str(error)}
    known: dict[str, Any] = {"cuda": torch.version.cuda, "problem": ""}
    if not torch.backends.cuda.is_built():
        known["problem"] = "torch is built without CUDA"
    elif not torch.cuda.is_available():
        known["problem"] = "no GPU"
    else:
        known["device"] = torch.cuda.get_device_name(0)
    return known


def main() -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":")[1].strip() for line in lines if "model name" in line]
    print(
        json.dumps(
            {
                "python": platform.python_version(),
                "tag": "cp{}{}".format(*sys.version_info),
                "kernel": platform.release(),
                "system": platform.freedesktop_os_release().get("PRETTY_NAME", "") if has_release() else "",
                "cpu": models[0] if models else platform.machine(),
                "cpus": len(os.sched_getaffinity(0)),
                "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "versions": {package: found for package in PACKAGES if (found := version(package))},
                "gpus": gpus(),
                "torch": torch_cuda(),
                "lacks": lacks(),
            }
        )
    )


def has_release() -> bool:
    return any(Path(path).exists() for path in ("/etc/os-release", "/usr/lib/os-release"))


if __name__ == "__main__":
    main()
