"""Imports of the package point downward, and its core imports no optional library. See tools/structure.py."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "python" / "shmtree"


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("shmtree_structure", ROOT / "tools/structure.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


structure = tool()

# Modules that import torch, ray or CUDA's requirements. Functions import them on request.
WHEN_ASKED_FOR = {
    "_torch.devices",
    "cuda._pinned",
    "cuda._received",
    "cuda._sent",
    "ray._actors",
}
CORE = ("_codec", "_process", "_ipc")


def package(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_imports_between_modules_point_downward() -> None:
    between = structure.arrows(structure.python_imports(PACKAGE))
    assert structure.upward(structure.PYTHON, between) == []


def test_files_form_no_circle() -> None:
    assert structure.circles(structure.python_imports(PACKAGE)) == []


def test_the_list_of_layers_has_every_module() -> None:
    assert {name.split(".")[0] for name in structure.python_files(PACKAGE)} == set(structure.PYTHON)


def test_the_page_shows_the_layers() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE)
    assert [row for row in rows if row[0] in structure.PYTHON] == list(structure.PYTHON.items())


def test_includes_between_modules_point_downward() -> None:
    between = structure.arrows(structure.source_imports(ROOT))
    assert structure.upward(structure.SRC, between) == []


def test_an_import_in_a_function_is_an_arrow(tmp_path: Path) -> None:
    files = {
        "low/__init__.py": "",
        "low/a.py": "def f():\n    from ..high import b\n",
        "high/__init__.py": "",
        "high/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..low import a\n",
    }
    found = structure.python_imports(package(tmp_path, files))
    assert found == [("low.a", "high.b")]
    assert structure.upward(["low", "high"], structure.arrows(found)) == [("low", "high")]
    assert structure.upward(["high", "low"], structure.arrows(found)) == []


def test_a_circle_is_found(tmp_path: Path) -> None:
    files = {"a.py": "from . import b\n", "b.py": "if True:\n    from .c import x\n", "c.py": "from .a import y\n"}
    found = structure.python_imports(package(tmp_path, files))
    assert structure.circles(found) == [["a", "b", "c"]]
    assert structure.levels("abc", found) == {"a": 1, "b": 1, "c": 1}


def test_imports_in_functions_are_of_optional_modules() -> None:
    for source, target in structure.python_imports(PACKAGE, in_function=True):
        assert target in WHEN_ASKED_FOR, f"{source} imports {target} in a function"


@pytest.mark.parametrize("module", CORE)
def test_the_core_imports_no_optional_library(module: str) -> None:
    for file in sorted((PACKAGE / module).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                names = [str(node.module)] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            allowed = {*sys.stdlib_module_names, "numpy", "typing_extensions"}
            assert {name.split(".")[0] for name in names} <= allowed, file


def test_the_core_imports_nothing_of_the_package() -> None:
    for file in sorted((ROOT / "python" / "bindings").rglob("*.cpp")):
        assert not re.search(r'(Import\w*|import)\("shmtree', file.read_text()), file


def test_importing_the_package_loads_no_code_for_cuda_or_torch() -> None:
    program = "import sys, shmtree; print(*(m for m in sys.modules if 'cuda' in m or m.split('.')[0] == 'torch'))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []


def test_importing_the_package_does_not_import_asyncio() -> None:
    program = "import sys, shmtree; print('asyncio' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False"]


def test_the_command_prints_both_trees() -> None:
    ran = subprocess.run([sys.executable, "tools/structure.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.search(r"^python/shmtree: \d+ modules on \d+ levels, \d+ arrows, 0 upward, 0 circles", ran.stdout, re.M)
    assert re.search(r"^src: \d+ modules on \d+ levels, \d+ arrows, 0 upward, 0 circles", ran.stdout, re.M)
