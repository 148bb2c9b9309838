"""Tests of iterate_in_subprocess: items, errors, and the exit of the subprocess when the loop ends."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import subprocess_sources as sources
from starts import START_METHODS

import shmtree

SUPPORT = Path(__file__).resolve().parents[1] / "support"


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until_gone(pid: int, seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not is_gone(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return is_gone(pid)


@pytest.mark.parametrize("method", START_METHODS)
def test_items_arrive_in_order_and_large_arrays_are_views(method: str, arena: shmtree.Arena):
    kept = list(shmtree.iterate_in_subprocess(sources.batches, 5, capacity=2, context=method, arena=arena))

    assert [item["i"] for item in kept] == list(range(5))
    assert [int(item["x"].sum()) for item in kept] == [50_000 * i for i in range(5)]
    assert len(arena.holders()) == 5
    assert kept[0]["x"].flags.writeable
    del kept
    assert arena.holders() == []


def test_function_and_arguments_may_be_partial_and_shared(arena: shmtree.Arena):
    made = arena.array((1,), np.int64)

    items = shmtree.iterate_in_subprocess(partial(sources.counting, made, count=3), capacity=None)

    assert list(items) == [0, 1, 2]
    assert made.array[0] == 3
    assert list(items) == []  # an ended iterator stays at its end


def test_subprocess_is_at_most_capacity_items_ahead(arena: shmtree.Arena):
    made = arena.array((1,), np.int64)
    for number in shmtree.iterate_in_subprocess(sources.counting, made, 50, capacity=2):
        assert made.array[0] <= number + 1 + 2 + 1  # one is received, two are queued, and one is being put


@pytest.mark.parametrize("how", ["raises", "is not pickled", "is not loaded", "stops", "exits"])
def test_error_follows_earlier_items_with_its_traceback(how: str):
    items = shmtree.iterate_in_subprocess(sources.failing, how)
    assert next(items) == "first"

    with pytest.raises(KeyError if how == "raises" else RuntimeError) as caught:
        next(items)

    trace = str(caught.value.__cause__)
    assert "fail_deep_inside" in trace
    assert "fail_deep_inside" not in str(caught.value)  # a program that ends with the error prints the traceback too
    if how == "raises":
        assert caught.value.args == ("lost",)
    assert is_gone(items.pid)
    assert list(items) == []


@pytest.mark.parametrize("how", ["raises", "stops"])
def test_iterable_that_cannot_be_made_raises(how: str):
    with pytest.raises(ValueError if how == "raises" else RuntimeError, match="no iterable"):
        next(shmtree.iterate_in_subprocess(sources.cannot_be_made, how, context="fork"))


def test_unsendable_item_raises():
    items = shmtree.iterate_in_subprocess(sources.one_that_cannot_be_sent, context="fork")
    assert next(items) == "first"
    with pytest.raises(Exception, match="local object") as caught:
        next(items)
    assert "_put_all" in str(caught.value.__cause__)


@pytest.mark.parametrize("fn", [None, [1, 2], sources.batches(3)])
def test_argument_that_is_not_callable_raises_type_error(fn: object):
    with pytest.raises(TypeError, match="function"):
        shmtree.iterate_in_subprocess(fn)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_argument_that_fails_to_load_raises_with_traceback(method: str):
    items = shmtree.iterate_in_subprocess(sources.batches, sources.LoadsNowhere(), context=method)

    with pytest.raises(LookupError, match="not here") as caught:
        next(items)

    assert "fail_to_load" in str(caught.value.__cause__)
    assert list(items) == []


def test_unprintable_exception_keeps_its_traceback():
    items = shmtree.iterate_in_subprocess(sources.failing, "is not printed", context="fork")
    assert next(items) == "first"

    with pytest.raises(RuntimeError, match="NotPrinted") as caught:
        next(items)

    assert "fail_deep_inside" in str(caught.value.__cause__)


def test_unguarded_main_module_raises_with_a_hint(tmp_path: Path):
    script = tmp_path / "unguarded.py"
    script.write_text("import shmtree\nfor number in shmtree.iterate_in_subprocess(range, 3): print(number)\n")

    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100)

    assert ended.stdout == ""
    assert "bootstrapping phase" in ended.stderr  # the error of the subprocess itself
    assert "__main__" in ended.stderr.splitlines()[-1]
    assert ended.stderr.splitlines()[-1].startswith("RuntimeError: the subprocess exited with code 1")


def test_subprocess_with_a_lingering_thread_ends_quietly(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("shmtree._ipc.subprocess_iterator._LAST_STEPS_S", 0.5)
    items = shmtree.iterate_in_subprocess(sources.leaves_a_thread, context="fork")

    assert list(items) == ["only"]

    assert wait_until_gone(items.pid)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "vanishes"])
def test_killed_subprocess_is_reported_once(how: str):
    if how == "vanishes":
        items = shmtree.iterate_in_subprocess(sources.failing, how, context="fork")
        assert next(items) == "first"
    else:
        items = shmtree.iterate_in_subprocess(sources.pid_and_sleep, context="fork")
        os.kill(next(items), getattr(signal, how))

    with pytest.raises(shmtree.PeerDied) as caught:
        next(items)

    assert caught.value.pids == (items.pid,)
    assert list(items) == []


@pytest.mark.guarantee("iterated-subprocess")
@pytest.mark.parametrize("how", ["break", "raise", "close", "with", "collected"])
def test_subprocess_ends_with_the_loop_and_closes_its_iterable(how: str, tmp_path: Path):
    closed = tmp_path / "closed"
    items = shmtree.iterate_in_subprocess(sources.for_ever, closed, context="fork")
    pid = items.pid
    assert next(items) == 0

    if how == "close":
        items.close()
        assert list(items) == []
    elif how == "with":
        with items:
            assert next(items) == 1
    elif how == "collected":
        kept = [items]
        kept.append(kept)  # type: ignore[arg-type]
        del items, kept
        gc.collect()
    else:
        leave(items, how == "raise")
        del items

    assert is_gone(pid)
    assert closed.exists()


def leave(items: shmtree.SubprocessIterator[int], by_raising: bool) -> None:
    try:
        for _ in items:
            if by_raising:
                raise LookupError
            break
    except LookupError:
        pass


def program(how: str) -> subprocess.Popen[str]:
    # Programs in a terminal do not ignore Ctrl-C, unlike background jobs of a script.
    code = f"""
import signal
import subprocess_sources
if __name__ == '__main__':
    signal.signal(signal.SIGINT, signal.default_int_handler)
    subprocess_sources.ends_with_its_loop({how!r})
"""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code],
        cwd=SUPPORT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.guarantee("iterated-subprocess")
@pytest.mark.parametrize("how", ["killed", "left open", "interrupted"])
def test_subprocess_ends_with_the_program_that_started_it(how: str):
    with program(how) as running:
        assert running.stdout is not None
        worker = int(running.stdout.readline())
        if how == "interrupted":  # Ctrl-C signals every process of the terminal
            os.killpg(running.pid, signal.SIGINT)
        errors = running.communicate(timeout=100)[1]

    assert wait_until_gone(worker)
    assert running.returncode == {"killed": -signal.SIGKILL, "left open": 0, "interrupted": -signal.SIGINT}[how]
    assert errors.count("Traceback") == (how == "interrupted")
    assert ("KeyboardInterrupt" in errors) == (how == "interrupted")
