"""Runs one peer at one workload. Reads commands from stdin: `prepare`, `run`, `end`. Answers with lines of JSON.

python -m bench.replay.worker PEER WORKLOAD SECONDS SCALE
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import sys
from typing import Any

from bench.replay import peers
from bench.replay.measures import Add, Measure, Prioritized, Sample, Sequences
from bench.replay.peers import Unsupported
from bench.replay.processes import Files, Writers
from bench.replay.workloads import WORKLOADS

KINDS: dict[str, type[Measure]] = {
    "add": Add,
    "sample": Sample,
    "prioritized": Prioritized,
    "sequences": Sequences,
    "writers": Writers,
    "files": Files,
}
MIN_ROWS = 2000  # minimum number of rows at any scale


def version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # on sys.path without being installed
        return "of the path"


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of a peer must not mix with the answers
    name, workload_name, seconds, scale = sys.argv[1:]
    workload = WORKLOADS[workload_name]
    capacity = max(int(workload.capacity * float(scale)), min(MIN_ROWS, workload.capacity))
    workload = dataclasses.replace(workload, capacity=capacity - capacity % workload.streams)

    def answer(**said: Any) -> None:
        answers.write(json.dumps(said) + "\n")
        answers.flush()

    try:
        peer = peers.load(name)
        measure = KINDS[workload.kind](peer, workload, float(seconds))
        for order in map(str.strip, sys.stdin):
            if order == "prepare":
                measure.prepare()
                answer(version=version_of(peer.requires))
            elif order == "run":
                answer(figures=measure.run())
            else:
                break
    except ImportError as error:
        answer(problem=f"not installed ({error})")
    except Unsupported as error:
        answer(problem=str(error))
    except Exception as error:
        answer(problem=f"{type(error).__name__}: {error}".splitlines()[0])
    answers.close()
    os._exit(0)  # writers and servers end with this process


if __name__ == "__main__":
    main()
