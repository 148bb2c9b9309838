#!/usr/bin/env python3
"""Copies the docstrings of the compiled module shmtree._core into its stub, python/shmtree/_core.pyi.

    python tools/stub_docs.py           rewrites the stub
    python tools/stub_docs.py --check   fails if a docstring in the stub differs from the module's

Editors show what the stub contains. The only source of these texts is python/bindings, so run this after a build that
changed one. Signatures stay as they are in the stub. The first line that pybind11 writes, a signature, is left out.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

STUB = Path(__file__).resolve().parents[1] / "python/shmtree/_core.pyi"
INDENT = "    "
#: Types of objects with a text of the interpreter, such as `__len__`.
INTERPRETER_TEXT = (types.WrapperDescriptorType, types.MethodWrapperType)

Documented = ast.ClassDef | ast.FunctionDef | ast.AnnAssign


class Place(NamedTuple):
    """A definition in the stub."""

    name: str  #: with the class, as in "SenderBase.put"
    node: Documented
    docstring: ast.Expr | None
    depth: int

    @property
    def text(self) -> str | None:
        if self.docstring is None:
            return None
        assert isinstance(self.docstring.value, ast.Constant)
        return inspect.cleandoc(self.docstring.value.value)


def is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def places(body: list[ast.stmt], owner: str = "") -> list[Place]:
    """Returns the definitions in a body and in its classes; of overloads and of setters only the first."""
    found: dict[str, Place] = {}
    for i, node in enumerate(body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            name, first = owner + node.name, node.body[0]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and owner:
            name, first = owner + node.target.id, body[i + 1] if i + 1 < len(body) else node
        else:
            continue
        docstring = first if is_text(first) and isinstance(first, ast.Expr) else None
        found.setdefault(name, Place(name, node, docstring, owner.count(".")))
        if isinstance(node, ast.ClassDef):
            found.update((each.name, each) for each in places(node.body, f"{name}."))
    return list(found.values())


def compiled_classes(body: list[ast.stmt], core: Any) -> dict[str, str]:
    """Returns, for each class that only the stub has, a class of the module that derives from it."""
    found: dict[str, str] = {}
    for node in reversed([each for each in body if isinstance(each, ast.ClassDef)]):
        derived = node.name if hasattr(core, node.name) else found.get(node.name)
        for base in node.bases:
            if derived and isinstance(base, ast.Name) and not hasattr(core, base.id):
                found[base.id] = derived
    return found


def text_of(core: Any, name: str, compiled: dict[str, str]) -> str | None:
    """Returns the docstring of a definition in the module itself; None if it has none of its own."""
    thing = core
    owner, _, member = name.rpartition(".")
    for part in filter(None, [*compiled.get(owner, owner).split("."), member]):
        thing = vars(thing).get(part) if hasattr(thing, "__dict__") else None
        thing = thing.__func__ if isinstance(thing, staticmethod) else thing
    is_interpreters = isinstance(thing, INTERPRETER_TEXT) or name.endswith(".__new__")
    text = None if is_interpreters else getattr(thing, "__doc__", None)
    signature = rf"{re.escape(member)}\([^\n]*(\n|$)"
    return inspect.cleandoc(re.sub(rf"\A{signature}", "", text)) or None if text else None


def lines_of(text: str, depth: int) -> list[str]:
    """Returns the lines of a docstring as ruff formats it."""
    indent = INDENT * depth
    escaped = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"').splitlines()
    last = '"""' if len(escaped) == 1 else f'\n{indent}"""'
    body = "\n".join([f'{indent}"""{escaped[0]}', *(f"{indent}{line}".rstrip() for line in escaped[1:])])
    return f"{body}{last}".split("\n")


def with_docs(source: str, core: Any) -> str:
    """Returns the stub with the docstrings of the module."""
    lines, body = source.splitlines(), ast.parse(source).body
    compiled = compiled_classes(body, core)
    for place in sorted(places(body), key=lambda each: -each.node.lineno):
        text = text_of(core, place.name, compiled)
        node, old, is_attribute = place.node, place.docstring, isinstance(place.node, ast.AnnAssign)
        new = lines_of(text, place.depth + (0 if is_attribute else 1)) if text else []
        if old is not None:
            is_whole_body = isinstance(node, ast.FunctionDef) and len(node.body) == 1
            lines[old.lineno - 1 : old.end_lineno] = new or [INDENT * (place.depth + 1) + "..."] * is_whole_body
        elif new:
            assert node.end_lineno is not None
            if is_attribute:
                lines[node.end_lineno : node.end_lineno] = new
            elif isinstance(node, ast.ClassDef):
                decorators = getattr(node.body[0], "decorator_list", [])
                first = min(each.lineno for each in (node.body[0], *decorators))
                lines[first - 1 : first - 1] = new
            else:  # its body is "..." at the end of a line
                lines[node.end_lineno - 1] = lines[node.end_lineno - 1].removesuffix("...").rstrip()
                lines[node.end_lineno : node.end_lineno] = new
    return "\n".join(lines) + "\n"


def differences(source: str, core: Any) -> list[str]:
    """Returns the names of the definitions with other docstrings."""
    body = ast.parse(source).body
    compiled = compiled_classes(body, core)
    return [place.name for place in places(body) if place.text != text_of(core, place.name, compiled)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a docstring differs")
    options = parser.parse_args()
    core = importlib.import_module("shmtree._core")
    source = STUB.read_text()
    differing = differences(source, core)
    if options.check:
        for name in differing:
            print(f"{name}: the stub has another docstring; build, then run tools/stub_docs.py and ./dev format")
        return 1 if differing else 0
    STUB.write_text(with_docs(source, core))
    return 0


if __name__ == "__main__":
    sys.exit(main())
