"""Runs workloads times peers in turns, and writes the results."""

from __future__ import annotations

import argparse
import fnmatch
import json
import statistics
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import bench.replay
from bench import machine, markdown
from bench.replay import peers
from bench.replay.workloads import WORKLOADS, Workload

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]


class Session:
    """A peer's process and its answers."""

    def __init__(self, name: str, workload: Workload, options: argparse.Namespace) -> None:
        self.name, self.limit = name, options.limit
        self.problem, self.version = "", ""
        self.runs: list[dict[str, float]] = []
        interpreter = dict(options.python).get(name, sys.executable)
        command = [interpreter, "-m", "bench.replay.worker", name, workload.name]
        command += [str(options.seconds), str(options.scale)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=None if options.verbose else subprocess.DEVNULL, text=True)  # fmt: skip

    def order(self, word: str) -> Row:
        if self.problem:
            return {}
        late = threading.Timer(self.limit, self.process.kill)
        late.start()
        try:
            assert self.process.stdin and self.process.stdout
            self.process.stdin.write(word + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        late.cancel()
        said: Row = json.loads(line) if line else {"problem": f"no answer in {self.limit:g} s"}
        self.problem = said.get("problem", "")
        return said

    def prepare(self) -> None:
        self.version = self.order("prepare").get("version", "")

    def run(self) -> None:
        if figures := self.order("run").get("figures"):
            self.runs.append(figures)

    def row(self, workload: Workload) -> Row:
        made: Row = {"workload": workload.name, "peer": self.name, "problem": self.problem, "version": self.version}
        if self.runs and not self.problem:
            made |= {key: statistics.median(run[key] for run in self.runs) for key in self.runs[0]}
            made["all_rates"] = [run["rate"] for run in self.runs]
        return made

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def measure(workload: Workload, names: list[str], options: argparse.Namespace) -> list[Row]:
    sessions: list[Session] = []
    try:
        for name in names:
            sessions.append(Session(name, workload, options))
            sessions[-1].prepare()
        for _ in range(options.rounds):
            for session in sessions:
                session.run()
        return [session.row(workload) for session in sessions]
    finally:
        for session in sessions:
            session.end()


def short(value: float) -> str:
    for limit, unit in ((1e6, " M"), (1e3, " k")):
        if value >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def table(names: list[str], rows: list[Row]) -> str:
    """Returns a line per workload: all peers, and our rate relative to the best of them."""
    lines = []
    for name in dict.fromkeys(row["workload"] for row in rows):
        rates = {row["peer"]: row.get("rate", 0.0) for row in rows if row["workload"] == name}
        others = max((rate for peer, rate in rates.items() if peer not in (peers.OURS, *peers.BOUNDS)), default=0)
        times = f"{rates[peers.OURS] / others:.2f}" if others and rates.get(peers.OURS) else ""
        cells = [short(rates[peer]) if rates.get(peer) else "-" for peer in names]
        lines.append([f"{name}, {WORKLOADS[name].unit}", *cells, times])
    return markdown.table(["", *names, "ours / best peer"], lines)


def problems(rows: list[Row]) -> str:
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["problem"]:
            found.setdefault((row["peer"], row["problem"]), []).append(row["workload"])
    return "".join(f"- {peer}: {problem} ({', '.join(names)})\n" for (peer, problem), names in found.items())


def details(rows: list[Row]) -> str:
    known = ("workload", "peer", "problem", "version", "rate", "all_rates")
    lines = []
    for row in rows:
        if more := {key: value for key, value in row.items() if key not in known}:
            lines.append(f"- {row['workload']}, {row['peer']}: " + ", ".join(f"{k} {v:.4g}" for k, v in more.items()))
    return "\n".join(lines) + "\n"


def pair(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    return name, path


def chosen(patterns: list[str], names: list[str]) -> list[str]:
    found = [name for name in names if any(fnmatch.fnmatch(name.lower(), pattern.lower()) for pattern in patterns)]
    if not found:
        raise SystemExit(f"bench.replay: no name matches {' or '.join(patterns)}; the names are: {', '.join(names)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="bench.replay", description=bench.replay.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", default=["*"], help="names or patterns (default: all)")
    parser.add_argument("--peers", nargs="+", default=["*"], help="names or patterns (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the medians are shown")
    parser.add_argument("--seconds", type=float, default=0.5, help="approximate seconds of a run")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a peer counts as stuck")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all capacities")
    parser.add_argument("--python", type=pair, action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--out", default="replay", help="name of the file in bench/results")
    parser.add_argument("--verbose", action="store_true", help="show what the peers print")
    parser.add_argument("--list", action="store_true", help="list workloads and peers, without measuring")
    options = parser.parse_args()
    workloads = chosen(options.workloads, list(WORKLOADS))
    if options.list:
        print(*(f"{name:26} {WORKLOADS[name].about}" for name in workloads), sep="\n")
        print("\npeers:", ", ".join(peers.NAMES))
        return
    names = chosen(options.peers, list(peers.NAMES))
    about = machine.describe({})
    rows: list[Row] = []
    for name in workloads:
        rows += measure(WORKLOADS[name], names, options)
        print(table(names, [row for row in rows if row["workload"] == name]).splitlines()[-1], file=sys.stderr)
    about["versions"] |= {row["peer"]: row["version"] for row in rows if row["version"]}
    print(machine.line(about), table(names, rows), problems(rows), details(rows), sep="\n\n")
    machine.save(options.out, about, rows=rows)


if __name__ == "__main__":
    main()
