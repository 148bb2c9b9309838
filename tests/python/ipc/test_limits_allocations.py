"""Each allocation of each call fails in turn: the call raises MemoryError, and the next call works."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from test_limits import UNDER_SANITIZER, run_program

WITHOUT_MEMORY = """
with_memory = lambda: None
shared = shmtree.Arena(64 * MIB)

def sample():
    twice = [1, {2}]
    twice.append(twice)
    plain = {"a": np.arange(2000), "b": [1, 2.5, "text", b"bytes", None], ("c", 1): {3, 4}, "d": np.arange(9.0)}
    return {"twice": (twice, {3: twice}), **plain}

def each(prepare, act, check):
    for n in range(1, 3000):
        state = prepare()
        fail_at(n)
        try:
            act(state)
            failed = False
        except MemoryError:
            failed = True
        finally:
            reached = all_well()
        check(state, failed)
        if not reached:
            return n
    raise AssertionError("it never got through")

def new_pair():
    return shared.create_pair()

def full_pair():
    return full(*shared.create_pair())

def full_queue():
    return full(*[shmtree.Queue(arena=shared)] * 2)

def full(sender, receiver):
    sender.put(sample())
    sender.put("next")
    return [sender, receiver, None]

def large_pair():
    sender, receiver = shared.create_pair()
    given = sender.new_empty(30_000, np.int64)
    given[:] = range(30_000)
    sender.put({"a": np.arange(2000), "large": np.arange(20_000), "given": given})
    sender.put("next")
    return [sender, receiver, None]

def put_check(pair, failed):
    assert pair[1].qsize() == (0 if failed else 1)
    pair[0].put("after")
    got = [pair[1].get(timeout=60) for _ in range(pair[1].qsize())]
    assert got[-1] == "after" and len(got) == (1 if failed else 2)

def get(state):
    state[2] = state[1].get(timeout=60)

def get_many(state):
    state[2] = state[1].get_many(5)

def get_check(state, failed):
    got = [] if state[2] is None else state[2] if isinstance(state[2], list) else [state[2]]
    assert bool(got) != failed
    assert state[1].qsize() == 2 - len(got)
    got += [state[1].get(timeout=60) for _ in range(state[1].qsize())]
    assert len(got) == 2 and np.array_equal(got[0]["a"], np.arange(2000)) and got[1] == "next"
    if "large" in got[0]:
        assert got[0]["large"].sum() == sum(range(20_000)) and got[0]["given"].sum() == sum(range(30_000))

def take_check(pair, failed):
    first = pair[1].take(timeout=60)
    if not failed and first.item == "next":
        return
    assert np.array_equal(first.item["a"], np.arange(2000))
    first.ack()
    assert pair[1].get() == "next"

def pair_with_array():
    sender, receiver = shared.create_pair()
    return sender, receiver, sender.new_empty(3000, np.int64)

points = [
    each(new_pair, lambda pair: pair[0].put(sample()) and None, put_check),
    each(new_pair, lambda pair: pair[0].put_many([sample()]) and None, put_check),
    each(pair_with_array, lambda pair: pair[0].put(pair[2]) and None, put_check),
    each(full_pair, get, get_check),
    each(full_queue, get, get_check),
    each(large_pair, get, get_check),
    each(full_pair, get_many, get_check),
    each(large_pair, get_many, get_check),
    each(full_pair, lambda pair: pair[1].take(timeout=60).ack(), take_check),
    each(large_pair, lambda pair: pair[1].take(timeout=60).ack(), take_check),
    each(lambda: None, lambda _: shmtree.unpack(shmtree.pack(sample())) and None, lambda *_: None),
]
import gc
from shared_state import violated
gc.collect()
shared.trim()
assert violated(shared) == "", violated(shared)
print(points)
"""

PYTHON_ALLOCATIONS = """
import _testcapi
last = 0
def fail_at(n):
    global last
    last = n
    _testcapi.set_nomemory(n, n + 1)
def all_well():
    _testcapi.remove_mem_hooks()
    return last < 400
"""

CPP_ALLOCATIONS = """
import ctypes
shim = ctypes.CDLL(os.environ["LD_PRELOAD"])
def fail_at(n):
    shim.fail_at(n)
def all_well():
    return shim.all_well() != 0
"""

# PyList_New() of Python 3.13 without a GIL reuses the memory of a freed list, which still has the pointer to that
# list's items. If there is no memory for the new items, it frees the old ones again. References are lost and the heap
# is damaged, until the interpreter crashes or hangs. This program shows it without any code of ours.
LIST_WITHOUT_MEMORY = """
import os, sys, _testcapi
item = object()

def make():
    return [item, item]

make()
before = sys.getrefcount(item)
_testcapi.set_nomemory(0, 1)
try:
    make()
except MemoryError:
    pass
_testcapi.remove_mem_hooks()
os._exit(sys.getrefcount(item) != before)
"""


def lists_survive_without_memory() -> bool:
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        return True
    return subprocess.run([sys.executable, "-c", LIST_WITHOUT_MEMORY], check=False).returncode == 0


SHIM = r"""
#include <cstdlib>
#include <new>
static thread_local long left = -1;
static thread_local int reached = 0;
static bool fails() noexcept {
  if (left < 0) return false;
  if (--left > 0) return false;
  left = -1;
  reached = 1;
  return true;
}
extern "C" void fail_at(long n) { left = n, reached = 0; }
extern "C" int all_well() { left = -1; return reached; }
static void* get(std::size_t n) noexcept { return fails() ? nullptr : std::malloc(n ? n : 1); }
void* operator new(std::size_t n) { if (void* p = get(n)) return p; throw std::bad_alloc(); }
void* operator new[](std::size_t n) { return operator new(n); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return get(n); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return get(n); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }
"""


@pytest.mark.guarantee("kept-without-memory")
@pytest.mark.skipif(UNDER_SANITIZER, reason="a sanitizer has allocators of its own")
def test_every_failing_cpp_allocation_raises_memory_error(tmp_path: Path) -> None:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no C++ compiler to make failing memory with")
    source, library = tmp_path / "shim.cpp", tmp_path / "shim.so"
    source.write_text(SHIM)
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    run_program(CPP_ALLOCATIONS + WITHOUT_MEMORY, LD_PRELOAD=str(library))


@pytest.mark.guarantee("kept-without-memory")
@pytest.mark.skipif(UNDER_SANITIZER, reason="a sanitizer has allocators of its own")
@pytest.mark.skipif(importlib.util.find_spec("_testcapi") is None, reason="this Python came without _testcapi")
def test_every_failing_python_allocation_raises_memory_error() -> None:
    if not lists_survive_without_memory():
        pytest.skip("this Python without a GIL frees the items of a list twice when memory runs out")
    run_program(PYTHON_ALLOCATIONS + WITHOUT_MEMORY)
