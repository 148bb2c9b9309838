"""What the modules of the package import: nobody themselves by way of others, and CUDA only when it is asked for."""

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "shmtree"

# Imported in functions, by those who ask for what they are there for.
WHEN_ASKED_FOR = {"_cuda_received", "_cuda_sent", "_pinned", "ray._actors", "ray._shard_actors", "torch"}


def statements(nodes: list[ast.stmt], in_function: bool = False) -> Iterator[tuple[ast.ImportFrom, bool]]:
    """The relative imports of a module that are executed, and whether that is in a function."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            yield node, in_function
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for field in ("body", "orelse", "finalbody", "handlers"):
                yield from statements(getattr(node, field, []), inside)


def imported(folder: Path, in_function: bool) -> dict[str, set[str]]:
    """What each module imports of the others, by their names below the package."""
    found: dict[str, set[str]] = {}
    for file in sorted(folder.rglob("*.py")):
        place = file.relative_to(folder).with_suffix("").parts
        names = found.setdefault(".".join(place), set())
        for node, inside in statements(ast.parse(file.read_text()).body):
            if inside != in_function:
                continue
            base = [*place[: len(place) - node.level], *(node.module or "").split(".")]
            home = folder.joinpath(*(part for part in base if part))
            for alias in node.names:
                is_module = home.is_dir() and ((home / f"{alias.name}.py").exists() or alias.name == "_core")
                path = [part for part in base if part] + ([alias.name] if is_module else [])
                names.add(".".join(path if not folder.joinpath(*path).is_dir() else [*path, "__init__"]))
        names.discard(".".join(place))
    return found


def test_no_module_of_the_package_imports_itself_by_way_of_others() -> None:
    graphlib.TopologicalSorter(imported(PACKAGE, in_function=False)).prepare()


def test_a_circle_of_imports_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from . import b\n")
    (tmp_path / "b.py").write_text("if True:\n    from .a import x\n")
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(imported(tmp_path, in_function=False)).prepare()


def test_functions_import_only_what_is_loaded_when_it_is_asked_for() -> None:
    for module, names in imported(PACKAGE, in_function=True).items():
        assert names <= WHEN_ASKED_FOR, f"{module} imports {names - WHEN_ASKED_FOR} in a function"


def test_the_core_imports_nothing_of_the_package() -> None:
    for file in sorted((ROOT / "python" / "bindings").rglob("*.cpp")):
        assert not re.search(r'(Import\w*|import)\("shmtree', file.read_text()), file


def test_importing_the_package_loads_no_code_for_cuda_or_torch() -> None:
    program = "import sys, shmtree; print(*(m for m in sys.modules if 'cuda' in m or 'torch' in m or '_pinned' in m))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []
