"""Compares CUDA tensors and pinned arenas with torch. Writes a table to stdout, and figures to the file of --out.

    python -m bench.gpu queues|copies|loader|overlap [--seconds 1] [--out figures.json]

Exits with status 77 if there is no GPU. --device cpu runs the same code on the CPU; its figures are meaningless.
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
    parser.add_argument("--seconds", type=float, default=1, help="approximate seconds for each figure")
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
