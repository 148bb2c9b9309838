"""shmtree.spdl: units written and read with SPDL's protocol, and SPDL's own pipelines with it."""

from __future__ import annotations

import gc
import os
import pickle
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from typing import Any

import numpy as np
import pytest
import subprocess_sources as sources
from starts import Start

import shmtree
from shmtree.spdl import ArenaReader, ArenaWriter, RingBuffer, SegmentPool

Place = tuple[int, int]


def write(writer: ArenaWriter, *binaries: Any) -> tuple[list[Place], int]:
    """Writes one unit. Returns the places of its binaries, and its span."""
    writer.begin_unit()
    places = [writer.write_binary(each) for each in binaries]
    return places, writer.commit_unit()


def read(reader: ArenaReader, unit: tuple[list[Place], int]) -> list[memoryview]:
    views = [reader.read_binary(*place) for place in unit[0]]
    reader.end_unit(unit[1], [])
    return views


def both(arena: Any) -> tuple[ArenaWriter, ArenaReader]:
    return arena.open_writer(), arena.open_reader()


@pytest.fixture(params=["pool", "ring"])
def any_arena(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = SegmentPool() if request.param == "pool" else RingBuffer(1 << 20)
    yield made
    made.close()
    made.unlink()


def test_unit_is_read_back_binary_by_binary(any_arena: Any):
    writer, reader = both(any_arena)
    binaries = [b"a" * 100_000, bytearray(b"b" * 70_000), b"", memoryview(np.arange(9000.0)).cast("B"), b"tiny"]
    for _ in range(3):
        places, span = write(writer, *binaries)
        assert span == sum(len(each) for each in binaries)
        assert all(offset % 64 == 0 for offset, _ in places)
        assert [bytes(reader.read_binary(*place)) for place in reversed(places)] == [bytes(b) for b in binaries[::-1]]
        assert not any(reader.read_binary(*place).readonly for place in places)
        reader.end_unit(span, [])


def test_write_binary_copies_its_argument_at_once(any_arena: Any):
    writer, reader = both(any_arena)
    source = bytearray(b"x" * 100_000)
    writer.begin_unit()
    place = writer.write_binary(source)
    source[:] = b"y" * 100_000
    assert read(reader, ([place], writer.commit_unit())) == [b"x" * 100_000]


def test_an_aborted_unit_leaves_nothing(any_arena: Any):
    writer, reader = both(any_arena)
    for _ in range(3):
        writer.begin_unit()
        writer.write_binary(b"x" * 600_000)
        writer.abort_unit()
    assert any_arena.stats()["held_bytes"] < 600_000
    assert read(reader, write(writer, b"y" * 600_000)) == [b"y" * 600_000]


def test_unread_units_are_freed_by_end_unit_or_reset(any_arena: Any):
    writer, reader = both(any_arena)
    units = [write(writer, bytes([i]) * 100_000) for i in range(6)]
    reader.end_unit(units[0][1], [])  # the item of this unit was discarded
    assert read(reader, units[1]) == [b"\1" * 100_000]
    writer.reset()
    reader.reset()  # the items of three more units were lost between two iterations
    assert read(reader, units[5]) == [b"\5" * 100_000]
    assert any_arena.stats()["used_bytes"] < 100_000
    with pytest.raises(BufferError, match="has ended already"):
        reader.read_binary(*units[4][0][0])


def test_calls_out_of_order_are_errors(any_arena: Any):
    writer, reader = both(any_arena)
    with pytest.raises(RuntimeError, match="begin_unit"):
        writer.write_binary(b"x")
    with pytest.raises(RuntimeError, match="begin_unit"):
        writer.commit_unit()
    with pytest.raises(BufferError, match="never committed"):
        reader.read_binary(0, 1)
    (place,), _ = write(writer, b"xy")
    with pytest.raises(BufferError, match="2 bytes were written"):
        reader.read_binary(place[0], 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SegmentPool(0),
        lambda: SegmentPool(count=0),
        lambda: SegmentPool(acquire_timeout=-1),
        lambda: RingBuffer(0),
        lambda: RingBuffer(1, acquire_timeout=float("nan")),
    ],
)
def test_constructors_reject_invalid_sizes_and_timeouts(make: Callable[[], Any]):
    with pytest.raises(ValueError):
        make()


def test_pool_views_retain_their_unit_until_the_last_is_dropped():
    pool = SegmentPool(count=2)
    writer, reader = both(pool)
    (view,) = read(reader, write(writer, np.arange(10_000)))
    part = np.frombuffer(view, np.int64)[100:200]
    del view
    assert pool.stats()["held_bytes"] >= 80_000
    assert part[0] == 100
    del part
    gc.collect()
    assert pool.stats()["held_bytes"] < 80_000


def test_ring_returns_copies():
    ring = RingBuffer(200_000)
    writer, reader = both(ring)
    kept = read(reader, write(writer, b"x" * 100_000))
    assert ring.stats()["held_bytes"] < 100_000
    assert kept == [b"x" * 100_000]


def test_units_outlive_the_pool_and_are_dropped_in_any_order():
    pool = SegmentPool(count=1)
    writer, reader = both(pool)
    # ten units, although the pool has one segment
    kept = {i: read(reader, write(writer, bytes([i]) * 100_000))[0] for i in range(10)}
    for i in (4, 0, 9, 5):
        del kept[i]
    writer.reset()
    reader.reset()
    read(reader, write(writer, b"\xff" * 100_000))
    pool.close()
    pool.unlink()
    assert all(view == bytes([i]) * 100_000 for i, view in kept.items())


def test_consumer_that_retains_all_units_does_not_block_writer():
    pool = SegmentPool(max_bytes=8 << 20, acquire_timeout=0)
    writer, reader = both(pool)
    kept = [read(reader, write(writer, bytes([i]) * (1 << 20)))[0] for i in range(20)]
    assert [view[0] for view in kept] == list(range(20))


def test_full_pool_raises_or_blocks_until_a_unit_was_read():
    pool = SegmentPool(count=2, acquire_timeout=0)
    writer, reader = both(pool)
    units = [write(writer, b"x" * 10), write(writer, b"y" * 10)]
    with pytest.raises(BufferError, match="2 units"):
        writer.begin_unit()
    read(reader, units[0])
    write(writer, b"z" * 10)
    with pytest.raises(BufferError):
        writer.begin_unit()

    patient = SegmentPool(count=1, acquire_timeout=60)
    writer, reader = both(patient)
    unit = write(writer, b"x" * 10)
    reading = threading.Thread(target=read, args=(reader, unit))
    reading.start()
    writer.begin_unit()
    reading.join()


def test_unit_over_segment_size_or_budget_raises_at_once():
    writer = SegmentPool(segment_size=1000).open_writer()
    writer.begin_unit()
    writer.write_binary(b"x" * 600)
    with pytest.raises(BufferError, match="the limit of the arena is 1000"):
        writer.write_binary(b"x" * 600)
    writer = SegmentPool(max_bytes=2 << 20).open_writer()
    writer.begin_unit()
    with pytest.raises(BufferError, match="over the arena's budget"):
        writer.write_binary(bytes(3 << 20))


def test_full_ring_raises_or_blocks_until_bytes_were_read():
    ring = RingBuffer(64, acquire_timeout=0)
    writer, reader = both(ring)
    unit = write(writer, b"x" * 50)
    writer.begin_unit()
    with pytest.raises(BufferError, match="no space for a unit of 50 bytes in 64"):
        writer.write_binary(b"y" * 50)
    writer.write_binary(b"y" * 14)
    writer.abort_unit()
    read(reader, unit)
    assert read(reader, write(writer, b"z" * 64)) == [b"z" * 64]
    writer.begin_unit()
    with pytest.raises(BufferError, match="a unit has 65 bytes"):
        writer.write_binary(b"y" * 65)

    patient = RingBuffer(64)
    writer, reader = both(patient)
    unit = write(writer, b"x" * 50)
    reading = threading.Thread(target=read, args=(reader, unit))
    reading.start()
    write(writer, b"y" * 50)
    reading.join()


def test_writer_without_memory_raises_and_names_memory_in_use():
    pool = SegmentPool(max_bytes=4 << 20, acquire_timeout=0)
    writer, reader = both(pool)
    units = [write(writer, bytes(1 << 20)) for _ in range(3)]
    writer.begin_unit()
    with pytest.raises(BufferError, match="no memory for 1572864 bytes") as caught:
        writer.write_binary(bytes(3 << 19))
    assert isinstance(caught.value.__cause__, queue.Full)
    assert "in use" in str(caught.value)
    read(reader, units[0])
    writer.write_binary(bytes(3 << 19))


@pytest.mark.parametrize("limit", ["a place", "bytes", "none"])
def test_writer_gets_buffer_error_after_arena_shutdown(limit: str):
    arena = {"a place": SegmentPool(count=1), "bytes": RingBuffer(64), "none": SegmentPool()}[limit]
    writer = arena.open_writer()
    write(writer, b"x" * 50)
    arena.shutdown_arena()
    with pytest.raises(BufferError, match="closed"):
        write(writer, b"y" * 50)


@pytest.mark.parametrize("waits_for", ["a place", "bytes"])
def test_shutdown_wakes_a_writer_that_waits(waits_for: str):
    arena = SegmentPool(count=1) if waits_for == "a place" else RingBuffer(64)
    writer = arena.open_writer()
    write(writer, b"x" * 50)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            write(writer, b"y" * 50)
        except BaseException as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    arena.shutdown_arena()
    waiting.join(30)
    assert [type(error) for error in raised] == [BufferError]
    arena.shutdown_arena()
    arena.close()
    arena.close()


def test_writer_raises_after_its_consumer_was_killed(start: Start):
    here, there = Pipe()
    consumer = start(sources.make_pool, there)
    writer = here.recv().open_writer()
    write(writer, b"x")

    os.kill(consumer.pid, signal.SIGKILL)

    with pytest.raises(BufferError, match="no process that reads the arena is left"):
        write(writer, b"y")


def test_killed_writer_loses_only_its_uncommitted_unit(start: Start):
    pool = SegmentPool()
    here, there = Pipe()
    worker = start(sources.write_units, pool, 2, there, method="spawn")
    units = [([place], span) for place, span in (here.recv(), here.recv())]
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()

    reader = pool.open_reader()
    views = [view for unit in units for view in read(reader, unit)]
    with pytest.raises(shmtree.PeerDied):
        reader.read_binary(units[1][0][0][0] + 64, 100_000)

    assert views == [b"\0" * 100_000, b"\1" * 100_000]


def test_pickled_arena_refers_to_the_same_memory(any_arena: Any):
    reader = any_arena.open_reader()
    assert read(reader, write(pickle.loads(pickle.dumps(any_arena)).open_writer(), b"x" * 9)) == [b"x" * 9]


# ---------------------------------------------------------------- with SPDL itself


@pytest.fixture(scope="module")
def spdl() -> Any:
    return pytest.importorskip("spdl.pipeline", reason="SPDL is not installed (pip install 'shmtree[spdl]')")


def check(items: list[dict[str, Any]], count: int) -> None:
    assert [item["i"] for item in items] == list(range(count))
    for i, item in enumerate(items):
        assert item["x"].dtype == np.int64 and item["x"].sum() == 50_000 * i * i
        assert item["blob"] == bytes([i]) * 100_000
        assert item["small"] == b"s"


def test_spdl_iteration_yields_views_that_outlive_it(spdl: Any):
    pool = SegmentPool()
    source = spdl.iterate_in_subprocess(sources.eight_squares, arena=pool, buffer_size=2, mp_context="spawn")
    kept = [list(source), list(source)]
    abandoned = iter(source)
    first = next(abandoned)
    del abandoned
    kept.append(list(source))
    check([first], 1)
    assert all(isinstance(item["blob"], memoryview) for item in kept[0])
    assert pool.stats()["held_bytes"] > 3 * 8 * 500_000  # no tensor was copied

    del source
    gc.collect()

    for items in kept:
        check(items, 8)


def test_spdl_items_from_a_ring_have_their_original_types(spdl: Any):
    source = spdl.iterate_in_subprocess(
        sources.eight_squares, arena=RingBuffer(2 << 20), buffer_size=2, mp_context="spawn"
    )
    for _ in range(2):
        items = list(source)
        check(items, 8)
        assert all(type(item["blob"]) is bytes for item in items)


def total(item: dict[str, Any]) -> dict[str, Any]:
    return {**item, "total": int(item["x"].sum())}


def test_a_pipeline_of_spdl_runs_on_a_pool(spdl: Any):
    config = (
        spdl.PipelineBuilder()
        .add_source(sources.Squares(12))
        .pipe(total, concurrency=2, output_order="input")
        .aggregate(4)
        .add_sink(2)
        .get_config()
    )
    pool = SegmentPool(segment_size=4 << 20, count=2)
    batches = list(spdl.run_pipeline_in_subprocess(config, num_threads=2, arena=pool, mp_context="spawn"))
    assert [len(batch) for batch in batches] == [4, 4, 4]
    check([item for batch in batches for item in batch], 12)
    assert [item["total"] for batch in batches for item in batch] == [50_000 * i * i for i in range(12)]


def test_tensors_of_spdl_are_views(spdl: Any):
    torch = pytest.importorskip("torch")
    from spdl.pipeline._arena import _Arena

    pool = SegmentPool()
    side = _Arena(pool)  # one object is both sides, as in SPDL within one process
    got = side.restore(side.offload({"t": torch.arange(10_000, dtype=torch.bfloat16).float().reshape(100, 100)}))["t"]
    assert got.shape == (100, 100) and got.flatten()[255] == 255
    assert pool.stats()["held_bytes"] >= 40_000
    part = got[1:]
    del got
    assert part.sum() > 0 and pool.stats()["held_bytes"] >= 40_000
    del part
    gc.collect()
    assert pool.stats()["held_bytes"] < 40_000
