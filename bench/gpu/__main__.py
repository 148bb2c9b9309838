"""CUDA tensors and pinned arenas against what torch has: a table to stdout, and in the file that --out names.

    python -m bench.gpu queues|copies|loader|overlap [--seconds 1] [--out figures.json]

Exits with 77 when there is no GPU. --device cpu goes the same ways on the CPU, whose figures say nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

import torch

from bench.gpu.device import Device

NAMES = ("queues", "copies", "loader", "overlap")
SKIPPED = 77


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--seconds", type=float, default=1, help="for each figure, about")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("no GPU")
        sys.exit(SKIPPED)
    measured = importlib.import_module(f"bench.gpu.{arguments.name}").measure(
        Device(arguments.device, arguments.seconds)
    )
    print(measured["markdown"])
    if arguments.out:
        arguments.out.write_text(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
