"""The site: numbers match the source, the reference lists all public names, and the navigation has every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ROW = re.compile(r"^\| ([^|]+) \| ([\d,.]+)(?: (KiB|MiB|TiB|s|ms))? \|(?:.*\|)? `([\w/.]+)` `(k\w+)` \|$", re.MULTILINE)
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "TiB": 1 << 40, "s": 1, "ms": 1}
LIMITS = ROW.findall((ROOT / "docs/limits.md").read_text())


def constant(file: str, name: str) -> int:
    """Returns the value of a line `constexpr ... name = expression` of a source file."""
    text = (ROOT / file).read_text()
    found = re.search(rf"constexpr [^;]*?\b{name} = ([^,;]+)[,;]", text)
    assert found, f"{file} has no {name}"
    expression = re.sub(r"std::\w+\{(\d+)\}", r"\1", found[1]).replace("'", "")
    expression = re.sub(r"\b(\d+)u\b", r"\1", expression)
    assert re.fullmatch(r"[\d<+*() -]+", expression), expression
    return int(eval(expression))


def test_the_page_on_limits_names_its_constants():
    page = (ROOT / "docs/limits.md").read_text()
    assert len(LIMITS) == len(re.findall(r"`k[A-Z]\w+` \|$", page, re.MULTILINE)) > 20


@pytest.mark.parametrize(("what", "number", "unit", "file", "name"), LIMITS, ids=[row[-1] for row in LIMITS])
def test_a_limit_of_the_page_is_that_of_the_source(what, number, unit, file, name):
    stated = int(number.replace(",", "")) * UNITS[unit]
    if name.endswith("Ns"):
        stated *= {"s": 1_000_000_000, "ms": 1_000_000}[unit]
    assert stated == constant(file, name), what


def test_format_versions_of_the_page_match_the_source():
    page = (ROOT / "docs/limits.md").read_text()
    stated = re.findall(r"\| (\d+) \(`([\w/.]+)` `(k\w+)`\)", page)
    assert len(stated) == 3
    assert [int(number) for number, _, _ in stated] == [constant(file, name) for _, file, name in stated]


def test_limits_page_names_every_environment_variable():
    read = re.compile(r'"(SHMTREE_[A-Z_]+)"|(?:environ|environment_variable|getenv)\W+(?:get\W+)?([A-Z_]+)"')
    files = [file for folder in ("src", "include", "python") for file in (ROOT / folder).rglob("*")]
    texts = [file.read_text() for file in files if file.suffix in (".cpp", ".h", ".py")]
    used = {first or second for text in texts for first, second in read.findall(text)}
    section = (ROOT / "docs/limits.md").read_text().partition("## Environment variables\n")[2]
    assert set(re.findall(r"^- `([A-Z_]+)", section, re.MULTILINE)) == used


@pytest.mark.parametrize("module", ["", ".errors", ".replay", ".cuda", ".torch", ".spdl", ".ray"])
def test_the_reference_of_python_has_every_public_name(module):
    file = ROOT / "python/shmtree" / (module[1:] or "__init__")
    text = (file / "__init__.py" if file.is_dir() else file.with_suffix(".py")).read_text()
    names = re.findall(r'"(\w+)"', re.search(r"__all__ = \[(.*?)\]", text, re.DOTALL)[1])
    page = (ROOT / "docs/site/python.md").read_text()
    assert len(names) > 3
    assert [name for name in names if not re.search(rf"\b{name}\b", page)] == []


def test_the_reference_of_cpp_has_every_public_header():
    headers = {file.name for file in (ROOT / "include/shmtree").rglob("*.h")} - {"shmtree.h"}
    page = (ROOT / "docs/site/cpp.md").read_text()
    assert set(re.findall(r"{doxygenfile} (\S+)", page)) == headers


def entries() -> dict[str, str]:
    """Returns the messages that errors.md explains, each with the first line of its explanation."""
    return dict(re.findall(r"^### `(.*)`\n\n(.*)", (ROOT / "docs/errors.md").read_text(), re.MULTILINE))


def literals_of_sources() -> str:
    """Returns the text of all sources, with adjacent string literals joined and quotes without backslashes."""
    files = [file for folder in ("src", "python") for file in sorted((ROOT / folder).rglob("*"))]
    text = "\n".join(file.read_text() for file in files if file.suffix in (".cpp", ".h", ".py"))
    return re.sub(r'"\s*\n\s*f?"', "", text).replace('\\"', '"')


def test_messages_on_the_page_on_errors_are_in_the_sources():
    sources = literals_of_sources()
    ours = [message for message, first in entries().items() if " of Python" not in first and " of NumPy" not in first]
    missing = [
        (message, part.strip())
        for message in ours
        for part in message.split("...")
        if part.strip() and part.strip() not in sources
    ]
    assert len(ours) > 40
    assert missing == []


def test_the_page_on_errors_names_every_exception():
    names = re.search(r"__all__ = \[(.*?)\]", (ROOT / "python/shmtree/errors.py").read_text(), re.DOTALL)[1]
    page = (ROOT / "docs/errors.md").read_text()
    assert [name for name in re.findall(r'"(\w+)"', names) if f"`{name}`" not in page and name != "Error"] == []
    explained = {name for first in entries().values() for name in re.findall(r"`(\w+)`", first)}
    assert set(re.findall(r'"(\w+)"', names)) - explained <= {"ConnectionLost", "Error"}


def test_every_page_is_in_the_navigation_of_the_site():
    trees = re.findall(r"```{toctree}\n(.*?)```", (ROOT / "docs/index.md").read_text(), re.DOTALL)
    placed = re.findall(r"^(?!:)(?:.*<)?([\w/-]+)>?$", "\n".join(trees), re.MULTILINE)
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(placed) == sorted({str(page.with_suffix("")) for page in pages} - {"index"})
