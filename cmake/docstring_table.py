"""Writes the docstrings of the stub of shmtree._core as a C++ table, which the build compiles into the module.

    python docstring_table.py <stub> <output>

The stub, python/shmtree/_core.pyi, is the only source of these texts and of the signatures that `inspect` shows. Each
row of the table is a name, such as "Frame.ack", and a text. The text of a function begins with its signature, in
CPython's form. The module has no classes with a leading underscore: the table lists their members for each class that
derives from them. The interpreter's own texts, such as that of `__len__`, stay.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Docstring(NamedTuple):
    name: str
    text: str


def signature(function: ast.FunctionDef, is_method: bool) -> str:
    """Returns "name(parameters)" without types. A leading `$` marks the parameter that a call of a method fills in."""
    parameters = function.args
    for each in (
        *parameters.posonlyargs,
        *parameters.args,
        *parameters.kwonlyargs,
        parameters.vararg,
        parameters.kwarg,
    ):
        if each is not None:
            each.annotation = None
    prefix = "$" if is_method and not is_decorated(function, "staticmethod") else ""
    return f"{function.name}({prefix}{ast.unparse(parameters)})"


def is_decorated(function: ast.FunctionDef, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in function.decorator_list)


def members(owner: str, body: list[ast.stmt]) -> Iterator[Docstring]:
    """Yields the docstrings in a body. `owner` is empty, or the name of the class with a dot."""
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef):
            text = ast.get_docstring(node)
            if text and is_decorated(node, "property"):
                yield Docstring(owner + node.name, text)
            elif text:
                yield Docstring(owner + node.name, f"{signature(node, bool(owner))}\n--\n\n{text}")
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(following, ast.Expr):
            assert isinstance(following.value, ast.Constant)
            yield Docstring(owner + node.target.id, str(following.value.value))


def docstrings(stub: ast.Module) -> Iterator[Docstring]:
    """Yields the docstrings of a stub. Those of a class follow those of its bases, which they replace."""
    classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}

    def inherited(node: ast.ClassDef, owner: str) -> Iterator[Docstring]:
        for base in reversed(node.bases):
            name = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
            if name.startswith("_"):
                yield from inherited(classes[name], owner)
        yield from members(owner, node.body)

    yield from members("", stub.body)
    for name, node in classes.items():
        if not name.startswith("_"):
            text = ast.get_docstring(node)
            if text:
                yield Docstring(name, text)
            yield from inherited(node, f"{name}.")


def table(stub: str) -> str:
    """Returns the rows of the C++ table for the text of a stub."""
    texts = {each.name: each.text for each in docstrings(ast.parse(stub))}
    return "".join(f'{{"{name}", R"doc({text})doc"}},\n' for name, text in texts.items())


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(table(Path(sys.argv[1]).read_text()))
