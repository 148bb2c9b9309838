#!/usr/bin/env python3
"""Prints the modules of python/shmtree and of src: levels, arrows, arrows that point upward, and cycles.

    python tools/structure.py               both trees
    python tools/structure.py python src    only the named trees
    python tools/structure.py --arrows      also each arrow, with the files that cause it

A module is a folder, or a file next to the folders. An arrow leads from a module to one that it imports or includes,
also inside a function. Imports for type checkers do not count. A module without arrows is on level 1. Any other module
is one level above the highest one that it uses. The floors of a module are the levels of its own files. The lists below
contain the layers, lowest first: an arrow to a later one points upward. A header and its source count as one file. The
exit status is 1 if an arrow points upward, or a module is in no list.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]

#: Modules of the package, and the contents of each. CONTRIBUTING.md has the same table.
PYTHON = {
    "errors": "exceptions and warnings",
    "_public": "public names as users see them: their modules, and classes without a constructor",
    "_codec": "the Python part of encoding and decoding: dtypes, masked arrays, pickles, checks of received values",
    "_process": "state of the process: default arena, names, handles, inherited objects, exit",
    "cuda": "memory of CUDA devices: driver, sent and received memory, pinned arenas",
    "_ipc": "pairs, queues, pipes, services, Latest, Broadcast, arenas, shared arrays and lists, and waits",
    "_torch": "functions of torch that other modules need, without importing it: tensors, sparse tensors, devices",
    "replay": "replay buffers, and the interfaces of cpprb, Stable-Baselines3 and TorchRL",
    "torch": "collate, shared tensors and modules, weights",
    "recording": "recordings as MCAP files: read, written, played back",
    "multiprocessing": "the standard module with shmtree's queues and pipes",
    "_run": "unmodified programs with shmtree's queues and pipes: replaced classes, counters, start, results",
    "_environments": "workers of vector environments: behind our pipes, and pools with shared rows",
    "gymnasium": "Gymnasium's vector environment",
    "sb3": "Stable-Baselines3's vector environment",
    "spdl": "arenas for SPDL's pipelines",
    "compat": "the interfaces of py-sharedmemory",
    "ray": "pairs, queues, values and replay buffers between the nodes of a cluster",
    "cli": "the commands of `python -m shmtree`",
    "_early_run": "the start of `shmtree run`, before the extension is imported",
    "__init__": "the public names",
    "__main__": "the entry of the commands",
}

#: Modules of the C++ library, and the contents of each. `base` and `public` are headers: those in include/shmtree/base,
#: and the others in include/shmtree.
SRC = {
    "base": "results, kinds, counts: what all layers speak",
    "platform": "the operating system",
    "memory": "the arena: participants, locks, blocks, recovery",
    "shared_array": "arrays that several processes write, with seqlocks",
    "format": "values as frames",
    "channel": "queues of messages in an arena",
    "public": "the public headers",
    "discovery": "handles and names",
    "replay": "rows that many write and many sample",
    "broadcast": "a ring of which each reader sees each message",
    "latest": "versions of a value",
    "observe": "all of that, from outside",
    "recording": "files of messages",
    "shared_list": "lists of values that never change",
    "endpoint": "what an end is in every language",
    "service": "requests and replies",
    "value": "C++ values as frames, and back",
    "api": "the public C++ API",
}


class Import(NamedTuple):
    """An arrow between two files, by their dotted names below the root of their tree."""

    source: str
    target: str


def _statements(nodes: Iterable[ast.stmt], in_function: bool = False) -> Iterator[tuple[ast.ImportFrom, bool]]:
    """Yields the relative imports that a module executes, and whether that is in a function."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            yield node, in_function
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from _statements(node.orelse, in_function)
        else:
            inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for field in ("body", "orelse", "finalbody", "handlers", "cases"):
                yield from _statements(getattr(node, field, []), inside)


def python_files(package: Path) -> list[str]:
    """Returns the dotted names of the modules of a package. Names of its subpackages end with `__init__`."""
    return [".".join(file.relative_to(package).with_suffix("").parts) for file in sorted(package.rglob("*.py"))]


def python_imports(package: Path, in_function: bool | None = None) -> list[Import]:
    """Returns the imports between modules of a package; with `in_function`, only those inside or outside functions.

    Omits the extension `_core`, which imports no module of the package.
    """
    found = set()
    for name in python_files(package):
        place = name.split(".")
        for node, inside in _statements(ast.parse((package / Path(*place)).with_suffix(".py").read_text()).body):
            if in_function not in (None, inside):
                continue
            base = [*place[: len(place) - node.level], *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                target = _module(package, base, alias.name)
                if target not in (name, "_core"):
                    found.add(Import(name, target))
    return sorted(found)


def _module(package: Path, base: list[str], name: str) -> str:
    """Returns the module that ``from base import name`` loads last."""
    for path in ([*base, name], base):
        place = package.joinpath(*path)
        if place.is_dir():
            return ".".join([*path, "__init__"])
        if place.with_suffix(".py").exists() or path == ["_core"]:
            return ".".join(path)
    raise ValueError(f"no module {'.'.join(base)} in {package}")


_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)


def _source_name(root: Path, file: Path) -> str:
    """Returns a name for a header with its source: `memory.arena` for src/memory/arena.h and arena.cpp."""
    top, *rest = file.relative_to(root).with_suffix("").parts
    if top == "src":
        return ".".join(rest)
    is_base = rest[1:2] == ["base"]
    return ".".join(["base" if is_base else "public", *rest[1:]])


def source_files(root: Path) -> list[Path]:
    return [
        file for top in ("include", "src") for file in sorted((root / top).rglob("*")) if file.suffix in (".h", ".cpp")
    ]


def source_imports(root: Path) -> list[Import]:
    """Returns the includes between files of the C++ library."""
    found = set()
    for file in source_files(root):
        name = _source_name(root, file)
        for header in _INCLUDE.findall(file.read_text()):
            for place in (root / "src" / header, root / "include" / header, file.parent / header):
                if place.is_file() and _source_name(root, place) != name:
                    found.add(Import(name, _source_name(root, place)))
                    break
    return sorted(found)


def arrows(imports: Iterable[Import]) -> dict[tuple[str, str], list[Import]]:
    """Returns the arrows between modules, each with the imports that cause it."""
    found = defaultdict(list)
    for each in imports:
        source, target = each.source.split(".")[0], each.target.split(".")[0]
        if source != target:
            found[source, target].append(each)
    return dict(found)


def upward(order: Iterable[str], between: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns the arrows that point to a later module of `order`, or to or from one that is not in it."""
    places = {name: place for place, name in enumerate(order)}
    return [(source, target) for source, target in between if not places.get(target, 1e9) < places.get(source, -1)]


def circles(between: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Returns the cycles: groups of nodes in which each node leads to every other one."""
    follows: dict[str, set[str]] = defaultdict(set)
    for source, target in between:
        follows[source].add(target)
    reached: dict[str, set[str]] = {}
    for start in list(follows):
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            fresh = follows.get(waiting.pop(), set()) - seen
            seen |= fresh
            waiting += fresh
        reached[start] = seen
    groups = {frozenset(b for b in reached[a] if a in reached.get(b, ())) for a in reached if a in reached[a]}
    return sorted(sorted(group) for group in groups)


def levels(names: Iterable[str], between: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Returns the level of each node. Nodes of a cycle share one level."""
    pairs = set(between)
    group = {name: min(circle) for circle in circles(pairs) for name in circle}
    follows: dict[str, set[str]] = defaultdict(set)
    for source, target in pairs:
        if group.get(source, source) != group.get(target, target):
            follows[group.get(source, source)].add(group.get(target, target))
    known: dict[str, int] = {}

    def level(name: str) -> int:
        if name not in known:
            known[name] = 1 + max((level(below) for below in follows[name]), default=0)
        return known[name]

    return {name: level(group.get(name, name)) for name in names}


def floors_of(names: Iterable[str], imports: Iterable[Import]) -> dict[str, int]:
    """Returns the number of levels of the files of each module, by the arrows inside the module."""
    files: dict[str, list[str]] = defaultdict(list)
    for name in names:
        files[name.split(".")[0]].append(name)
    inside: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for each in imports:
        if each.source.split(".")[0] == each.target.split(".")[0]:
            inside[each.source.split(".")[0]].append(each)
    return {module: max(levels(members, inside[module]).values()) for module, members in files.items()}


def report(title: str, holds: dict[str, str], names: list[str], imports: list[Import], with_arrows: bool) -> bool:
    """Prints the structure of a tree. Returns True if each module has its layer, and every arrow points downward."""
    counts: dict[str, int] = defaultdict(int)
    for name in names:
        counts[name.split(".")[0]] += 1
    between = arrows(imports)
    level = levels(counts, between)
    wrong, rings, file_rings = upward(holds, between), circles(between), circles(set(imports))
    unknown = sorted(set(counts) - set(holds))
    print(
        f"{title}: {len(counts)} modules on {max(level.values())} levels, {len(between)} arrows, {len(wrong)} upward, "
        f"{len(rings)} circles; {len(names)} files, {len(set(imports))} arrows, {len(file_rings)} circles"
    )
    print("level  files  floors  module           holds")
    order = {name: place for place, name in enumerate(holds)}
    floors = floors_of(names, imports)
    for name in sorted(counts, key=lambda name: (level[name], order.get(name, -1))):
        what = holds.get(name, "not in the list of layers")
        print(f"{level[name]:5}  {counts[name]:5}  {floors[name]:6}  {name:15}  {what}")
    if with_arrows:
        for (source, target), drawn in sorted(between.items()):
            print(f"  {source} -> {target}: {', '.join(f'{each.source} -> {each.target}' for each in drawn)}")
    for source, target in wrong:
        print(f"upward: {source} -> {target}: {', '.join(each.source for each in between[source, target])}")
    for ring in [*rings, *file_rings]:
        print(f"circle: {', '.join(ring)}")
    return not (wrong or rings or unknown)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("trees", nargs="*", metavar="python|src", help="what to print (both)")
    parser.add_argument("--arrows", action="store_true", help="print each arrow, with the files that draw it")
    options = parser.parse_args()
    package = ROOT / "python/shmtree"
    sound = True
    for tree in options.trees or ["python", "src"]:
        if tree == "python":
            found = python_files(package), python_imports(package)
            sound &= report("python/shmtree", PYTHON, *found, options.arrows)
        else:
            names = sorted({_source_name(ROOT, file) for file in source_files(ROOT)})
            sound &= report("src", SRC, names, source_imports(ROOT), options.arrows)
        print()
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
