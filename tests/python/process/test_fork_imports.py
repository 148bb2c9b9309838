"""If a process forks while a thread decodes a message that needs an import, the child can decode it too."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forks import MAX_S, NOT_BESIDE_THREADS, WITHOUT_GIL, fork, join_within

import shmtree

# Since Python 3.12 os.fork warns if there are other threads. These tests fork with threads on purpose.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.skipif(WITHOUT_GIL, reason=NOT_BESIDE_THREADS),
]

SUPPORT = Path(__file__).parents[1] / "support"
STANDARD = {
    "zoneinfo": "zoneinfo.ZoneInfo('UTC')",
    "fractions": "fractions.Fraction(1, 3)",
    "decimal": "decimal.Decimal('1.5')",
    "uuid": "uuid.UUID(int=7)",
}

# A child decodes nothing before its thread does. The delays make the fork happen before, in and after that decode.
PROGRAM = """
import os, sys, threading, time
import shmtree
from forks import join_within

frame = bytes.fromhex(sys.argv[1])
for delay in [0.0] * 5 + [20e-6 * 1.5**i for i in range(20)]:
    first = os.fork()
    if first:
        assert os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) == 0
        continue
    thread = threading.Thread(target=shmtree.unpack, args=(frame,))
    thread.start()
    end = time.perf_counter() + delay
    while time.perf_counter() < end:
        pass
    second = os.fork()
    if second == 0:
        shmtree.unpack(frame)
        os._exit(0)
    join_within(second)
    thread.join()
    os._exit(0)
"""


@pytest.mark.guarantee("fork-during-decode")
@pytest.mark.parametrize("module", STANDARD)
def test_fork_beside_standard_decode_leaves_a_working_child(module):
    frame = bytes(shmtree.pack(eval(STANDARD[module], {module: importlib.import_module(module)})))
    known = os.environ.get("PYTHONPATH")
    subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM, frame.hex()],
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), *filter(None, [known])])},
    )


class Blocked:
    """A module that blocks, in the thread that imports it first, until the test releases it.

    The body does not block in a process in which `go_on` is set.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.is_in_body = threading.Event()
        self.go_on = threading.Event()
        self.path = folder / f"{name}.py"

    def write(self, before: str, after: str) -> None:
        wait = f"import test_fork_imports; test_fork_imports.wait_in_body({self.name!r})"
        self.path.write_text(f"{before}\n{wait}\n{after}\n")


blocked: dict[str, Blocked] = {}


def wait_in_body(name: str) -> None:
    blocked[name].is_in_body.set()
    blocked[name].go_on.wait()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Blocked]:
    name = f"blocked_{abs(hash(request.node.name))}"
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    monkeypatch.setitem(sys.modules, "test_fork_imports", sys.modules[__name__])
    blocked[name] = Blocked(tmp_path, name)
    yield blocked[name]
    del blocked[name]
    sys.modules.pop(name, None)


CLASSES = """
import dataclasses

@dataclasses.dataclass
class Point:
    x: int

class Pickled:
    def __init__(self, x):
        self.x = x
"""


def frame_of(module: Blocked, name: str) -> bytes:
    """Returns a frame with an instance of a class of the module. The module is not imported afterwards."""
    module.go_on.set()
    module.write("", CLASSES)
    frame = bytes(shmtree.pack(getattr(importlib.import_module(module.name), name)(7)))
    del sys.modules[module.name]
    module.go_on.clear()
    module.is_in_body.clear()
    return frame


def fork_inside_import(module: Blocked, first: Callable[[], Any], in_child: Callable[[], Any]) -> None:
    """Forks while a thread that runs `first` executes the body of the module. The child runs `in_child`."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(first()))
    thread.start()
    assert module.is_in_body.wait(MAX_S)

    def run() -> None:
        module.go_on = threading.Event()  # the parent's thread may hold the lock of the other event
        module.go_on.set()
        in_child()

    child = fork(run)
    try:
        join_within(child)
    finally:
        module.go_on.set()
        thread.join(MAX_S)
    assert results and results[0].x == 7


@pytest.mark.guarantee("fork-during-decode")
@pytest.mark.parametrize("name", ["Point", "Pickled"])
def test_fork_inside_class_import_lets_the_child_import_again(module, name):
    frame = frame_of(module, name)

    def decode() -> Any:
        return shmtree.unpack(frame, allow_pickle=True)

    def in_child() -> None:
        assert decode().x == 7

    fork_inside_import(module, decode, in_child)


def test_fork_inside_import_leaves_child_that_refuses_the_class(module):
    frame = frame_of(module, "Point")

    def in_child() -> None:
        with pytest.raises(shmtree.PickleRefused, match="not imported"):
            shmtree.unpack(frame)

    fork_inside_import(module, lambda: shmtree.unpack(frame, allow_pickle=True), in_child)


def test_fork_inside_package_import_lets_the_child_import_again(module, tmp_path):
    name = f"package_of_{module.name}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "part.py").write_text("y = 8")
    (tmp_path / name / "__init__.py").write_text(f"x = 7\nimport {name}.part\nimport {module.name}\n")
    module.write("", "")

    def in_child() -> None:
        package = importlib.import_module(name)
        assert package.x == 7 and package.part.y == 8

    fork_inside_import(module, lambda: importlib.import_module(name), in_child)
    for each in (name, f"{name}.part"):
        del sys.modules[each]


def test_thread_that_forks_inside_its_own_import_finishes_it(module):
    frame = frame_of(module, "Point")
    module.go_on.set()
    module.write("import os; child = os.fork()", CLASSES)
    found: Any = shmtree.unpack(frame, allow_pickle=True)
    child = sys.modules[module.name].child
    if child == 0:
        os._exit(0 if found.x == 7 else 1)
    join_within(child)
    assert found.x == 7


def test_fork_after_submodule_import_keeps_package_attribute(tmp_path, monkeypatch):
    package = tmp_path / "halfway"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("x = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    part = importlib.import_module("halfway.part")
    whole = sys.modules["halfway"]
    # Restores the state before the import system makes the module an attribute of its package.
    del whole.part  # type: ignore[attr-defined]
    in_lock, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        bootstrap: Any = importlib._bootstrap  # type: ignore[attr-defined]
        with bootstrap._ModuleLockManager("halfway.part"):
            in_lock.set()
            go_on.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    assert in_lock.wait(MAX_S)

    def in_child() -> None:
        import halfway.part  # type: ignore[import-not-found]

        assert halfway.part is part

    child = fork(in_child)
    go_on.set()
    thread.join(MAX_S)
    join_within(child)
    for name in ("halfway", "halfway.part"):
        del sys.modules[name]
