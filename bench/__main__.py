"""Measures shmtree and its competitors at a set of workloads: several runs of each, medians and spread.

In each round the competitors take turns, so that a slow moment of the machine affects all of them. Writes the results
to bench/results as JSON, as a Markdown table and, if matplotlib is installed, as plots.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from bench import competitors, limits, machine, pages, processes, report
from bench.kinds import KINDS
from bench.measured import Measured
from bench.session import Session
from bench.workloads import WORKLOADS, Workload


def chosen(patterns: list[str], names: list[str]) -> list[str]:
    """Returns the names that match one of the patterns, in the order of `names`."""
    lowered = [pattern.lower() for pattern in patterns]
    found = [name for name in names if any(fnmatch.fnmatch(name.lower(), pattern) for pattern in lowered)]
    for pattern in lowered:
        if not any(fnmatch.fnmatch(name.lower(), pattern) for name in names):
            raise SystemExit(f"bench: no name matches {pattern}; the names are: {', '.join(names)}")
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "workloads",
        nargs="*",
        help="names or patterns such as 'bytes-*' (default: all, or with --pages those shown there)",
    )
    parser.add_argument("--competitors", nargs="+", default=["*"], help="names or patterns (default: all)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.2, help="approximate seconds of a run")
    parser.add_argument("--limit", type=float, default=30, help="seconds after which a competitor counts as stuck")
    parser.add_argument("--minutes", type=float, default=20, help="start no workload after this time")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument(
        "--pages", action="store_true", help="put the figures into the pages, with those of two more programs"
    )
    parser.add_argument("--list", action="store_true", help="list workloads and competitors, without measuring")
    return parser.parse_args()


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.deadline = time.monotonic() + 60 * options.minutes
        self.rows: list[dict[str, Any]] = []
        self.loaded: dict[str, type[competitors.Base]] = {}
        self.missing: dict[str, str] = {}
        for name in chosen(options.competitors, list(competitors.NAMES)):
            try:
                self.loaded[name] = competitors.load(name)
            except ImportError as error:
                self.missing[name] = f"not installed ({error})"

    def start(self) -> None:
        for name, competitor in list(self.loaded.items()):
            try:
                competitor.start()
            except Exception as error:
                del self.loaded[name]
                self.missing[name] = f"does not start ({error})".splitlines()[0]
        gc.collect()
        gc.freeze()

    def end(self) -> None:
        processes.end_children()
        for competitor in self.loaded.values():
            competitor.sweep()

    def measure(self, workload: Workload) -> None:
        """Measures all competitors at one workload: all in memory, in turns, or one by one if messages are huge."""
        everyone = [name for name in self.loaded if workload.kind != "codec" and workload.takes(name)]
        bounds = limits.bounds(workload, self.options.seconds)
        try:
            message = self.message(workload)
        except (ImportError, competitors.Unsupported) as error:
            self.note(workload, [*everyone, *self.missing], str(error))
            return
        for group in [[name] for name in everyone] if workload.is_huge else [everyone]:
            if time.monotonic() > self.deadline:
                self.note(workload, group, f"not reached in {self.options.minutes:g} minutes")
                continue
            self.measure_group(workload, message, group, bounds)
            bounds = []
        for name, problem in self.missing.items() if everyone and not workload.against else ():
            self.note(workload, [name], problem)

    def message(self, workload: Workload) -> Any:
        """Returns the message, which all processes inherit because a large one is costly to make in each."""
        if 1.1 * workload.nbytes > processes.available_bytes():
            raise competitors.Unsupported(f"too large for the {processes.available_bytes() / 1e9:.0f} GB that are free")
        return workload.make(0)

    def note(self, workload: Workload, names: list[str], problem: str) -> None:
        for name in names:
            self.rows.append({"workload": workload.name, "competitor": name, "problem": problem})

    def measure_group(self, workload: Workload, message: Any, group: list[str], bounds: list[limits.Bound]) -> None:
        options = self.options
        sessions: list[Session] = []
        for name in group:
            scenario = KINDS[workload.kind]
            make = partial(scenario, self.loaded[name], workload, message, options.seconds)
            session = Session(name, options.limit, make)
            sessions.append(session)
            session.prepare()
        for _ in range(options.runs):
            for bound in bounds:
                bound.run()
            for session in sessions:
                session.run()
        for session in sessions:
            session.detail()
            session.close()
        for name in group:
            self.loaded[name].sweep()
        measured: list[Measured] = [*sessions, *bounds]
        self.rows += [one.row(workload) for one in measured]


def main() -> int:
    options = arguments()
    names = chosen(options.workloads or (pages.WORKLOADS if options.pages else ["*"]), list(WORKLOADS))
    if options.list:
        for name in names:
            print(f"{name:14} {WORKLOADS[name].about}")
        print("\ncompetitors:", ", ".join(competitors.NAMES))
        return 0
    bench = Bench(options)
    about = machine.describe(bench.loaded) | {"runs": options.runs}
    print(machine.line(about), file=sys.stderr)
    processes.adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    started = time.monotonic()
    try:
        bench.start()
        for name in names:
            before = len(bench.rows)
            bench.measure(WORKLOADS[name])
            report.show(WORKLOADS[name], bench.rows[before:])
    finally:
        bench.end()
    about["minutes"] = round((time.monotonic() - started) / 60, 1)
    about["load_after"] = machine.load()
    written = report.write(options.out, about, bench.rows)
    if options.pages:
        pages.run_programs(options.out)
        pages.update(about, bench.rows, written)
        pages.update_programs(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
