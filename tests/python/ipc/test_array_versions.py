"""Versioned writes and reads of shared arrays: no copy is torn, even if the writer dies."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import shmtree

MIB = 1 << 20


def new_array(nbytes: int = 8 * 1024, arena: shmtree.Arena | None = None) -> shmtree.SharedArray:
    return (arena or shmtree.Arena(64 * MIB)).array(nbytes // 8, np.int64)


def write_for_ever(array: shmtree.SharedArray) -> None:
    for value in range(1, 1 << 40):
        with array.write() as memory:
            memory[:] = value


def read_whole(array: shmtree.SharedArray, count: int) -> None:
    out = np.empty_like(array.array)
    for _ in range(count):
        array.read(out, timeout=100)
        if (out != out[0]).any():
            os._exit(9)


def start(target: Any, *args: Any) -> Any:
    process = multiprocessing.get_context("spawn").Process(target=target, args=args, daemon=True)
    process.start()
    return process


def end(process: Any) -> None:
    process.kill()
    process.join()


@pytest.mark.guarantee("shared-array-read")
def test_reads_of_20_mb_are_whole_while_two_processes_write() -> None:
    array = new_array(20_000_000)
    writers = [start(write_for_ever, array) for _ in range(2)]
    array.wait(newer_than=2, timeout=100)
    reader = start(read_whole, array, 15)
    read_whole(array, 15)
    reader.join(200)
    assert reader.exitcode == 0
    assert array.version > 15
    for writer in writers:
        end(writer)


def test_write_makes_the_next_version_and_wakes_waiters() -> None:
    array = new_array()
    assert array.version == 0 and not array.torn
    with pytest.raises(TimeoutError):
        array.wait(newer_than=0, timeout=0)
    with array.write() as memory:
        assert memory is array.array
        memory[:] = 3
        assert array.version == 0
    assert array.wait(newer_than=0) == array.version == 1
    assert array.read().sum() == 3 * 1024
    waiting = threading.Thread(target=lambda: array.wait(newer_than=1, timeout=100))
    waiting.start()
    with array.write():
        pass
    waiting.join(100)
    assert not waiting.is_alive()


def test_read_copies_into_a_new_or_given_array() -> None:
    arena = shmtree.Arena(64 * MIB)
    array = arena.array((3, 2), "M8[s]")
    with array.write() as memory:
        memory[1, 1] = "2026-01-01"
    copy = array.read()
    assert copy.dtype == "M8[s]" and copy.shape == (3, 2) and str(copy[1, 1]).startswith("2026")
    for out in (np.empty((3, 2), "M8[s]"), np.empty((2, 3), "M8[s]").T, np.empty((3, 2), "M8[us]")):
        assert array.read(out) is out
        assert (out == copy).all()
    copy[:] = "1999-01-01"
    assert str(array.array[1, 1]).startswith("2026")
    with pytest.raises(ValueError, match="broadcast"):
        array.read(np.empty(7, "M8[s]"))
    scalar = arena.array((), float)
    with scalar.write() as memory:
        memory[...] = 2.5
    assert scalar.read() == 2.5


@pytest.mark.guarantee("shared-array-read")
def test_dropped_write_leaves_the_array_torn_but_unlocked() -> None:
    array = new_array()
    write = array.write()
    write.__enter__()
    del write
    gc.collect()
    assert array.torn
    with array.write(timeout=60, whole=True) as memory:
        memory[:] = 1
    assert array.version == 1 and not array.torn
    del memory
    array.write()  # this write is never begun
    assert not array.torn


def test_child_dropping_its_parents_write_does_not_end_it() -> None:
    array = new_array()
    kept = [array.write()]
    kept[0].__enter__()
    pid = os.fork()
    if pid == 0:
        kept.clear()
        gc.collect()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    kept[0].__exit__(None, None, None)
    assert array.version == 1 and not array.torn


def test_interpreter_exit_during_a_write_prints_nothing() -> None:
    program = "import shmtree; write = shmtree.Arena(1 << 20).array(4).write(); write.__enter__()"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (result.returncode, result.stderr) == (0, "")


def test_other_threads_wait_or_time_out_during_a_write() -> None:
    array = new_array()
    with array.write():
        errors = []

        def write() -> None:
            try:
                with array.write(timeout=0.05):
                    pass
            except TimeoutError as error:
                errors.append(str(error))

        thread = threading.Thread(target=write)
        thread.start()
        thread.join(100)
        assert str(os.getpid()) in errors[0]
        with pytest.raises(TimeoutError, match=str(os.getpid())):
            array.read(timeout=0.05)
    counters = [threading.Thread(target=add_ones, args=(array, 100)) for _ in range(4)]
    for counter in counters:
        counter.start()
    for counter in counters:
        counter.join(100)
    assert array.read()[0] == 400 and array.version == 401


def add_ones(array: shmtree.SharedArray, count: int) -> None:
    for _ in range(count):
        with array.write() as memory:
            memory += 1


@pytest.mark.guarantee("shared-array-write")
def test_concurrent_writes_of_processes_lose_no_update() -> None:
    array = new_array()
    processes = [start(add_ones, array, 200) for _ in range(3)]
    for process in processes:
        process.join(100)
    assert array.read()[5] == 600 and array.version == 600


@pytest.mark.guarantee("shared-array-torn")
def test_exception_in_a_write_leaves_the_array_torn_until_whole() -> None:
    array = new_array()
    with contextlib.suppress(KeyError), array.write() as memory:
        memory[:5] = 1
        raise KeyError
    assert array.torn and array.version == 0
    with pytest.raises(shmtree.PeerDied) as caught:
        array.read()
    assert caught.value.pids == (os.getpid(),)
    with pytest.raises(shmtree.PeerDied, match="whole=True"), array.write() as memory:
        memory[:] = 9
    assert array.torn and array.version == 0 and (array.array[:6] == [1, 1, 1, 1, 1, 0]).all()
    with array.write(whole=True) as memory:
        memory[:] = 2
    assert not array.torn and array.read()[7] == 2 and array.version == 1


def hang_in_a_write(array: shmtree.SharedArray, ready: Any) -> None:
    with array.write() as memory:
        memory[:5] = 1
        ready.set()
        time.sleep(1000)


def hanging(array: shmtree.SharedArray) -> Any:
    ready = multiprocessing.get_context("spawn").Event()
    writer = start(hang_in_a_write, array, ready)
    assert ready.wait(100)
    return writer


@pytest.mark.guarantee("shared-array-read")
@pytest.mark.guarantee("shared-array-torn")
def test_killed_writer_is_reported_until_a_whole_write() -> None:
    array = new_array()
    writer = hanging(array)
    told: list[Any] = []
    reader = threading.Thread(target=lambda: told.append(failure(array)))
    reader.start()
    end(writer)
    reader.join(100)
    assert isinstance(told[0], shmtree.PeerDied) and told[0].pids == (writer.pid,)
    assert array.torn
    with pytest.raises(shmtree.PeerDied) as caught, array.write(timeout=0) as memory:
        memory += 1
    assert caught.value.pids == (writer.pid,)
    with array.write(timeout=0, whole=True) as memory:
        assert memory[0] == 1
        memory[:] = 4
    assert array.read(timeout=0)[0] == 4


def failure(array: shmtree.SharedArray) -> BaseException | None:
    try:
        array.read(timeout=100)
    except Exception as error:
        return error
    return None


@pytest.mark.guarantee("shared-array-read")
def test_stopped_writer_times_out_others_with_its_pid() -> None:
    array = new_array()
    writer = hanging(array)
    os.kill(writer.pid, signal.SIGSTOP)
    os.waitpid(writer.pid, os.WUNTRACED)
    for call in (array.read, lambda timeout: array.write(timeout).__enter__()):
        with pytest.raises(TimeoutError, match=f"process {writer.pid}, which is stopped"):
            call(timeout=0.1)
    assert not array.torn
    end(writer)
    with array.write(timeout=0, whole=True) as memory:
        memory[:] = 1
    assert array.read()[0] == 1


@pytest.mark.guarantee("shared-array-write")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_child_forked_during_a_write_cannot_finish_it() -> None:
    array = new_array()
    child = 0
    try:
        with array.write() as memory:
            child = os.fork()
            memory[:] = 1
    except ValueError:
        os._exit(7 if child == 0 else 8)
    if child == 0:
        os._exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert array.version == 1 and array.read()[0] == 1


def test_ctrl_c_interrupts_a_wait_for_a_writer() -> None:
    array = new_array()

    def wait() -> None:
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        array.read()

    # A shell starts background jobs with SIGINT ignored, and Python keeps that setting.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with array.write(), pytest.raises(KeyboardInterrupt):
            wait()
    finally:
        signal.signal(signal.SIGINT, before)
    assert array.read()[0] == 0


def test_versions_refuse_an_array_of_an_older_release() -> None:
    core = shmtree.Arena(8 * MIB)._open()
    plain = core.new_array(100, np.float64, "C", True)
    with pytest.raises(ValueError, match="older release"):
        shmtree._core.Versions(plain)


def test_array_opened_by_name_shares_the_versions() -> None:
    name = f"versions-{os.getpid()}"
    array = shmtree.Arena(8 * MIB).array(10, "f4", name=name)
    opened = shmtree.SharedArray.open(name)
    with opened.write() as memory:
        memory[:] = 1
    assert array.version == 1 and array.read().sum() == 10


torch_is_there = importlib.util.find_spec("torch") is not None


@pytest.mark.skipif(not torch_is_there, reason="torch is not installed")
def test_bfloat16_array_has_plain_bits_with_ml_dtypes() -> None:
    pytest.importorskip("ml_dtypes")  # registers bfloat16 with NumPy
    import torch

    array = shmtree.Arena(8 * MIB).array((3, 2), torch.bfloat16)
    assert array.array.dtype == np.uint16 and array.tensor.dtype is torch.bfloat16
    sender, receiver = shmtree.create_pair(allow_pickle=False)
    sender.put(array)
    assert receiver.get(timeout=60).tensor.dtype is torch.bfloat16


@pytest.mark.skipif(not torch_is_there, reason="torch is not installed")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "float8_e4m3fn", "complex64", "int64"])
def test_torch_dtype_array_is_a_tensor_in_each_process(dtype: str) -> None:
    import pickle
    import warnings

    import torch

    name = f"tensor-{dtype}-{os.getpid()}"
    wanted = getattr(torch, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        array = shmtree.Arena(8 * MIB).array((3, 2), wanted, name=name)
        assert array.tensor.dtype is wanted and array.tensor.shape == (3, 2)
        with array.write() as tensor:
            tensor[1, 1] = 1
        sender, receiver = shmtree.create_pair(allow_pickle=False)
        sender.put([array])
        for other in (shmtree.SharedArray.open(name), pickle.loads(pickle.dumps(array)), *receiver.get()):
            assert other.tensor.dtype is wanted and bool(other.tensor[1, 1])
            assert dtype in repr(other)
            copy = other.read()
            assert copy.dtype is wanted and bool(copy[1, 1]) and not bool(copy[0, 0])
            outs = [torch.empty(3, 2, dtype=wanted), torch.empty(2, 3, dtype=wanted).t()]
            for out in outs:
                assert other.read(out) is out
                assert bool(out[1, 1])
    expected = {"bfloat16": "uint16", "float8_e4m3fn": "uint8"}.get(dtype, dtype)
    assert array.array.dtype == expected and array.array.shape == (3, 2)


@pytest.mark.skipif(not torch_is_there, reason="torch is not installed")
def test_numpy_array_has_a_tensor_if_torch_has_its_dtype() -> None:
    array = shmtree.Arena(8 * MIB).array(4, "f8")
    array.tensor[1] = 7
    assert array.array[1] == 7
    with pytest.raises(TypeError):
        _ = shmtree.Arena(8 * MIB).array(4, "M8[s]").tensor
