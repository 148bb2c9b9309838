"""Progress of saves and loads: a function of the program gets it, and can stop them."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shmtree
from shmtree._ipc.observer import observe
from shmtree.replay import Prioritized, ReplayBuffer, Sampling


class Stopped(Exception):
    pass


def filled(rows: int, **options: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(1000, example={"n": 0}, sampling=Sampling(Prioritized()), **options)
    for number in range(rows):
        buffer.add({"n": number})
    return buffer


def numbers(buffer: ReplayBuffer) -> list[int]:
    return sorted(set(buffer.sample(len(buffer) * 50).data["n"].tolist()))


def in_call(number: int, act: Callable[[], object]) -> Callable[[int, int], object]:
    """Returns a function that calls `act` in the call of this number; -1 is the last one."""
    calls = 0

    def progress(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls - 1 == number or (number == -1 and done == total):
            act()

    return progress


def stop() -> None:
    raise Stopped


def are_right(calls: list[tuple[int, int]]) -> bool:
    return (
        len(calls) >= 2
        and calls[0][0] == 0
        and calls[-1][0] == calls[-1][1]
        and calls == sorted(calls)
        and all(0 <= done <= total and total > 0 for done, total in calls)
    )


@pytest.mark.parametrize("rows", [0, 50])
def test_progress_of_save_and_load_ends_at_the_total(rows: int, tmp_path: Path) -> None:
    buffer = filled(rows)
    saving: list[Any] = []
    loading: list[Any] = []
    nothing: list[Any] = []
    saved = buffer.save(tmp_path / "saved", progress=lambda *call: saving.append(call))
    back = ReplayBuffer.load(tmp_path / "saved", progress=lambda *call: loading.append(call))
    buffer.save(tmp_path / "saved", progress=lambda *call: nothing.append(call))
    assert are_right(saving) and are_right(loading) and are_right(nothing)
    assert saved.written <= saving[-1][1] and saved.nbytes <= loading[-1][1]
    assert len(back) == rows


@pytest.mark.parametrize("call", [0, -1])
def test_exception_of_progress_leaves_the_previous_save(call: int, tmp_path: Path) -> None:
    buffer = filled(50)
    buffer.save(tmp_path / "saved")
    names = sorted(os.listdir(tmp_path / "saved"))
    buffer.add({"n": 50})
    with pytest.raises(Stopped) as raised:
        buffer.save(tmp_path / "saved", progress=in_call(call, stop))
    assert sorted(os.listdir(tmp_path / "saved")) == names
    assert numbers(ReplayBuffer.load(tmp_path / "saved")) == list(range(50))
    assert buffer.save(tmp_path / "saved").save == 2  # while the exception is still referenced
    assert raised.type is Stopped


def arenas() -> set[str]:
    """Returns the uuids of the arenas that this process has open."""
    return {
        arena["uuid"] for arena in observe()["arenas"] if os.getpid() in {opener["pid"] for opener in arena["openers"]}
    }


@pytest.mark.parametrize(
    ("name", "error"), [("taken", FileExistsError), ("a//b", ValueError)], ids=["in use", "invalid"]
)
def test_load_rejects_a_name_before_it_reads_rows(
    name: str, error: type[Exception], tmp_path: Path, runtime_directory: Path
) -> None:
    filled(50).save(tmp_path / "saved")
    _ends = shmtree.create_pair(name="taken")
    calls: list[Any] = []
    with pytest.raises(error, match=f'the name "{name}"'):
        ReplayBuffer.load(tmp_path / "saved", name=name, progress=lambda *call: calls.append(call))
    assert calls == []


@pytest.mark.parametrize("call", [0, -1])
def test_exception_of_progress_in_load_frees_the_memory(call: int, tmp_path: Path, runtime_directory: Path) -> None:
    buffer = filled(50)
    buffer.save(tmp_path / "saved")
    before = arenas()
    with pytest.raises(Stopped) as raised:
        ReplayBuffer.load(tmp_path / "saved", name="again", progress=in_call(call, stop))
    assert arenas() <= before  # although the traceback is still referenced
    with pytest.raises(FileNotFoundError):
        ReplayBuffer.open("again")
    assert buffer.save(tmp_path / "saved").save == 2
    assert raised.type is Stopped


@pytest.mark.guarantee("replay-files")
@pytest.mark.parametrize("call", [0, -1])
def test_kill_in_progress_leaves_the_previous_save(call: int, tmp_path: Path) -> None:
    buffer = filled(50)
    buffer.save(tmp_path / "saved")
    buffer.add({"n": 50})
    progress = in_call(call, lambda: os.kill(os.getpid(), signal.SIGKILL))
    child = multiprocessing.get_context("fork").Process(
        target=buffer.save, args=(tmp_path / "saved",), kwargs={"progress": progress}
    )
    child.start()
    child.join(100)
    assert child.exitcode == -signal.SIGKILL
    assert numbers(ReplayBuffer.load(tmp_path / "saved")) == list(range(50))
    assert buffer.save(tmp_path / "saved").save == 2
    assert numbers(ReplayBuffer.load(tmp_path / "saved")) == list(range(51))


def test_progress_may_use_the_buffer_and_other_threads_run(tmp_path: Path) -> None:
    buffer = filled(50)

    def use(done: int, total: int) -> None:
        assert len(buffer.sample(10)) == 10
        buffer.add({"n": 50})
        with pytest.raises(BlockingIOError):
            buffer.save(tmp_path / "saved")

    assert buffer.save(tmp_path / "saved", progress=use).rows == 50
    assert len(buffer) == 52


def test_progress_may_close_the_buffer(tmp_path: Path) -> None:
    buffer = filled(50)
    assert buffer.save(tmp_path / "saved", progress=lambda *_: buffer.close()).rows == 50
    assert buffer.closed


@pytest.mark.parametrize("wrong", [1, "bar"])
def test_progress_must_be_callable(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=rf"progress is {wrong!r}"):
        filled(1).save(tmp_path / "saved", progress=wrong)
    assert not (tmp_path / "saved").exists()
    filled(1).save(tmp_path / "saved")
    with pytest.raises(TypeError, match=rf"progress is {wrong!r}"):
        ReplayBuffer.load(tmp_path / "saved", progress=wrong)


def test_progress_gets_two_ints_by_position(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="positional argument"):
        filled(1).save(tmp_path / "saved", progress=lambda: None)  # type: ignore[arg-type, misc]
    assert os.listdir(tmp_path / "saved") == []
