"""Loaders: batches that a thread samples ahead."""

from __future__ import annotations

import gc
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shmtree
from shmtree.replay import Batch, Fifo, Limits, Prioritized, RateLimit, ReplayBuffer, Sampling

SECONDS = 60


def filled(rows: int = 100, **options: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(1000, example={"n": 0, "done": False}, **options)
    for n in range(rows):
        buffer.add({"n": n, "done": n % 10 == 9})
    return buffer


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def loader_threads() -> int:
    return sum(thread.name == "shmtree-loader" for thread in threading.enumerate())


def test_loader_yields_the_batches_of_sample_and_sequences():
    buffer = filled()
    with buffer.loader(16) as loader:
        for _ in range(5):
            batch = next(loader)
            assert isinstance(batch, Batch)
            assert batch.data["n"].shape == (16,)
            assert (batch.data["n"] % 10 == 9).tolist() == batch.data["done"].tolist()
    assert list(loader) == []
    with buffer.loader(4, length=5, burn_in=3, partial="refuse") as loader:
        batch = next(loader)
        assert batch.mask.shape == (4, 8)
        assert batch.mask[:, 3:].all()
    with buffer.loader(4, length=10, episodes=True) as loader:
        assert (next(loader).data["n"] % 10 == np.arange(10)).all()


def test_loaders_with_equal_seeds_yield_equal_batches():
    buffer = filled(sampling=Sampling(seed=5))

    def rows(**options: Any) -> list[int]:
        with buffer.loader(8, **options) as loader:
            return [n for _ in range(4) for n in next(loader).data["n"].tolist()]

    assert rows(seed=3) == rows(seed=3) != rows(seed=4)
    assert rows() != rows()  # each loader has a seed of its own


def test_priorities_of_loaded_rows_can_be_updated():
    buffer = filled(sampling=Sampling(Prioritized(alpha=1, eps=0)))
    with buffer.loader(1000, prefetch=1) as loader:
        batch = next(loader)
        assert buffer.update_priorities(batch.index, batch.data["n"] == 7).all()
        next(loader)  # was sampled ahead
        next(loader)
        assert set(next(loader).data["n"].tolist()) == {7}


def test_loader_samples_at_most_prefetch_batches_ahead():
    buffer = filled(sampling=Sampling(Fifo(max_times=1)))
    with buffer.loader(10, prefetch=3) as loader:
        for taken in range(1, 5):
            next(loader)
            wait_until(lambda: buffer.stats()["samples"]["default"] == 10 * (taken + 3))  # noqa: B023
    assert buffer.stats()["samples"]["default"] == 70
    assert loader.buffer.closed


def test_close_ends_a_blocked_next():
    for ends in ("close", "buffer"):
        buffer = ReplayBuffer(10, example=0)
        loader = buffer.loader(4)
        results: list[Any] = []

        def take(loader: Any = loader, results: list[Any] = results) -> None:
            try:
                results.append(next(loader, "ended"))
            except shmtree.ChannelClosed as error:
                results.append(error)

        thread = threading.Thread(target=take)
        thread.start()
        loader.close() if ends == "close" else buffer.close()
        thread.join(SECONDS)
        assert not thread.is_alive()
        assert results == ["ended"] if ends == "close" else isinstance(results[0], shmtree.ChannelClosed)
        assert loader.closed
        loader.close()


def test_dropped_loader_ends_its_thread():
    before = loader_threads()
    for buffer in (filled(), ReplayBuffer(10, example=0)):  # its thread waits for the consumer, and for rows
        loader = buffer.loader(4)
        assert loader_threads() == before + 1
        gone = weakref.ref(loader)
        del loader
        gc.collect()
        assert gone() is None
        wait_until(lambda: loader_threads() == before)


def test_error_of_the_sampling_thread_is_raised_by_next():
    buffer = filled()
    loader = buffer.loader(4, sampler="no")
    with pytest.raises(ValueError, match="sampler is 'no'"):
        next(loader)
    assert loader.closed
    assert list(loader) == []


def test_timeout_raises_empty_and_a_later_next_gets_the_batch():
    buffer = ReplayBuffer(10, example=0)
    with buffer.loader(4, timeout=0.01) as loader:
        with pytest.raises(queue.Empty, match=r"no batch within 0.01 s"):
            next(loader)
        buffer.add(5)
        results: list[Any] = []

        def has_batch() -> bool:
            try:
                results.append(next(loader))
            except queue.Empty:
                return False
            return True

        wait_until(has_batch)
        assert results[0].data.tolist() == [5] * 4


def test_loader_and_adds_alternate_under_a_rate_limit():
    limits = Limits(rate=RateLimit(samples_per_insert=4.0, min_size=8, error_buffer=32))
    buffer = ReplayBuffer(1000, example=0, limits=limits)
    for n in range(8):
        buffer.add(n, timeout=SECONDS)
    with buffer.loader(8, prefetch=4, timeout=SECONDS) as loader:
        for n in range(500):
            buffer.add(n, timeout=SECONDS)
            buffer.add(n, timeout=SECONDS)
            next(loader)
    stats = buffer.stats()
    assert 8 * 500 <= stats["sampled"] <= 8 * 504


def test_process_exits_while_a_loader_waits():
    program = """
import numpy as np
from shmtree.replay import ReplayBuffer
waiting, full = ReplayBuffer(10, example=0), ReplayBuffer(10, example=0)
full.add(1)
loaders = [waiting.loader(4), full.loader(4)]
next(loaders[1])
print("done")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


def test_forked_child_cannot_use_the_loader_of_its_parent():
    buffer = filled()
    with buffer.loader(4) as loader:
        next(loader)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                next(loader)
            except RuntimeError as error:
                os.write(writer, str(error).encode())
            loader.close()
            with buffer.loader(4) as own:
                os.write(writer, b" %d" % len(next(own)))
            buffer.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        text = os.read(reader, 1000).decode()
        assert text == (
            f"the loader belongs to process {os.getpid()}, and this is process {child}; call loader() here 4"
        )
        assert len(next(loader)) == 4
    os.close(reader)
    os.close(writer)


def test_arguments_of_a_loader_are_checked():
    buffer = filled()
    with pytest.raises(TypeError, match="unexpected keyword argument 'burn'"):
        buffer.loader(4, burn=2)
    with pytest.raises(TypeError, match="burn_in"):
        buffer.loader(4, burn_in=2)  # without a length
    with pytest.raises(TypeError, match="episodes=True needs length="):
        buffer.loader(4, episodes=True)
    for out in ({"n": np.zeros(4, np.int64), "done": np.zeros(4, bool)}, np.zeros(4, np.int64)):
        with pytest.raises(TypeError, match="every batch would overwrite"):
            buffer.loader(4, out=out)
    with pytest.raises(ValueError, match="prefetch is 0; it must be at least 1"):
        buffer.loader(4, prefetch=0)
    with pytest.raises(ValueError, match="timeout is -1"):
        buffer.loader(4, timeout=-1)
    with buffer.loader(4) as loader, pytest.raises(TypeError, match="pass the buffer instead"):
        pickle.dumps(loader)
    assert repr(loader) == "<Loader, closed>"
    buffer.close()
    with pytest.raises(shmtree.ChannelClosed):
        buffer.loader(4)


def test_tensors_of_a_loader_share_memory_with_the_batch():
    torch = pytest.importorskip("torch")
    buffer = filled(sampling=Sampling(Prioritized()))
    with buffer.loader(4, device="cpu", length=3, stored_state="n") as loader:
        batch = next(loader)
    assert isinstance(batch.data["n"], torch.Tensor)
    assert batch.data["n"].data_ptr() == batch._batch.data["n"].ctypes.data
    first = batch.mask.int().argmax(dim=1)
    assert (batch.stored_state["n"] == batch.data["n"][torch.arange(4), first]).all()
    index = batch.index[batch.mask]
    assert buffer.update_priorities(index, torch.ones(len(index))).all()
    with pytest.raises(RuntimeError):
        buffer.loader(4, device="no such device")
