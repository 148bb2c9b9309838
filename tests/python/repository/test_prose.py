"""The rules for prose, which tools/prose.py checks."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SPEC = importlib.util.spec_from_file_location("prose", ROOT / "tools/prose.py")
assert SPEC is not None
assert SPEC.loader is not None
prose = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(prose)

LONG = " ".join(["word"] * 31)

BROKEN = [
    ("src/a.h", "int a;  // Whether it runs.\n", "fragment"),
    ("src/a.h", "// Runs. Whoever\n// calls it waits.\n", "actor"),
    ("src/a.h", "int a;  // Runs. Whoever\n        // calls it waits.\n", "actor"),
    ("src/a.h", f"// {LONG}.\n", "long"),
    ("src/a.h", "constexpr int kMostRows = 1;\n", "most"),
    ("src/a.h", "bool is_anyone(int who);\n", "pronoun"),
    ("a.py", f'def f():\n    """Runs.\n\n    {LONG}.\n    """\n', "long"),
    ("a.py", "a = 1  # of a row\n# What it is.\n", "fragment"),
    ("a.py", f"def test_{'a' * 60}():\n    pass\n", "test"),
    ("a.cpp", f'TEST_CASE("{"a" * 61}") {{}}\n', "test"),
    ("docs/a.md", "Text.\n\n| a | Nobody waits. |\n", "actor"),
    ("dev", "# As above.\n", "fragment"),
]
FINE = [
    ("src/a.h", "// Returns 1.\nint a;  // number of rows\n"),
    ("src/a.h", f"// {LONG.replace(' ', '. Then ', 2)}.\n"),
    ("src/a.h", "".join(f"int a{i};  // number of rows of chunk {i}\n" for i in range(9))),
    ("src/a.h", 'auto url = "// Whether"; int b;\n'),
    ("a.py", "a = 1  # number of rows\n"),
    ("docs/a.md", f"```text\n{LONG} who\n```\n\nWhat is it? Who reads it?\n"),
    ("docs/a.md", f"`{LONG}` is code.\n"),
]


def rules_broken_in(path: str, source: str) -> set[str]:
    found = [each for text in prose.texts(path, source) for each in prose.broken_in(text)]
    return {each.rule for each in (*found, *prose.in_lines(path, source))}


@pytest.mark.parametrize(("path", "source", "rule"), BROKEN)
def test_a_broken_rule_is_found(path, source, rule):
    assert rule in rules_broken_in(path, source)


@pytest.mark.parametrize(("path", "source"), FINE)
def test_plain_text_breaks_no_rule(path, source):
    assert rules_broken_in(path, source) == set()
