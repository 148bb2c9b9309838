"""Reports skipped tests with the reasons, and fails if a reason is not allowed.

    report_skips.py ALLOWED FOLDER

FOLDER has the results of the steps of .ci/run. Its files STEP-NAME.xml are in JUnit's format, from pytest or CTest. Its
file `steps` has a line "STEP<tab>reason" for each skipped part of a step. Each line of ALLOWED has steps (* or names
separated by commas), "|", and a regular expression that must match the whole reason. If one step skips a test and
another one runs it, the report says so.
"""

from __future__ import annotations

import re
import sys
from ast import literal_eval
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree


class Skip(NamedTuple):
    step: str
    test: str  # "" for a skipped part of the step
    reason: str


def allowed(file: Path) -> list[tuple[set[str], re.Pattern[str]]]:
    rules = []
    for line in file.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            steps, _, reason = line.partition("|")
            rules.append(({step.strip() for step in steps.split(",")}, re.compile(reason.strip())))
    return rules


def reason_of(case: ElementTree.Element, skipped: ElementTree.Element) -> str:
    """Returns the reason: from the message, from the text for a module that pytest skipped, or from Catch2's output."""
    output = case.findtext("system-out") or ""
    said = re.search(r"explicitly with message:\s*(.+)", output)
    text = said[1] if said else skipped.get("message") or "no reason given"
    if text == "collection skipped":
        text = literal_eval((skipped.text or "").strip())[-1]  # (file, line, reason)
    return " ".join(text.removeprefix("Skipped: ").split())


def read(folder: Path) -> tuple[list[Skip], dict[str, set[str]]]:
    """Returns all skips, and the steps that ran each test. A module counts as run if one of its tests ran."""
    skips: list[Skip] = []
    ran: dict[str, set[str]] = defaultdict(set)
    for file in sorted(folder.glob("*.xml")):
        step = file.stem.partition("-")[0]
        for case in ElementTree.parse(file).getroot().iter("testcase"):
            module, name = case.get("classname") or "", case.get("name") or ""
            test = name if module in {"", name} else f"{module}::{name}"
            skipped = case.find("skipped")
            if skipped is None:
                ran[test].add(step)
                ran[module].add(step)
            elif skipped.get("type") != "pytest.xfail":
                skips.append(Skip(step, test, reason_of(case, skipped)))
    parts = folder / "steps"
    if parts.exists():
        for line in parts.read_text().splitlines():
            step, _, reason = line.partition("\t")
            skips.append(Skip(step, "", reason))
    return skips, ran


def report(allowed_file: Path, folder: Path) -> bool:
    skips, ran = read(folder)
    rules = allowed(allowed_file)
    groups: dict[tuple[str, str], list[Skip]] = defaultdict(list)
    for skip in skips:
        groups[skip.step, skip.reason].append(skip)
    fine = True
    for (step, reason), group in groups.items():
        may = any(steps & {step, "*"} and pattern.fullmatch(reason) for steps, pattern in rules)
        fine = fine and may
        tests = [skip.test for skip in group if skip.test]
        elsewhere = [ran[test] - {step} for test in tests]
        what = f"{len(tests)} tests" if len(tests) > 1 else tests[0] if tests else "a part of it"
        more = ""
        if tests and all(elsewhere):
            more = f" (run in: {', '.join(sorted(set.union(*elsewhere)))})"
        print(f"{'skipped' if may else 'MAY NOT BE SKIPPED'}: {step}: {what}: {reason}{more}")
        if not may:
            print("".join(f"    {test}\n" for test in tests[:10]), end="")
    if not groups:
        print("nothing was skipped")
    return fine


if __name__ == "__main__":
    sys.exit(0 if report(Path(sys.argv[1]), Path(sys.argv[2])) else 1)
