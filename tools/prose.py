#!/usr/bin/env python3
"""Checks the English of comments, docstrings, pages, test names and commit subjects.

tools/prose.py                   prints how many places break each rule
tools/prose.py --list RULE       prints the places: path, line and text
tools/prose.py --list all src    the same of every rule, for paths below src
tools/prose.py --check           fails if a rule is broken more often than LIMITS allows

Rules:
  actor      a sentence begins with who, whoever, whose, nobody, somebody or everybody, and names no actor
  pronoun    one of these words anywhere, in code too
  fragment   a comment begins with Of, Whether, What, How or As, and is no sentence
  long       a sentence has more than 30 words
  most       an identifier begins with kMost, kFewest or kLeast instead of kMax or kMin
  test       the name of a test has more than 60 characters
  subject    the subject of a commit since SINCE has more than 72 characters
"""

from __future__ import annotations

import argparse
import ast
import collections
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SINCE = "3aa3b82"
#: How often each rule may still be broken. A change that mends places lowers the number; none may raise it.
LIMITS = {"actor": 0, "pronoun": 17, "fragment": 0, "long": 23, "most": 0, "test": 0}

FOLDERS = ("src", "include", "python", "tests", "bench", "examples", "dev", "docs", ".ci", "cmake", "tools")
PRONOUNS = r"who|whoever|whose|nobody|somebody|everybody"
MAX_WORDS, MAX_NAME, MAX_SUBJECT = 30, 60, 72
RULES = ("actor", "pronoun", "fragment", "long", "most", "test", "subject")


class Text(NamedTuple):
    """A comment, a docstring or a paragraph."""

    path: str
    line: int
    text: str
    is_comment: bool


class Finding(NamedTuple):
    rule: str
    path: str
    line: int
    text: str


def blocks(path: str, comments: dict[int, tuple[int, str, bool]]) -> Iterator[Text]:
    """Joins comments on consecutive lines, each given by its column, its text, and True if it follows code.

    An empty comment, one in another column, one after code, and one that begins a list or a table begin a new text.
    """
    first, parts, last = 0, [], (-1, -1)
    for line, (column, text, is_after_code) in sorted(comments.items()):
        begins = not text or is_after_code or re.match(r"([-*|]|\d+\.|\w+:$|  +)", text) is not None
        if parts and ((line - 1, column) != last or begins):
            yield Text(path, first, " ".join(parts), True)
            parts = []
        if text:
            first = first if parts else line
            parts.append(text.strip())
        last = line, column
    if parts:
        yield Text(path, first, " ".join(parts), True)


def of_cpp(path: str, source: str) -> Iterator[Text]:
    lines = {}
    for number, line in enumerate(source.splitlines(), 1):
        found = re.search(r"(?:^|[\s;{},)])///?<?(?: |$)(.*)", line)
        if found and '"' not in line[: found.start()]:
            is_after_code = bool(line[: found.start()].strip()) or line[found.start()] in ";{},)"
            lines[number] = found.start(1), found.group(1).rstrip(), is_after_code
    yield from blocks(path, lines)


def of_python(path: str, source: str) -> Iterator[Text]:
    comments = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            is_after_code = bool(token.line[: token.start[1]].strip())
            comments[token.start[0]] = token.start[1], token.string.lstrip("#:").strip(), is_after_code
    yield from blocks(path, comments)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                line = node.body[0].lineno
                parts = re.split(r"\n\s*\n|\n(?=\s*(?:[-*] |\w[\w, ]*: ))", docstring)
                yield from (Text(path, line, " ".join(part.split()), False) for part in parts)


def of_shell(path: str, source: str) -> Iterator[Text]:
    lines = {}
    for number, line in enumerate(source.splitlines(), 1):
        found = re.search(r"(?:^|\s)# (.*)", line)
        if found:
            is_after_code = bool(line[: found.start()].strip())
            lines[number] = found.start(1), found.group(1).rstrip(), is_after_code
    yield from blocks(path, lines)


def of_page(path: str, source: str) -> Iterator[Text]:
    source = re.sub(r"^(```|~~~).*?^\1", lambda code: "\n" * code.group().count("\n"), source, flags=re.S | re.M)
    line = 1
    for paragraph in re.split(r"(\n\s*\n|\n(?=\s*[-*|] |\|))", source):
        for cell in re.split(r"\s\|\s", paragraph.strip("| \n")):
            if cell.strip() and not cell.startswith(("#", "|--", "<")):
                yield Text(path, line, " ".join(cell.split()), False)
        line += paragraph.count("\n")


def texts(path: str, source: str) -> Iterator[Text]:
    suffix = Path(path).suffix
    if suffix in (".cpp", ".h", ".c"):
        yield from of_cpp(path, source)
    elif suffix in (".py", ".pyi") or source.startswith("#!/usr/bin/env python3"):
        yield from of_python(path, source)
    elif suffix == ".md":
        yield from of_page(path, source)
    else:
        yield from of_shell(path, source)


def sentences(text: str) -> list[str]:
    text = re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)|https?://\S+", "Code", text)
    return re.split(r"(?<=[.!?:;])\s+(?=[A-Z`\"(])", text)


def broken_in(text: Text) -> Iterator[Finding]:
    if text.is_comment and re.match(r"(Of|Whether|What|How|As)\b", text.text) and not text.text.endswith("?"):
        yield Finding("fragment", *text[:3])
    for sentence in sentences(text.text):
        if re.match(rf"({PRONOUNS})\b", sentence, re.IGNORECASE) and not sentence.endswith("?"):
            yield Finding("actor", text.path, text.line, sentence)
        if len(re.findall(r"[\w'`-]*\w[\w'`.-]*", sentence)) > MAX_WORDS:
            yield Finding("long", text.path, text.line, sentence)


def in_lines(path: str, source: str) -> Iterator[Finding]:
    is_page = path.startswith("docs/")
    for number, line in enumerate(source.splitlines(), 1):
        if not is_page:
            yield from (Finding("pronoun", path, number, line) for _ in re.findall(rf"\b({PRONOUNS})\b", line, re.I))
        yield from (
            Finding("most", path, number, name)
            for name in re.findall(r"\bk(?:Most|Fewest|Least)\w*", line.partition("//")[0])
        )
        test = re.match(r"\s*(?:async )?def (test_\w+)|TEST_CASE(?:_METHOD)?\((?:\w+, )?\"([^\"]*)\"", line)
        name = (test.group(1) or test.group(2) or "") if test else ""
        if len(name) > MAX_NAME:
            yield Finding("test", path, number, name)


def of_commits() -> Iterator[Finding]:
    command = ["git", "log", "--no-merges", "--format=%h %s", f"{SINCE}..HEAD"]
    for line in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines():
        commit, _, subject = line.partition(" ")
        if len(subject) > MAX_SUBJECT:
            yield Finding("subject", commit, 0, subject)


def paths() -> list[str]:
    command = ["git", "ls-files", "--", *FOLDERS, "*.md"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    endings = (".cpp", ".h", ".c", ".py", ".pyi", ".md", ".sh", ".cmake", ".txt")
    this = Path(__file__).name
    names = [name for name in names if not name.endswith(this) and (name.endswith(endings) or is_script(name))]
    return [name for name in names if (ROOT / name).is_file()]


def is_script(path: str) -> bool:
    with (ROOT / path).open("rb") as file:
        return file.read(2) == b"#!"


def findings() -> Iterator[Finding]:
    for path in paths():
        source = (ROOT / path).read_text()
        yield from in_lines(path, source)
        for text in texts(path, source):
            yield from broken_in(text)
    yield from of_commits()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--list", choices=(*RULES, "all"), metavar="RULE")
    parser.add_argument("below", nargs="*", default=[""], metavar="PATH")
    given = parser.parse_args()
    found = [each for each in findings() if each.path.startswith(tuple(given.below)) or not each.line]
    if given.list:
        for each in found:
            if given.list in (each.rule, "all"):
                print(f"{each.path}:{each.line}: {each.rule}: {each.text.strip()[:160]}")
        return 0
    counts = collections.Counter(each.rule for each in found)
    over = [rule for rule in RULES if counts[rule] > LIMITS.get(rule, 0)]
    for rule in RULES:
        print(f"{rule:10}{counts[rule]:6} of at most {LIMITS.get(rule, 0)}{'  TOO MANY' if rule in over else ''}")
    if given.check and over:
        print(f"tools/prose.py --list {over[0]} names the places", file=sys.stderr)
    return int(given.check and bool(over))


if __name__ == "__main__":
    sys.exit(main())
