#!/usr/bin/env python3
"""Makes the table of kinds in docs/internals/frame.md from include/shmtree/base/kind.h and src/format/grammar.h.

tools/kinds.py            writes the table into the page
tools/kinds.py --check    fails if the table in the page is out of date
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/internals/frame.md"
BEGIN, END = "<!-- made by tools/kinds.py -->\n", "\n\n### References"

#: The page's notation for letters of a rule that stand for several values.
LETTERS = {"B": "S", "U": "16 bytes of `text`", "Q": "n: L V*n", "Z": "L [V]", "Y": "L [S]", "E": "D, item"}


def kinds() -> dict[str, tuple[int, str]]:
    """Returns number and meaning of each kind, by its name in kind.h, without kInvalid."""
    text = (ROOT / "include/shmtree/base/kind.h").read_text()
    body = text.partition("enum class Kind")[2].partition("};")[0]
    entries = re.findall(r"((?:^  /// .*\n)*)^  k(\w+) = (\d+),(?: *///<? (.*))?$", body, re.MULTILINE)
    return {
        name: (int(number), after or re.sub(r"\s*/// ", " ", before).strip())
        for before, name, number, after in entries
        if number != "0"
    }


def rules() -> dict[str, tuple[str, str]]:
    """Returns name and rule of each kind, by its name in kind.h."""
    rows = re.findall(r'\{Kind::k(\w+), "(\w+)", "[^"]*", "([^"]*)"', (ROOT / "src/format/grammar.h").read_text())
    return {kind: (name, rule) for kind, name, rule in rows}


def takes(rule: str) -> str:
    """Returns a rule in the notation of the page: `V n: (V V)*n`."""
    before, star, repeated = rule.partition("*")
    parts = [LETTERS.get(letter, letter) for letter in before]
    if star:
        parts.append(f"n: {repeated}*n" if len(repeated) == 1 else f"n: ({' '.join(repeated)})*n")
    return " ".join(parts)


def table() -> str:
    named = rules()
    lines = ["| no. | kind | takes | meaning |", "|---|---|---|---|"]
    for kind, (number, meaning) in kinds().items():
        name, rule = named[kind]
        lines.append(f"| {number} | {name} | {takes(rule)} | {meaning} |")
    return "\n".join(lines)


def main() -> int:
    page = PAGE.read_text()
    before, begin, rest = page.partition(BEGIN)
    made = before + begin + table() + END + rest.partition(END)[2]
    if "--check" in sys.argv[1:]:
        if made != page:
            print("the table of kinds in docs/internals/frame.md is out of date; run tools/kinds.py")
        return int(made != page)
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
