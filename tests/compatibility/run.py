"""Runs two versions of shmtree against each other: names, handles, messages and files, in both directions.

    python tests/compatibility/run.py COMMIT [--old FOLDER] [--verbose]

One side is the shmtree that this Python imports, the other is COMMIT. The script builds COMMIT once, into
build/versions; `--old` names a folder with a package of it instead. For each case of peer.py, one version makes an
object and a new process of the other version reads it. Allowed outcomes:

- The reader gets the value: both versions have one format.
- The reader raises an error, and its text has both version numbers.
- A reader of COMMIT raises any other error, for objects that the present version makes: COMMIT cannot be changed.
- The commands that read all arenas succeed. Those of the present version, except `ls`, print both version numbers.

A hang, a crash, another value, and any other error of the present version are findings. Each version first runs against
itself, and there each case must give the value.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import peer

import shmtree

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SECONDS = 120
BOTH_NUMBERS = re.compile(r"version (\d+); this library reads version (\d+)")


def built(commit: str) -> pathlib.Path:
    """Returns a folder with the package of a commit. Builds it if it is not there."""
    name = subprocess.run(
        ["git", "rev-parse", "--verify", f"{commit}^{{commit}}"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    folder = ROOT / "build/versions" / name
    if (folder / "site/shmtree").exists():
        return folder / "site"
    shutil.rmtree(folder, ignore_errors=True)
    sources = folder / "source"
    sources.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", name], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(sources)], input=archive, check=True)
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-build-isolation", "--no-deps"]
    options = [f"--config-settings=build-dir={folder / 'build'}", "--config-settings=cmake.define.SHMTREE_LTO=OFF"]
    subprocess.run([*pip, *options, "--target", str(folder / "made"), str(sources)], check=True)
    (folder / "made").rename(folder / "site")
    shutil.rmtree(sources)
    shutil.rmtree(folder / "build", ignore_errors=True)
    return folder / "site"


class Side:
    """One version. Its processes import the package from its own folder."""

    def __init__(self, title: str, site: pathlib.Path, names: pathlib.Path) -> None:
        self.title = title
        self._environment = dict(os.environ, PYTHONPATH=str(site), SHMTREE_NAMES_DIR=str(names))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(HERE / "peer.py"), *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self._environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def read(self, folder: pathlib.Path, case: str) -> dict[str, str]:
        """Returns the outcome of a case, or how its process ended."""
        with self.start("read", str(folder), case) as process:
            try:
                out, err = process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                return {"ended": f"no end within {SECONDS} s"}
        if process.returncode != 0:
            return {"ended": f"status {process.returncode}: {err.strip()[-500:]}"}
        outcome: dict[str, str] = json.loads(out.splitlines()[-1])
        return outcome


def has_both_numbers(text: str) -> bool:
    return any(found != own for found, own in BOTH_NUMBERS.findall(text))


def judge(case: str, outcome: dict[str, str], expected: dict[str, str] | None, by_present: bool) -> str:
    """Returns "" for an allowed outcome, and a description of any other."""
    if "ended" in outcome:
        return "the process ended"
    if case in peer.OBSERVERS:
        if "error" in outcome:
            return "the command failed" if by_present or expected is None else ""
        shows_all = expected is None or not by_present or case == "shmtree ls" or has_both_numbers(outcome["value"])
        return "" if shows_all else "no version numbers"
    if expected is None:
        return "" if "value" in outcome else "an error of one version"
    if outcome == expected:
        return ""
    if "value" in outcome:
        return f"another value than {expected}"
    return "" if not by_present or has_both_numbers(outcome["text"]) else "an error without both numbers"


def meet(maker: Side, reader: Side, expected: dict[str, dict[str, str]], verbose: bool) -> tuple[dict, int]:
    """Runs all cases. Returns their outcomes and the number of findings."""
    outcomes, findings = {}, 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        process = maker.start("make", str(folder))
        assert process.stdin is not None and process.stdout is not None
        try:
            if process.stdout.readline().strip() != "ready":
                raise SystemExit(f"{maker.title} makes nothing: {process.communicate()[1]}")
            for case in peer.CASES:
                if case == peer.AFTER_KILL:
                    process.kill()
                    process.wait()
                outcome = outcomes[case] = reader.read(folder, case)
                fault = judge(case, outcome, expected.get(case), reader.title == "present")
                findings += bool(fault)
                if fault or verbose:
                    print(f"  {case}: {fault or 'ok'}: {json.dumps(outcome)[:400]}", flush=True)
        finally:
            process.stdin.close()
            process.wait(SECONDS)
    read = sum("value" in outcome for outcome in outcomes.values())
    print(
        f"{maker.title} to {reader.title}: {len(outcomes)} cases, {read} give a value, {findings} findings", flush=True
    )
    return outcomes, findings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--old", type=pathlib.Path)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    site = options.old or built(options.commit)
    with tempfile.TemporaryDirectory() as names:
        # Both versions use this folder of names.
        folder = pathlib.Path(names) / "names"
        present = Side("present", pathlib.Path(shmtree.__file__).parents[1], folder)
        old = Side(options.commit, site, folder)
        findings = 0
        expected: dict[str, dict[str, dict[str, str]]] = {}
        for side in (present, old):
            expected[side.title], found = meet(side, side, {}, options.verbose)
            findings += found
        for maker, reader in ((old, present), (present, old)):
            findings += meet(maker, reader, expected[maker.title], options.verbose)[1]
    raise SystemExit(1 if findings else 0)


if __name__ == "__main__":
    main()
