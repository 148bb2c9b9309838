"""CHANGELOG.md has the format of Keep a Changelog, and every file has the same version."""

from __future__ import annotations

import datetime
import re
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(not (ROOT / "src").exists(), reason="needs the checkout")

KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
# Entries, and then tables or text below a smaller heading.
LIST = re.compile(r"\n(- .+\n(  .+\n)*)+\n?(#### (.|\n)*)?")
HEADING = re.compile(r"\[Unreleased\]|\[(\d+)\.(\d+)\.(\d+)\] - (\d{4}-\d\d-\d\d)")


def sections(text: str, level: int) -> list[tuple[str, str]]:
    """Returns the headings of a level, each with the text below it."""
    parts = re.split(rf"^#{{{level}}} (.*)\n", text, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def faults(text: str) -> list[str]:
    """Returns what in a text is not in the format of Keep a Changelog."""
    found = [] if text.startswith("# Changelog\n") else ["the title is not Changelog"]
    releases = []
    for place, (title, below) in enumerate(sections(text, 2)):
        heading = HEADING.fullmatch(title)
        if not heading or (title == "[Unreleased]" and place > 0):
            found.append(f"heading of a version: {title}")
        elif title != "[Unreleased]":
            *numbers, day = heading.groups()
            releases.append(([int(number) for number in numbers], datetime.date.fromisoformat(day)))
        found += [f"{title}: {fault}" for fault in faults_of_version(below)]
    found += [f"not newest first: {old[0]}" for new, old in pairwise(releases) if new[0] <= old[0] or new[1] < old[1]]
    return found


def faults_of_version(text: str) -> list[str]:
    kinds = [kind for kind, _ in sections(text, 3)]
    found = ["text without a kind of change"] if re.split("^### ", text, flags=re.MULTILINE)[0].strip() else []
    found += [f"unknown kind of change: {kind}" for kind in kinds if kind not in KINDS]
    found += ["a kind of change occurs twice"] if len(set(kinds)) < len(kinds) else []
    found += [f"{kind} is not a list" for kind, entries in sections(text, 3) if not LIST.fullmatch(entries)]
    return found


def newest_release(text: str) -> str:
    return re.search(r"^## \[(\d[\d.]*)\]", text, re.MULTILINE)[1]


CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
VERSION = re.search(r"^set\(SHMTREE_VERSION (\S+)\)$", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)[1]


def test_the_changelog_has_the_format_that_it_names() -> None:
    assert "https://keepachangelog.com/en/1.1.0/" in CHANGELOG
    assert faults(CHANGELOG) == []


GOOD = """# Changelog

## [Unreleased]

### Added

- One thing,
  in two lines.

## [0.1.1] - 2026-02-01

### Fixed

- Another.

## [0.1.0] - 2026-01-01

### Added

- The first.
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# Changelog", "# Changes"),
        ("[Unreleased]", "Unreleased: 0.2.0"),
        ("[0.1.0] - 2026-01-01", "[0.1.0]"),
        ("[0.1.0] - 2026-01-01", "[0.1.2] - 2026-01-01"),
        ("[0.1.0] - 2026-01-01", "[0.1.0] - 2026-03-01"),
        ("[0.1.0] - 2026-01-01", "[Unreleased]"),
        ("### Fixed", "### Mended"),
        ("### Fixed\n\n", ""),
        ("- Another.", "Another."),
        ("- Another.", "- Another.\n\n### Fixed\n\n- A third."),
        ("- Another.\n", ""),
    ],
)
def test_the_check_finds_another_format(old: str, new: str) -> None:
    assert faults(GOOD) == []
    assert faults(GOOD.replace(old, new)) != []


@pytest.mark.parametrize(("kind", "entries"), sections(CHANGELOG, 3), ids=lambda text: text.partition("\n")[0])
def test_a_section_has_at_most_1000_words(kind: str, entries: str) -> None:
    assert len(entries.partition("\n## ")[0].split()) <= 1000, kind


def test_an_unreleased_version_says_so() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev0)?", VERSION)
    assert ("## [Unreleased]\n" in CHANGELOG) == VERSION.endswith(".dev0")
    if VERSION.endswith(".dev0"):
        assert [*map(int, newest_release(CHANGELOG).split("."))] < [*map(int, VERSION.split(".")[:3])]
    else:
        assert newest_release(CHANGELOG) == VERSION


def test_the_citation_has_the_version_and_the_licence() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    fields = dict(re.findall(r"^([\w-]+): (.+)$", citation, re.MULTILINE))
    assert {"cff-version", "message", "title"} <= fields.keys()
    assert re.search(r"^authors:\n  - name: .", citation, re.MULTILINE)
    assert fields["version"] == VERSION
    assert fields["license"] == "MIT"
    assert ("date-released" in fields) == (not VERSION.endswith(".dev0"))
