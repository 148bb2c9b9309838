#!/usr/bin/env python3
"""Prints the units of the C++ library that a message crosses from put to get, as `./dev structure --walk` does.

    python tools/walk.py build/dev/tests/cpp/walk

Callgrind runs the program, which puts and gets one message in each call of walk(), after calls that allocate memory.
A file counts if the program executed an instruction from it, even if the compiler inlined all its functions. A header
and its source count as one unit. Needs debug information.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from structure import ROOT, _source_name

#: The messages of tests/cpp/programs/walk.cpp, in order.
MESSAGES = ("a dict with an array of 100 KB", "a dict of two numbers, inline")

_FILE = re.compile(r"(fl|fi|fe|cfi|cfl)=\((\d+)\)(?: (.*))?")
_COST = re.compile(r"(?:0x[0-9a-f]+|[+-]?\d+|\*) \d+$")


def dump(program: Path) -> str:
    """Returns callgrind's output, with one part for each call of walk()."""
    callgrind = ["valgrind", "--tool=callgrind", "--collect-atstart=no", "--toggle-collect=walk", "--dump-after=walk"]
    callgrind += ["--combine-dumps=yes", "--callgrind-out-file=walked"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*callgrind, str(program.resolve())], cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{program} failed under callgrind (exit code {done.returncode}):\n{done.stderr}")
        return Path(folder, "walked").read_text()


def files_of_parts(text: str) -> list[set[str]]:
    """Returns the paths of the files that ran, for each part of callgrind's output."""
    paths: dict[str, str] = {}
    parts: list[set[str]] = []
    current, is_call = "", False
    for line in text.splitlines():
        if line.startswith("part: "):
            parts.append(set())
        elif found := _FILE.match(line):
            kind, number, path = found.groups()
            paths[number] = path or paths[number]
            if not kind.startswith("c"):  # otherwise the file of a called function
                current = paths[number]
        elif line.startswith("calls="):
            is_call = True  # the next line has the cost of the called function
        elif _COST.match(line):
            if not is_call:
                parts[-1].add(current)
            is_call = False
    return parts


def units(paths: set[str]) -> dict[str, list[str]]:
    """Returns the units among these files by their layers. Omits files of other libraries."""
    found = defaultdict(set)
    for path in map(Path, paths):
        if path.is_relative_to(ROOT / "src") or path.is_relative_to(ROOT / "include"):
            layer, _, name = _source_name(ROOT, path).partition(".")
            found[layer].add(name)
    return {layer: sorted(names) for layer, names in sorted(found.items(), key=lambda each: -len(each[1]))}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("program", type=Path, help="build/dev/tests/cpp/walk")
    parts = [units(part) for part in files_of_parts(dump(parser.parse_args().program))]
    walks = [part for part in parts if part]
    if len(walks) != len(MESSAGES):
        sys.exit(f"callgrind returned {len(walks)} walks of {len(MESSAGES)}: has the program debug information?")
    for message, by_layer in zip(MESSAGES, walks):
        print(f"{message}: {sum(map(len, by_layer.values()))} units")
        for layer, names in by_layer.items():
            print(f"  {layer:12} {len(names):3}  {' '.join(names)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
