"""A kind stands in three places: its number and meaning, its rule, and its row in the page on frames."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "src").exists(), reason="needs the checkout")


def numbers() -> dict[str, int]:
    """Of kind.h, without the one that is never written."""
    text = (ROOT / "include/shmtree/kind.h").read_text()
    body = text.partition("enum class Kind")[2].partition("};")[0]
    return {
        name: int(number) for name, number in re.findall(r"^  k(\w+) = (\d+),", body, re.MULTILINE) if number != "0"
    }


def test_every_kind_has_a_rule() -> None:
    rows = re.findall(r"\{Kind::k(\w+), \"", (ROOT / "src/format/grammar.h").read_text())
    assert len(rows) > 50
    assert sorted(rows) == sorted(numbers())


def test_every_kind_is_in_the_page_on_frames() -> None:
    table = (ROOT / "docs/frame.md").read_text().partition("| no. | kind |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE)
    assert sorted(int(number) for row in rows for number in row.split(",")) == sorted(numbers().values())
