"""A child that is forked at any moment finds no lock of the C++ runtime or the standard library locked.

The compiler guards a function-local static with a dynamic initializer by such a lock. Its guard variable is in the
symbol table, under a mangled name that begins with _ZGVZ.

The child lacks the parent's other threads, which may have held any lock and been making any static object. So every
lock and static object is of a kind that the child finds usable:

- `ForkSafeMutex`: the fork takes all of them, the lock of their list first, and the child's handler releases them.
- `never_destroyed<T>()`: made when the library is loaded, without a lock, so complete or not yet made.
- `computed_once<f>()`: one atomic word, computed already or again.
- `OfThread<T>`, `ScratchPool`, `tree_allocator.cpp`, `UseEntry`: variables of the forking thread. The handler frees the
  places of other threads' calls.
- Single atomic words, such as those of `Event` and `Spinner`: correct, or only a hint.
- Flags of a working thread (`taking_` of `WakeHub`, `busy_` of `RowCount`), possibly set forever: the child makes its
  own hub, and counts rows by checking all chunks.
- The mutex of a replay stream: the child makes its own streams (`stream_of`).
- `RobustLock`: the parent's lock, since the thread that holds it goes on there.
- `Mutex` of the bindings: `os.fork` first stops all other threads, at points where they hold none.
- `threading.Lock` of the package, and the `RLock` of `cuda._pinned`: the child has a new lock. The fork takes other
  `RLock`s.
- Python's lock of a module that is being imported: the child has a new lock, and treats the import as failed
  (`_process/fork_imports.py`). The package imports NumPy and the modules of standard types itself, so these are
  complete.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import shmtree._core
from shmtree._process import lifetime

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = os.environ.get("SHMTREE_PROGRAMS")

needs_programs = pytest.mark.skipif(
    not PROGRAMS, reason="SHMTREE_PROGRAMS does not say where the C++ programs were built"
)

#: Guards of pybind11 and of the module definition. The import of the module initialises these objects.
FOREIGN = re.compile(r"_ZGVZN?K?(8pybind11|\d+PyInit__core)")
#: Names of functions and types with locks that no fork handler takes.
LOCKS = re.compile(
    r"std::(recursive_|shared_|timed_)*mutex\b|std::(once_flag|call_once|condition_variable|counting_semaphore)"
    r"|pthread_(mutex|once|rwlock|cond)_|\batomic_flag\b.*\.wait\("
)


def guarded_statics(table: str) -> set[str]:
    """Returns the guard variables in the output of `readelf -sW`, without those of thread-local variables."""
    names = set()
    for line in table.splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[3] == "OBJECT" and fields[7].startswith("_ZGVZ"):
            names.add(fields[7])
    return {name for name in names if not FOREIGN.match(name)}


def symbols(path: Path) -> str:
    if shutil.which("readelf") is None:
        pytest.skip("there is no readelf")
    return subprocess.run(["readelf", "-sW", path], capture_output=True, text=True, check=True).stdout


@pytest.mark.guarantee("fork-at-any-moment")
@needs_programs
def test_library_has_no_guarded_statics() -> None:
    libraries = sorted(Path(PROGRAMS or "").parents[1].glob("libshmtree_*.a"))
    assert libraries
    assert {name for library in libraries for name in guarded_statics(symbols(library))} == set()


def test_extension_has_no_guarded_statics() -> None:
    table = symbols(Path(shmtree._core.__file__))
    if ".symtab" not in table:
        pytest.skip("the extension was stripped of its symbols")
    assert guarded_statics(table) == set()


def test_sources_use_no_lock_that_fork_does_not_take() -> None:
    files = [path for top in ("src", "python/bindings") for path in sorted((ROOT / top).rglob("*.[hc]*"))]
    assert len(files) > 200
    found = [str(path.relative_to(ROOT)) for path in files if LOCKS.search(path.read_text())]
    # The lock of a reply channel, and that of a stream; a forked child makes its own channels and streams.
    assert found == ["src/api/client.cpp", "src/replay/buffer/stream.h"]


def test_guarded_statics_finds_a_static_with_an_initialiser(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no compiler")
    source = tmp_path / "a.cpp"
    source.write_text(
        "int make(); struct S { S(); ~S(); };\n"
        "int guarded() { static const int made = make(); return made; }\n"
        "int constant() { static const int made = 3; return made; }\n"
        "S& of_thread() { static thread_local S made; return made; }\n"
    )
    subprocess.run([compiler, "-c", source, "-o", tmp_path / "a.o"], check=True)
    assert guarded_statics(symbols(tmp_path / "a.o")) == {"_ZGVZ7guardedvE4made"}


@pytest.mark.guarantee("fork-at-any-moment")
@needs_programs
def test_cpp_child_forked_during_first_calls_does_not_hang() -> None:
    program = Path(PROGRAMS or "") / "first_calls"
    done = subprocess.run([program, "8", "60"], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["ok"] * 8), done.stdout + done.stderr


FIRST_CALLS = """
import os, queue, signal, sys, threading, time
import shmtree, shmtree.replay
import numpy as np

def call_everything():
    arena = shmtree.Arena(16 << 20)
    jobs = arena.Queue(4)
    jobs.put({"a": np.arange(500), "b": "x" * 2000}, timeout=1)
    jobs.get(timeout=1)
    latest = shmtree.Latest(arena=arena)
    latest.publish(1)
    shmtree.observe()

number = int(sys.argv[1])
sender, receiver = shmtree.create_pair(capacity=0)
begins = threading.Event()

def first():
    begins.set()
    try:
        sender.put("from a thread", timeout=1)
    except queue.Full:
        pass
    call_everything()

thread = threading.Thread(target=first)
thread.start()
begins.wait()
time.sleep(number * number * 20e-6)
child = os.fork()
if child == 0:
    signal.alarm(60)
    try:
        try:
            sender.put("from a child", timeout=1)
        except (queue.Full, shmtree.ChannelClosed):
            pass
        call_everything()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
thread.join()
sys.exit(status != 0)
"""


@pytest.mark.guarantee("fork-at-any-moment")
@pytest.mark.parametrize("number", range(4))
def test_python_child_forked_during_first_calls_does_not_hang(number: int) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FIRST_CALLS, str(number)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_lock_in_is_replaced_in_a_forked_child() -> None:
    class Owner:
        def __init__(self) -> None:
            self.lock = lifetime.lock_in(self, "lock")

    owner = Owner()
    with owner.lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if owner.lock.acquire(timeout=60) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_package_locks_are_renewed_or_held_at_fork() -> None:
    # These modules reset their locks in a child, or take them before the fork. Locks of asyncio belong to a loop.
    renewing = {
        "_process/arenas.py",
        "_process/fork_imports.py",
        "_process/lifetime.py",
        "_ipc/client.py",
        "_run/counters.py",
        "cuda/_driver.py",
        "cuda/_pinned.py",
        "cuda/_received.py",
    }
    taking = {"_process/spawn.py", "cuda/_sent.py"}
    unused_in_children = {"replay/_loader.py"}  # each method looks at the pid first
    renewed_by_others = {"cuda/_events.py"}  # by _received.py, which owns the objects with the locks
    package = ROOT / "python" / "shmtree"
    makes = re.compile(r"threading\.(R?Lock|Condition|Semaphore|BoundedSemaphore|Barrier)\(")
    found = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if makes.search(path.read_text())}
    assert found - renewing - taking - renewed_by_others - unused_in_children == set()
    for name in renewing | taking:
        assert "os.register_at_fork" in (package / name).read_text(), name
