"""Counts, with callgrind, the instructions that encoding, decoding and sending a few samples take, in C++ and Python.

    ./dev instructions             compares with bench/instructions.json; fails if a count rises by more than 3 %
    ./dev instructions --record    writes that file

Unlike times, counts do not depend on the load of the machine. They do depend on the compiler, the C library and the
interpreter. If these differ from the recorded ones, the script prints the counts and compares nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RECORD = Path(__file__).with_suffix(".json")
MAX_RISE = 0.03

# The C library chooses its memcpy by the processor's features and cache sizes. This pins one choice.
C_LIBRARY = ":".join(
    [
        "glibc.cpu.hwcaps=-AVX512F,-AVX2,-AVX,-AVX_Fast_Unaligned_Load,-ERMS,-SSSE3,-SSE4_1,-SSE4_2,-MOVBE,-BMI2",
        "glibc.cpu.x86_data_cache_size=32768",
        "glibc.cpu.x86_shared_cache_size=1048576",
        "glibc.cpu.x86_non_temporal_threshold=16777216",
    ]
)


def run_counted(command: list[str], function: str) -> tuple[str, dict[str, int]]:
    """Counts the instructions of each call of `function`. The program prints what it was built with, then a name for
    each call. Returns both, with the counts. Subtracts the count of a call that is named "nothing" from the others."""
    callgrind = ["valgrind", "--tool=callgrind", "--collect-atstart=no", f"--toggle-collect={function}"]
    callgrind += [f"--dump-after={function}", "--combine-dumps=yes", "--callgrind-out-file=counts"]
    # With fixed addresses, hashes of addresses are equal in every run. If setarch is not allowed, run without it.
    fixed_addresses = ["setarch", platform.machine(), "--addr-no-randomize"]
    if shutil.which("setarch") and subprocess.run([*fixed_addresses, "true"], capture_output=True).returncode == 0:
        callgrind = [*fixed_addresses, *callgrind]
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "GLIBC_TUNABLES": C_LIBRARY, "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*callgrind, *command], cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{command} failed under callgrind (exit code {done.returncode}):\n{done.stdout}{done.stderr}")
        dumps = Path(folder, "counts").read_text()
    built_with, *names = done.stdout.splitlines()
    # There is one part per exit from the function, and a last one for the end of the program, which counts nothing.
    counts = [int(count) for count in re.findall(r"^totals: (\d+)$", dumps, re.MULTILINE)]
    if len(counts) < len(names) or not all(counts[: len(names)]) or any(counts[len(names) :]):
        sys.exit(f"callgrind returned {len(counts)} counts for {len(names)} programs: {counts} for {names}")
    by_name = dict(zip(names, counts))
    nothing = by_name.pop("nothing", 0)
    return built_with, {name: count - nothing for name, count in by_name.items()}


def compare(counts: dict[str, int], recorded: dict[str, int]) -> list[str]:
    """Prints every count next to the recorded one, and returns the failures."""
    wrong = [f"{name}: recorded, and no longer counted" for name in recorded if name not in counts]
    for name, count in counts.items():
        if name not in recorded:
            print(f"{name:32} {count:9,d}")
            wrong.append(f"{name}: not recorded")
            continue
        change = count / recorded[name] - 1
        print(f"{name:32} {count:9,d}  recorded {recorded[name]:9,d}  {change:+7.2%}")
        if change > MAX_RISE:
            wrong.append(f"{name}: {count:,d} instructions are {change:.1%} over the recorded {recorded[name]:,d}")
    return wrong


def check(title: str, built_with: str, counts: dict[str, int], recorded: dict[str, Any]) -> list[str]:
    """Prints the counts, compared with the recorded ones if these were built with the same. Returns the failures."""
    print(f"{title}, {built_with}")
    if recorded["built with"] == built_with:
        return compare(counts, recorded["instructions"])
    for name, count in counts.items():
        print(f"{name:32} {count:9,d}")
    print(f"not compared: recorded with {recorded['built with']}")
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, help="bench_instructions")
    parser.add_argument("--record", action="store_true", help=f"write the counts to {RECORD.name}")
    arguments = parser.parse_args()
    python = [sys.executable, str(RECORD.with_name("python_instructions.py"))]
    counted = {
        "C++": run_counted([str(arguments.program.resolve())], "measured"),
        "Python": run_counted(python, "PyNumber_InPlaceMatrixMultiply"),
    }
    if arguments.record:
        record = {title: {"built with": it, "instructions": counts} for title, (it, counts) in counted.items()}
        RECORD.write_text(json.dumps(record, indent=2) + "\n")
        print(f"recorded in {RECORD}:")
    recorded = json.loads(RECORD.read_text())
    wrong = [each for title, (it, counts) in counted.items() for each in check(title, it, counts, recorded[title])]
    if wrong:
        print(
            "\n".join(wrong),
            "If these changes are intended, run ./dev instructions --record.",
            sep="\n",
            file=sys.stderr,
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
