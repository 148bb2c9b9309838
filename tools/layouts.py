#!/usr/bin/env python3
"""Makes the tables of structures and enumerations in pages of docs/ from the headers that declare them.

tools/layouts.py            writes the tables into the pages
tools/layouts.py --check    fails if a table is out of date, or differs from an assertion about sizes or offsets

A table is between `<!-- layout of NAME in src/FOLDER/FILE.h -->` and `<!-- end -->`. It has a row for each field, with
the comment of the field. A comment that follows an empty line, or precedes a field with alignas, describes a group of
fields and has a row of its own. If a declaration has several fields, a semicolon parts their comments.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MARKED = re.compile(r"(<!-- layout of (\w+) in (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
#: Qualified names, headers, names with an underscore, types and constants, each possibly with ().
CODE = re.compile(r"(?<![\w/])((\w+::)+\w+|[\w/]+\.h|[a-z]\w*_\w+|k?[A-Z][a-z]+[A-Z]\w*|k[A-Z]\w*)(\(\))?")
NUMBERS = {"std::byte": ("u8", 1), "unsigned char": ("u8", 1), "double": ("f64", 8), "float": ("f32", 4)} | {
    f"std::{'u' * (letter == 'u')}int{bits}_t": (f"{letter}{bits}", bits // 8)
    for letter in "iu"
    for bits in (8, 16, 32, 64)
}


class Field(NamedTuple):
    offset: int
    bytes: int
    name: str
    type: str
    meaning: str


class Struct(NamedTuple):
    bytes: int
    alignment: int
    rows: list[Field | str]  # a text is the comment of the group of fields that follows

    def fields(self) -> list[Field]:
        return [row for row in self.rows if isinstance(row, Field)]


def body_of(text: str, begin: int) -> str:
    """Returns the text from the brace at `begin` up to the matching one, without both."""
    depth = 0
    for brace in re.finditer(r"//[^\n]*|[{}]", text[begin:]):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[begin + 1 : begin + brace.start()]
    raise ValueError("a brace is not closed")


class Layouts:
    """The structures and constants of headers, by name. Names are unique in all headers that the pages name."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts
        self.structs: dict[str, Struct] = {}

    def value_of(self, expression: str) -> int:
        """Returns the value of a constant expression of integers, constants and sizeof."""
        expression = expression.replace("'", "")
        expression = re.sub(r"std::\w+\{([^}]*)\}", r"(\1)", expression)
        expression = re.sub(r"sizeof\((\w+)\)", lambda found: str(self.struct(found[1]).bytes), expression)
        expression = re.sub(r"(?:\w+::)*\b(k[A-Z]\w*)", lambda found: str(self.constant(found[1])), expression)
        expression = re.sub(r"(?<=\d)[uU]\b", "", expression).replace("/", "//")
        if not re.fullmatch(r"[\d<>+*/() -]+", expression):
            raise ValueError(f"not a constant expression: {expression}")
        return int(eval(expression))

    def constant(self, name: str) -> int:
        for text in self.texts:
            found = re.search(rf"constexpr [^;(]*?\b{name} = ([^,;]+)[,;]", text)
            if found:
                return self.value_of(found[1])
        raise ValueError(f"no constant {name}")

    def measure(self, type: str) -> tuple[str, int, int]:
        """Returns how a table shows a type, its bytes and its alignment."""
        wrapped = re.fullmatch(r"(std::atomic|PerEnd)<(.*)>", type)
        if wrapped:
            shown, size, alignment = self.measure(wrapped[2])
            return (shown, size, alignment) if wrapped[1] == "std::atomic" else (f"{shown}[2]", 2 * size, alignment)
        if type in NUMBERS:
            shown, size = NUMBERS[type]
            return shown, size, size
        name = type.rpartition("::")[2]
        for text in self.texts:
            enumeration = re.search(rf"enum class {name} : ([\w:]+) ", text)
            if enumeration:
                _, size, alignment = self.measure(enumeration[1])
                return f"`{name}`", size, alignment
            alias = re.search(rf"using {name} = ([\w:]+);", text)
            if alias and alias[1].startswith("std::"):
                _, size, alignment = self.measure(alias[1])
                return f"`{name}`", size, alignment
        struct = self.struct(name)
        return f"`{name}`", struct.bytes, struct.alignment

    def struct(self, name: str) -> Struct:
        if name not in self.structs:
            for text in self.texts:
                found = re.search(rf"^struct (?:alignas\((\d+)\) )?{name} \{{", text, re.MULTILINE)
                if found:
                    self.structs[name] = self.laid_out(int(found[1] or 1), body_of(text, found.end() - 1))
                    break
            else:
                raise ValueError(f"no struct {name}")
        return self.structs[name]

    def laid_out(self, alignment: int, body: str) -> Struct:
        rows: list[Field | str] = []
        end = 0
        for declaration, meaning, is_group in declarations(body):
            if is_group:
                rows.append(meaning)
                continue
            aligned, type, names = re.fullmatch(
                r"(?:alignas\((\d+)\) )?((?:unsigned )?[\w:]+(?:<.*>)?) (.*)", declaration
            ).groups()  # type: ignore[union-attr]
            declared, meanings = names.split(", "), meaning.split("; ")
            for i, each in enumerate(declared):
                name, *lengths = re.split(r"\[|\]\[?", each.rstrip("]"))
                shown, size, needed = self.measure(type)
                needed = max(needed, int(aligned or 1))
                for length in filter(None, lengths):
                    count = self.value_of(length)
                    shown, size = f"{shown}[{count:,}]", size * count
                end = -(-end // needed) * needed
                own = meanings[i] if len(meanings) == len(declared) else meaning
                if re.fullmatch(r"k\w+", own):
                    own = f"{own}: {self.constant(own)}"
                rows.append(Field(end, size, name, shown, own))
                end, alignment, aligned = end + size, max(alignment, needed), None
        return Struct(-(-end // alignment) * alignment, alignment, rows)

    def errors(self, text: str) -> Iterator[str]:
        """Yields the assertions about sizes and offsets that the computed layouts do not meet."""
        for asserted in re.findall(r"static_assert\(([^;]*)\);", text):
            for name, number in re.findall(r"sizeof\((\w+)\) == (\d+)", asserted):
                if self.struct(name).bytes != int(number):
                    yield f"{name} has {number} bytes, not {self.struct(name).bytes}"
            for name, field, number in re.findall(r"offsetof\((\w+), (\w+)\) == (\d+)", asserted):
                offsets = {each.name: each.offset for each in self.struct(name).fields()}
                if offsets.get(field) != int(number):
                    yield f"{name}::{field} is at {number}, not {offsets.get(field)}"


def declarations(body: str) -> Iterator[tuple[str, str, bool]]:
    """Yields each field as its declaration and comment, and each comment of a group of fields, marked True."""
    before: list[str] = []
    pending: tuple[str, list[str]] | None = None
    after_blank = starts_group = False
    for line in without_functions(body).splitlines():
        code, slashes, comment = (part.strip() for part in line.partition("//"))
        if slashes and not code and pending and line.index("//") > 2:
            pending[1].append(comment)  # the comment of the field goes on
            continue
        if pending:
            yield pending[0], " ".join(pending[1]), False
            pending = None
        if not code:
            if slashes:
                starts_group = starts_group or (after_blank and not before)
                before.append(comment)
            else:
                before, starts_group = [], False
            after_blank = not slashes
            continue
        field = re.fullmatch(r"((?:alignas\(\d+\) )?(?:unsigned )?[\w:]+(?:<.*>)? [\w:\[\], ]+);", code)
        if field and not code.startswith(("using ", "static ", "return ")):
            if before and (starts_group or code.startswith("alignas(")):
                yield " ".join(before), " ".join(before), True
                before = []
            pending = field[1], [*before, *([comment] if comment else [])]
        before, starts_group, after_blank = [], False, False
    if pending:
        yield pending[0], " ".join(pending[1]), False


def without_functions(body: str) -> str:
    """Returns the body of a struct without functions and nested types, and with each field on one line."""
    while "{" in body:
        begin = body.rindex("{")
        end = begin + len(body_of(body, begin)) + 2
        line = body.rfind("\n", 0, begin) + 1
        while body[line:].lstrip().startswith(("noexcept", "const", ":")):
            line = body.rfind("\n", 0, line - 1) + 1
        body = body[:line] + body[end:].lstrip(" ;")
    return "\n" + body


def sentence(comment: str) -> str:
    """Returns a comment as the text of a cell, with identifiers as code."""
    parts = comment.strip().removesuffix(".").replace("|", "\\|").split("`")
    for i in range(0, len(parts), 2):
        parts[i] = CODE.sub(r"`\g<0>`", parts[i])
    comment = "`".join(parts)
    return comment[:1].upper() + comment[1:]


def table(struct: Struct) -> str:
    lines = ["| offset | field | type | meaning |", "|---|---|---|---|"]
    for row in struct.rows:
        if isinstance(row, str):
            lines.append(f"| | | | *{sentence(row)}* |")
        elif not row.name.startswith("unused") and (row.meaning or not row.name.startswith("reserved")):
            lines.append(f"| {row.offset} | `{row.name}` | {row.type} | {sentence(row.meaning)} |")
    return "\n".join([*lines, f"| {struct.bytes} | | | *end* |"])


def table_of_values(name: str, text: str) -> str:
    """Returns the table of an enumeration, or "" if the text has none of that name."""
    found = re.search(rf"^enum (?:class )?{name}\b[^;{{]*\{{", text, re.MULTILINE)
    if not found:
        return ""
    lines = ["| value | name | meaning |", "|---|---|---|"]
    body = re.sub(r"\n\s{6,}//", "", body_of(text, found.end() - 1))
    body = re.sub(r"^ *// *(.*)\n(.*,)$", r"\2  // \1", body, flags=re.MULTILINE)
    for names, comment in re.findall(r"^\s*(\w+ = \d+(?:, \w+ = \d+)*),?[ ]*(?://(.*))?$", body, re.MULTILINE):
        for each in names.split(", "):
            value, number = each.split(" = ")
            lines.append(f"| {number} | `{value}` | {sentence(comment)} |")
    return "\n".join(lines)


def main() -> int:
    is_check = "--check" in sys.argv[1:]
    pages = {path: path.read_text() for path in sorted((ROOT / "docs").rglob("*.md"))}
    headers = [ROOT / "src/memory/layout.h", ROOT / "src/memory/publishers.h", ROOT / "src/memory/deaths.h"]
    headers += [ROOT / header for page in pages.values() for _, _, header, _, _ in MARKED.findall(page)]
    texts = {header: header.read_text() for header in dict.fromkeys(headers)}
    errors = []
    for path, page in pages.items():

        def made(found: re.Match[str]) -> str:
            own = texts[ROOT / found[3]]
            layouts = Layouts([own, *texts.values()])
            errors.extend(layouts.errors(own))
            made_table = table_of_values(found[2], own) or table(layouts.struct(found[2]))
            return f"{found[1]}\n{made_table}\n\n{found[5]}"

        new = MARKED.sub(made, page)
        if new != page and is_check:
            errors.append(f"{path.relative_to(ROOT)} is out of date: run tools/layouts.py")
        elif new != page:
            path.write_text(new)
    print(*dict.fromkeys(errors), sep="\n", end="\n" if errors else "", file=sys.stderr)
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main())
