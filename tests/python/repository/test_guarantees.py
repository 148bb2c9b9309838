"""The tests that docs/guarantees.md names exist, and each row names some. The names in docs/recovery.md exist too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/guarantees.md").read_text()
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if re.match(r"\| (?!promise)\S", line)]
SHOWN = re.compile(r'`(\w+/\w+\.cpp)` "([^"]+)"|`(test_\w+\.py)::(\w+)`')


def test_the_page_has_rows_of_three_parts() -> None:
    assert len(ROWS) > 20
    assert [row for row in ROWS if len(row) != 3] == []


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:60] for row in ROWS])
def test_every_promise_names_existing_tests(row: list[str]) -> None:
    parts = row[2].split("; ")
    assert parts
    for part in parts:
        named = SHOWN.fullmatch(part)
        assert named, part
        source, title, module, function = named.groups()
        if source:
            assert f'TEST_CASE("{title}")' in (ROOT / "tests/cpp" / source).read_text()
        else:
            (file,) = (ROOT / "tests/python").rglob(module)
            text = file.read_text()
            assert re.search(rf"^(async def|def|class) {function}\b", text, re.MULTILINE), part


def test_functions_named_in_recovery_md_exist() -> None:
    sources = "".join(
        path.read_text()
        for layer in ("memory", "channel", "broadcast")
        for path in sorted((ROOT / "src" / layer).glob("*.[hc]*"))
    )
    named = re.findall(r"`(\w+)::((?!k[A-Z])[a-z]\w*)`", (ROOT / "docs/recovery.md").read_text())
    assert len(named) > 30
    for owner, function in named:
        assert re.search(rf"(class|struct) {owner}\b", sources), owner
        assert re.search(rf"\b{function}\(", sources), f"{owner}::{function}"
