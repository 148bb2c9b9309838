#!/usr/bin/env python3
"""Finds the tests of each guarantee of docs/guarantees.md by the marks on the tests.

tools/guarantees.py            checks the marks
tools/guarantees.py ID...      checks them, and prints the tests of these guarantees

Fails if a guarantee has no test, or a test names an unknown guarantee. `./dev docs` puts the tests of all guarantees on
a page of the site. An item of a list in docs/guarantees.md has
the guarantee's id, then the guarantee. A test names one or more ids: in Python by `@pytest.mark.guarantee("id")`, in
C++ by the comment `// guarantee: id, id` above TEST_CASE.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "docs/guarantees.md"
ITEM = re.compile(r"^- `([a-z0-9-]+)`: (.+)", re.MULTILINE)  # the id and the guarantee


class Guarantee(NamedTuple):
    heading: str
    id: str
    sentence: str


class Mark(NamedTuple):
    id: str
    path: str
    test: str


def guarantees_in(page: str) -> list[Guarantee]:
    """Returns the items of the page's lists. An item begins with the guarantee's id."""
    heading, found = "", []
    for line in re.sub(r"\n  +", " ", page).splitlines():
        if line.startswith("## "):
            heading = line[3:]
        item = ITEM.fullmatch(line)
        if item:
            found.append(Guarantee(heading, item[1], item[2]))
        elif line.startswith("- "):
            raise ValueError(f"this item has no id: {line}")
    return found


def marks_in_cpp(path: str, text: str) -> Iterator[Mark]:
    """Yields the marks of a C++ file. Other comment lines may be between a mark and its TEST_CASE."""
    ids: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        marked = re.match(r"// guarantee: (.*)", line)
        test = re.match(r'\w*TEST_CASE\w*\((?:\w+, )?"([^"]+)"', line)
        if marked:
            ids += marked[1].split(", ")
        elif test:
            yield from (Mark(each, path, test[1]) for each in ids)
            ids = []
        elif ids and not line.startswith("//"):
            raise ValueError(f"{path}:{number}: the mark of {', '.join(ids)} is above no TEST_CASE")


def ids_of(call: ast.expr) -> list[str]:
    """Returns the ids in a call of `pytest.mark.guarantee`, or nothing if it is another expression."""
    if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.guarantee":
        return [str(ast.literal_eval(each)) for each in call.args]
    return []


def marks_in_python(path: str, text: str) -> Iterator[Mark]:
    """Yields the marks of a Python file: decorators, and calls as in `TestA = pytest.mark.guarantee("a")(A)`."""
    found = 0
    for node in ast.parse(text).body:
        name, ids = "", []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            calls = [each for each in node.decorator_list if ids_of(each)]
            name, ids = node.name, [each for call in calls for each in ids_of(call)]
            found += len(calls)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and ids_of(node.value.func):
            name, ids = ast.unparse(node.targets[0]), ids_of(node.value.func)
            found += 1
        if ids and not name.lower().startswith("test"):
            raise ValueError(f"{path}: {name} has a mark, but is no test")
        yield from (Mark(each, path, name) for each in ids)
    if found != len(re.findall(r"^[^#\n]*\bmark\.guarantee\(", text, re.MULTILINE)):
        raise ValueError(f"{path}: a mark is neither on a function or class of the module nor has an id")


def all_marks() -> list[Mark]:
    marks: list[Mark] = []
    for path in sorted((ROOT / "tests").rglob("*.cpp")):
        marks += marks_in_cpp(path.relative_to(ROOT).as_posix(), path.read_text())
    for path in sorted((ROOT / "tests/python").rglob("test_*.py")):
        text = path.read_text()
        if "pytest.mark.guarantee(" in text and path.name != "test_guarantees.py":
            marks += marks_in_python(path.relative_to(ROOT).as_posix(), text)
    return marks


def errors_of(guarantees: list[Guarantee], marks: list[Mark]) -> list[str]:
    ids = [each.id for each in guarantees]
    tested = {mark.id for mark in marks}
    return [
        *(f"docs/guarantees.md has {id} twice" for id in sorted(set(ids)) if ids.count(id) > 1),
        *(f"{id} has no test: mark one, or remove the guarantee" for id in ids if id not in tested),
        *(f'{path}: "{test}" has the unknown guarantee {id}' for id, path, test in marks if id not in ids),
    ]


def tests_of(id: str, marks: list[Mark]) -> str:
    """Returns the tests of a guarantee as a list of Markdown: files, and below each the names."""
    lines: list[str] = []
    for path in dict.fromkeys(mark.path for mark in marks if mark.id == id):
        lines.append(f"- `{path}`")
        lines += (f"  - `{mark.test}`" for mark in marks if (mark.id, mark.path) == (id, path))
    return "\n".join(lines)


def page() -> str:
    """Returns the list of all guarantees with their tests as Markdown, for a page in docs/site."""
    marks, parts, heading = all_marks(), [], ""
    for each in guarantees_in(SOURCE.read_text()):
        if each.heading != heading:
            heading = each.heading
            parts.append(f"## {heading}\n")
        sentence = re.sub(r"\]\((?=[\w-]+\.md)", "](../", each.sentence)
        parts.append(f"### {each.id}\n\n{sentence}\n\n{tests_of(each.id, marks)}\n")
    return "\n".join(parts)


def with_links(text: str, target: str) -> str:
    """Returns the page docs/guarantees.md with a link from each id to its tests on the page `target`."""
    return ITEM.sub(rf"- [\1]({target}#\1): \2", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", metavar="ID")
    given = parser.parse_args()
    try:
        guarantees, marks = guarantees_in(SOURCE.read_text()), all_marks()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    errors = errors_of(guarantees, marks)
    if given.ids:
        print(*(f"{id}\n{tests_of(id, marks) or '- none'}" for id in given.ids), sep="\n")
    print(*errors, sep="\n", end="\n" if errors else "", file=sys.stderr)
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main())
