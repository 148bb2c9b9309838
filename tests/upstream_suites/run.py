"""Runs the tests of other libraries with shmtree's classes in place of theirs.

    python tests/upstream_suites/run.py LIBRARY [--plain] [--workers N] [--source FOLDER] [--report FILE]
        [arguments of pytest]

LIBRARY is sb3, gymnasium, cpprb, torchrl or py-sharedmemory; it must be installed, with pytest and pytest-timeout. The
script fetches the tests for the installed version, and keeps none of them. They come from the library's source package,
or from its repository if the package lacks some of them. `--source` takes them from a folder with the sources instead.
`--plain` tests the library's own classes. `--workers` makes Gymnasium's vector environments with so many workers.
`--report` writes one line per test, with its result and its name.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree
from collections import Counter

HERE = pathlib.Path(__file__).resolve().parent

#: For each library: its distribution, its repository if its source package lacks tests, and the test files.
LIBRARIES = {
    "sb3": ("stable_baselines3", None, [f"tests/test_{name}.py" for name in (
        "buffers", "vec_envs", "n_step_replay", "her")]),
    "gymnasium": ("gymnasium", "https://github.com/Farama-Foundation/Gymnasium", [f"tests/vector/test_{name}.py" for
        name in ("async_vector_env", "autoreset_mode", "observation_mode", "vector_env", "vector_env_info")]),
    "cpprb": ("cpprb", "https://github.com/ymd-h/cpprb", [f"test/test_{name}.py" for name in (
        "PyReplayBuffer", "features", "HER", "HighLevelAPI", "issue", "mp", "multi_rew", "save_load", "train", "util",
        "v8")]),
    "torchrl": ("torchrl", "https://github.com/pytorch/rl", [f"test/rb/test_{name}.py" for name in (
        "rb_core", "samplers", "prioritized", "storages", "writers")]),
    "py-sharedmemory": ("py-sharedmemory", None, [f"tests/test_{name}.py" for name in (
        "queue", "objects", "processes", "threads", "usecases")]),
}  # fmt: skip

SECONDS_PER_TEST = 60


def fetch(distribution: str, repository: str | None, folder: pathlib.Path) -> pathlib.Path:
    """Fetches the sources of the installed version and returns their folder."""
    version = importlib.metadata.version(distribution)
    if repository is not None:
        command = ["git", "clone", "-q", "--depth=1", f"--branch=v{version}", repository, str(folder / "sources")]
        subprocess.run(command, check=True)
        return folder / "sources"
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary=:all:"]
    subprocess.run([*pip, f"--dest={folder}", f"{distribution}=={version}"], check=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as package:
        package.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if path.is_dir())


def outcome(case: xml.etree.ElementTree.Element) -> str:
    kinds = [part.tag for part in case]
    return next((kind for kind in ("error", "failure", "skipped") if kind in kinds), "passed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--source", type=pathlib.Path)
    parser.add_argument("--report", type=pathlib.Path)
    options, to_pytest = parser.parse_known_args()
    distribution, repository, files = LIBRARIES[options.library]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        sources = options.source or fetch(distribution, repository, folder)
        # Copied away from the sources, so that the tests import the installed library.
        tests = [path for path in files if (sources / path).exists()]
        at = pathlib.PurePath(files[0]).parts[0]
        shutil.copytree(sources / at, folder / "tests" / at)
        environment = dict(os.environ)
        given = [
            str(pathlib.Path(path).resolve()) for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path
        ]
        environment["PYTHONPATH"] = os.pathsep.join([str(HERE), *given])
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        if not options.plain:
            environment["SHMTREE_ORIGINAL"] = options.library
            environment["SHMTREE_WORKERS"] = str(options.workers)
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "substitute", "-p", "no:cacheprovider", "--tb=line"]
        pytest += [f"--timeout={SECONDS_PER_TEST}", f"--junit-xml={folder / 'report.xml'}", *to_pytest, *tests]
        subprocess.run(pytest, cwd=folder / "tests", env=environment, check=False)
        cases = list(xml.etree.ElementTree.parse(folder / "report.xml").iter("testcase"))
        found = [(outcome(case), f"{case.get('classname')}.{case.get('name')}") for case in cases]
    counts = Counter(what for what, _ in found)
    if options.report is not None:
        options.report.write_text("".join(f"{what} {name}\n" for what, name in sorted(found)))
    print(f"{options.library}{' as it is' * options.plain}: {len(found)} tests,", dict(counts))


if __name__ == "__main__":
    main()
