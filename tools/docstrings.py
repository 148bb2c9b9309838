#!/usr/bin/env python3
"""Lists public functions, methods and classes of the package with incomplete docstrings.

    python tools/docstrings.py           prints the places and their number
    python tools/docstrings.py --check   also fails if there are any

The names in `__all__` of the modules in MODULES are public. So are the members of their classes and base classes,
unless a member's name begins with an underscore. The tool reads the sources and `_core.pyi` and imports nothing, so it
needs neither a build nor torch.

Rules:
  doc      there is no docstring; a method that overrides a documented one needs none
  args     a parameter is not in `Args`, and the first paragraph refers to no other function for it
  returns  a result is described neither in `Returns` or `Yields` nor by a first sentence that says what is returned
  raises   an error that the function raises by itself, or that the text mentions, is not in `Raises`
  colon    the first line of `Returns` has a colon; Sphinx takes the text before a colon for a type
  module   `Raises` has PeerDied without a module; both shmtree and shmtree.ray have a class of that name
"""

from __future__ import annotations

import argparse
import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1] / "python"
MODULES = (
    "shmtree",
    "shmtree._ipc.pipe",  # public as Pipe of shmtree.multiprocessing
    "shmtree.compat.py_sharedmemory",
    "shmtree.cuda",
    "shmtree.gymnasium",
    "shmtree.ray",
    "shmtree.recording",
    "shmtree.replay",
    "shmtree.replay.cpprb",
    "shmtree.replay.sb3",
    "shmtree.replay.torchrl",
    "shmtree.sb3",
    "shmtree.spdl",
    "shmtree.torch",
)
#: Modules with the interface of another library. Its documentation has the methods and parameters.
OTHER_INTERFACES = (
    "shmtree.compat.",
    "shmtree.gymnasium.",
    "shmtree.replay.cpprb.",
    "shmtree.replay.sb3.",
    "shmtree.replay.torchrl.",
    "shmtree.sb3.",
)
#: Functions that mention an error that others get: requests in flight, waiting threads, later calls.
NOT_RAISED = {
    "shmtree.Client.close",
    "shmtree.descriptors",
    "shmtree.ray.ReplayBuffer.shutdown",
    "shmtree.replay.ReplayBuffer.close",
    "shmtree.spdl.SegmentPool.shutdown_arena",
}
#: Errors that only the package makes, so that their arguments need no description.
MADE_ELSEWHERE = {
    "shmtree.ConnectionLost",
    "shmtree.ray.PeerDied",
}

ERROR = re.compile(
    r"\b(?:queue\.Full|queue\.Empty|(?:Type|Value|Index|Key|Timeout|OS|Runtime|Memory|Overflow|Buffer|EOF|BrokenPipe)Error"
    r"|File(?:Exists|NotFound)Error|PermissionError|ChannelClosed|PeerDied|ConnectionLost|CorruptMessage|DeviceError"
    r"|Incompatible(?:Arena|Message)|MessageTooLarge|NotPortable|OutOfSharedMemory|Overrun|PickleRefused|RemoteError"
    r"|ShutDown)\b"
)
SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Attributes|Example|Note):", re.MULTILINE)
STATES_RESULT = re.compile(
    r"(?:Does the same as|Calls|Returns?|Yields?|Makes|Opens|Encodes|Decodes|Waits|Blocks|Receives|Takes|Copies|"
    r"Samples|Loads|Removes)\b.*"
)
#: The first paragraph of a docstring refers to another function for the arguments.
REFERS = re.compile(r"(Does the same as|Calls|Works like|[Ss]ee|array like) `[\w.]+`")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Finding(NamedTuple):
    name: str
    rule: str
    text: str


class Found(NamedTuple):
    """A definition, and the module in which its names are looked up."""

    module: str
    node: ast.AST


def path_of(module: str) -> Path:
    base = ROOT / module.replace(".", "/")
    for path in (base / "__init__.py", base.with_suffix(".py"), base.with_suffix(".pyi")):
        if path.exists():
            return path
    raise FileNotFoundError(f"no source of {module} in {ROOT}")


@functools.cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(path_of(module).read_text())


def package_of(module: str) -> list[str]:
    parts = module.split(".")
    return parts if path_of(module).name == "__init__.py" else parts[:-1]


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements of a module or a class, those below `if` and `try` included."""
    for statement in body:
        yield statement
        for part in ("body", "orelse", "handlers", "finalbody"):
            if isinstance(statement, ast.If | ast.Try):
                for inner in getattr(statement, part, []):
                    yield from statements(inner.body if isinstance(inner, ast.ExceptHandler) else [inner])


def lookup(module: str, name: str) -> Found | None:
    """Returns the definition of a name in a module, through imports from the package's other modules."""
    for statement in statements(tree_of(module).body):
        if isinstance(statement, ast.ClassDef | Function) and statement.name == name:
            return Found(module, statement)
        is_alias = isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name)
        if is_alias and name in (ast.unparse(target) for target in statement.targets):
            return lookup(module, statement.value.id)
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    package = package_of(module)[: len(package_of(module)) - statement.level + 1]
                    origin = ".".join([*(package if statement.level else []), *filter(None, [statement.module])])
                    return lookup(origin, alias.name) if origin.startswith("shmtree") else None
    return None


def public_names(module: str) -> list[str]:
    for statement in tree_of(module).body:
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", None) == "__all__":
            return list(ast.literal_eval(statement.value))
    return [
        statement.name
        for statement in tree_of(module).body
        if isinstance(statement, ast.ClassDef | Function) and not statement.name.startswith("_")
    ]


def bases(found: Found) -> Iterator[Found]:
    """Yields the class and its bases in the package, in the order of the search for attributes (almost)."""
    yield found
    assert isinstance(found.node, ast.ClassDef)
    for base in found.node.bases:
        expression = base.value if isinstance(base, ast.Subscript) else base
        parts = ast.unparse(expression).split(".")
        module = found.module
        for part in parts[:-1]:
            module = ".".join([*package_of(module), part]) if part == "_core" else module
            module = "shmtree._core" if part == "_core" else module
        inner = lookup(module, parts[-1])
        if inner is not None and isinstance(inner.node, ast.ClassDef) and inner.node is not found.node:
            yield from bases(inner)


def sections(doc: str) -> dict[str, str]:
    """Returns the text of each section; the text before the first one is that of ''."""
    pieces = SECTION.split(doc)
    return {"": pieces[0], **dict(zip(pieces[1::2], pieces[2::2]))}


def entries(section: str) -> set[str]:
    """Returns the names that a section describes: those that begin its least indented lines."""
    indented = re.match(r"[^\n]*\n((?:[ \t].*\n?|\n)*)", section)
    lines = [line for line in indented[1].splitlines() if line.strip()] if indented else []
    indent = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    heads = [line[indent:].split(":")[0] for line in lines if len(line) - len(line.lstrip()) == indent]
    return {name.strip(" `*~.").split(" (")[0] for head in heads for name in re.split(r",| or ", head)}


def raised_in(function: Function) -> set[str]:
    """Returns the names of the errors that the body raises, without those that stand in for a result."""
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Raise) and node.exc is not None:
            called = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            names.add(ast.unparse(called))
    known = {name for name in names if ERROR.fullmatch(name) or ERROR.fullmatch(name.split(".")[-1])}
    return {name.split(".")[-1] for name in known}


def check_function(name: str, function: Function, doc: str, is_property: bool) -> Iterator[Finding]:
    parts = sections(doc)
    yield from check_arguments(name, function, parts)
    result = ast.unparse(function.returns) if function.returns is not None else "None"
    stated = {"Returns", "Yields"} & parts.keys() or STATES_RESULT.match(doc.split("\n\n")[0].replace("\n", " "))
    if not is_property and result not in ("None", "Self") and not stated:
        yield Finding(name, "returns", result)
    first = parts.get("Returns", "").strip().partition("\n")[0]
    if re.search(r":( |$)", first):
        yield Finding(name, "colon", first)
    text = " ".join(part for section, part in parts.items() if section not in ("Raises", "Example"))
    mentioned = (
        set()
        if is_property or "Raises" in parts or name in NOT_RAISED
        else {each.split(".")[-1] for each in ERROR.findall(text)}
    )
    yield from check_raises(name, parts, raised_in(function) | mentioned)


def check_arguments(name: str, function: Function, parts: dict[str, str]) -> Iterator[Finding]:
    arguments = function.args
    named = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    static = any(ast.unparse(each) == "staticmethod" for each in function.decorator_list)
    if named and named[0] in ("self", "cls") and not static:
        named = named[1:]
    missing = [each for each in named if not each.startswith("_") and each not in entries(parts.get("Args", ""))]
    if missing and not REFERS.search(parts[""].split("\n\n")[0]):
        yield Finding(name, "args", ", ".join(missing))


def check_raises(name: str, parts: dict[str, str], raised: set[str]) -> Iterator[Finding]:
    documented = {each.split(".")[-1] for each in entries(parts.get("Raises", ""))}
    if "PeerDied" in entries(parts.get("Raises", "")):
        yield Finding(name, "module", "PeerDied")
    if raised - documented:
        yield Finding(name, "raises", ", ".join(sorted(raised - documented)))


def members(found: Found) -> dict[str, tuple[Found, str | None]]:
    """Returns the public functions of a class and its bases, each with the docstring that it has or inherits."""
    result: dict[str, tuple[Found, str | None]] = {}
    for each in bases(found):
        assert isinstance(each.node, ast.ClassDef)
        for node in statements(each.node.body):
            if isinstance(node, Function) and not node.name.startswith("_"):
                first, doc = result.get(node.name, (Found(each.module, node), None))
                result[node.name] = (first, doc or ast.get_docstring(node))
    return result


def check_class(name: str, found: Found, seen: set[int]) -> Iterator[Finding]:
    """Yields the findings of a class. Skips methods in `seen`: they were checked as methods of another class."""
    assert isinstance(found.node, ast.ClassDef)
    doc = ast.get_docstring(found.node)
    if not doc:
        yield Finding(name, "doc", "class")
    is_other = name.startswith(OTHER_INTERFACES)
    is_made_elsewhere = name in MADE_ELSEWHERE or any(ast.unparse(each).endswith("Error") for each in found.node.bases)
    for node in found.node.body:
        if isinstance(node, Function) and node.name == "__init__" and not is_other and not is_made_elsewhere:
            yield from check_arguments(name, node, sections(f"{doc}\n\n{ast.get_docstring(node) or ''}"))
            yield from check_raises(name, sections(doc or ""), raised_in(node))
    for member, (where, text) in members(found).items():
        node = where.node
        assert isinstance(node, Function)
        if id(node) in seen:
            continue
        seen.add(id(node))
        decorators = {ast.unparse(each) for each in node.decorator_list}
        if any(each.endswith((".setter", ".deleter")) for each in decorators):
            continue
        if is_other:
            continue
        if text is None:
            yield Finding(f"{name}.{member}", "doc", "method")
        else:
            is_property = bool({"property", "functools.cached_property", "cached_property"} & decorators)
            yield from check_function(f"{name}.{member}", node, text, is_property)


def findings() -> Iterator[Finding]:
    seen: set[int] = set()
    for module in MODULES:
        for name in public_names(module):
            found = lookup(module, name)
            if found is None or id(found.node) in seen:
                continue
            seen.add(id(found.node))
            full = f"{module}.{name}"
            if isinstance(found.node, ast.ClassDef):
                yield from check_class(full, found, seen)
            elif isinstance(found.node, Function):
                doc = ast.get_docstring(found.node)
                if doc is None:
                    yield Finding(full, "doc", "function")
                elif not full.startswith(OTHER_INTERFACES):
                    yield from check_function(full, found.node, doc, False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if anything is found")
    found = list(findings())
    options = parser.parse_args()
    for each in found:
        print(f"{each.name}: {each.rule}: {each.text}")
    print(f"{len(found)} places")
    return 1 if options.check and found else 0


if __name__ == "__main__":
    sys.exit(main())
