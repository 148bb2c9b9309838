"""Writes the findings of tests/gpu/run as JSON and as Markdown."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from parts import Result

_NAMED = 6  # the table names at most this many tests per reason; the JSON has them all


def describe(machine: dict[str, Any]) -> str:
    """Returns the machine in one line."""
    if "problem" in machine:
        return str(machine["problem"])
    found = [f"{each['name']} (driver {each['driver_version']})" for each in machine["gpus"]]
    found = found or [machine["torch"].get("device") or machine["torch"]["problem"]]
    versions = [f"{name} {version}" for name, version in machine["versions"].items()]
    cuda = machine["torch"].get("cuda")
    return ", ".join(
        [
            *found,
            f"{machine['cpus']} x {machine['cpu']}",
            machine["system"],
            f"Linux {machine['kernel']}",
            f"Python {machine['python']}",
            *versions,
            *([f"torch's CUDA {cuda}"] if cuda else []),
            machine["time"],
        ]
    )


def summary(result: Result) -> str:
    """Returns a few words about the result of a part."""
    said = [result.why] if result.why else []
    said += [f"{count} {what}" for what, count in result.counts.items() if count]
    return ", ".join(said)


def _skips(results: list[Result]) -> list[str]:
    lines = []
    for result in results:
        for reason, tests in result.skips.items():
            names = sorted({test.partition("[")[0] for test in tests})
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            lines.append(f"- {result.part}: {reason}: {len(tests)} tests: {', '.join(names[:_NAMED])}{more}")
    return lines


def markdown(machine: dict[str, Any], results: list[Result], seconds: float) -> str:
    lines = [f"{describe(machine)}; {seconds:.0f} s in all", "", "| part | | s | |", "|---|---|---:|---|"]
    lines += [f"| {each.part} | {each.verdict} | {each.seconds:.0f} | {summary(each)} |" for each in results]
    if skips := _skips(results):
        lines += ["", "Skipped tests:", "", *skips]
    for each in results:
        if each.figures:
            lines += ["", each.figures["markdown"].rstrip()]
    return "\n".join(lines) + "\n"


def write(out: Path, machine: dict[str, Any], results: list[Result], seconds: float) -> None:
    figures = {"machine": machine, "seconds": seconds, "parts": [asdict(each) for each in results]}
    (out / "gpu.json").write_text(json.dumps(figures, indent=1))
    (out / "gpu.md").write_text(markdown(machine, results, seconds))
