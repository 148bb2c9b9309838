"""Each guarantee of docs/guarantees.md has tests that name it by a mark. The names in recovery.md exist."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOOL = ROOT / "tools/guarantees.py"
SPEC = importlib.util.spec_from_file_location("guarantees", TOOL)
assert SPEC is not None
assert SPEC.loader is not None
guarantees = importlib.util.module_from_spec(SPEC)
sys.modules["guarantees"] = guarantees
SPEC.loader.exec_module(guarantees)

PAGE = "## Puts\n\n- `atomic`: A put\n  is atomic.\n"
CPP = '// guarantee: atomic\n// A comment.\nTEST_CASE("a put is atomic") {\n'
PYTHON = """
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.guarantee("atomic", "ordered")
async def test_put_is_atomic(size):
    pass

TestModel = pytest.mark.guarantee("atomic")(Model.TestCase)
"""


def test_every_guarantee_has_tests() -> None:
    checked = subprocess.run([sys.executable, TOOL, "put-is-atomic"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.startswith("put-is-atomic\n- `tests/cpp/")


def test_each_id_on_the_site_leads_to_its_tests() -> None:
    text = guarantees.SOURCE.read_text()
    targets = re.findall(
        r"^- \[([a-z0-9-]+)\]\(site/guarantee-tests\.md#\1\): ",
        guarantees.with_links(text, "site/guarantee-tests.md"),
        re.MULTILINE,
    )
    headings = re.findall(r"^### (\S+)\n\n.+\n\n- `tests/", guarantees.page(), re.MULTILINE)
    assert targets == headings == [each.id for each in guarantees.guarantees_in(text)]
    assert len(targets) > 100


def test_marks_of_both_languages_are_found() -> None:
    assert list(guarantees.marks_in_cpp("a.cpp", CPP)) == [("atomic", "a.cpp", "a put is atomic")]
    assert list(guarantees.marks_in_python("a.py", PYTHON)) == [
        ("atomic", "a.py", "test_put_is_atomic"),
        ("ordered", "a.py", "test_put_is_atomic"),
        ("atomic", "a.py", "TestModel"),
    ]


def test_untested_and_unknown_guarantees_are_errors() -> None:
    found = guarantees.guarantees_in(PAGE)
    assert found == [("Puts", "atomic", "A put is atomic.")]
    assert guarantees.errors_of(found, [guarantees.Mark("atomic", "a.py", "test_a")]) == []
    assert guarantees.errors_of(found, []) == ["atomic has no test: mark one, or remove the guarantee"]
    unknown = [guarantees.Mark("atomic", "a.py", "test_a"), guarantees.Mark("atomc", "a.py", "test_b")]
    assert guarantees.errors_of(found, unknown) == ['a.py: "test_b" has the unknown guarantee atomc']
    assert guarantees.errors_of(found * 2, unknown[:1]) == ["docs/guarantees.md has atomic twice"]


@pytest.mark.parametrize("text", [CPP.replace("// A comment.", ""), "// guarantee: atomic\n"])
def test_a_cpp_mark_above_no_test_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="above no TEST_CASE"):
        list(guarantees.marks_in_cpp("a.cpp", text))


@pytest.mark.parametrize("text", [PYTHON.replace("test_", "get_"), "@pytest.mark.guarantee()\ndef test_a(): pass\n"])
def test_a_python_mark_on_no_test_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="mark"):
        list(guarantees.marks_in_python("a.py", text))


@pytest.mark.parametrize("item", ["- A put is atomic.", PAGE.replace("`atomic`", "atomic")])
def test_an_item_without_an_id_is_an_error(item: str) -> None:
    with pytest.raises(ValueError, match="item"):
        guarantees.guarantees_in("## Puts\n" + item)


def test_functions_named_in_recovery_md_exist() -> None:
    sources = "".join(
        path.read_text()
        for layer in ("memory", "channel", "broadcast")
        for path in sorted((ROOT / "src" / layer).glob("*.[hc]*"))
    )
    named = re.findall(r"`(\w+)::((?!k[A-Z])[a-z]\w*)`", (ROOT / "docs/internals/recovery.md").read_text())
    assert len(named) > 30
    for owner, function in named:
        assert re.search(rf"(class|struct) {owner}\b", sources), owner
        assert re.search(rf"\b{function}\(", sources), f"{owner}::{function}"
