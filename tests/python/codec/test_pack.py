"""pack, unpack, dump, load and describe as users call them."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import pathlib
import sys
import threading
from typing import Any

import numpy as np
import pytest
from exact import assert_same

import shmtree

SAMPLE = {
    "obs": {"image": np.arange(84 * 84 * 4, dtype=np.uint8).reshape(84, 84, 4), "state": np.arange(10.0)},
    "action": 3,
    "reward": 1.0,
    "done": False,
    "info": {"episode": "ep-12", "path": [1, 2, (3, None)]},
}


def test_frame_is_a_read_only_buffer() -> None:
    frame = shmtree.pack(SAMPLE)
    assert len(frame) == frame.nbytes == len(bytes(frame)) == memoryview(frame).nbytes
    assert memoryview(frame).readonly
    with pytest.raises(TypeError):
        memoryview(frame)[0] = 0
    assert "bytes" in repr(frame)


def test_frame_cannot_be_constructed() -> None:
    with pytest.raises(TypeError):
        shmtree.Frame()


def test_frame_supports_weak_references() -> None:
    import weakref

    frame = shmtree.pack(1)
    reference = weakref.ref(frame)
    del frame
    assert reference() is None


@pytest.mark.parametrize(
    "make",
    [bytes, bytearray, memoryview, lambda f: np.frombuffer(f, np.uint8), lambda f: f],
    ids=["bytes", "bytearray", "memoryview", "ndarray", "frame"],
)
def test_every_contiguous_buffer_is_unpacked(make: Any) -> None:
    for copy in (None, True, False):
        assert_same(shmtree.unpack(make(shmtree.pack(SAMPLE)), copy=copy)["info"], SAMPLE["info"])


def test_unpack_ignores_bytes_after_a_frame() -> None:
    assert shmtree.unpack(bytes(shmtree.pack([1, 2])) + b"\0" * 100) == [1, 2]


def test_pack_of_the_same_object_gives_the_same_bytes() -> None:
    assert bytes(shmtree.pack(SAMPLE)) == bytes(shmtree.pack(SAMPLE))


@pytest.mark.parametrize("value", ["text", 5, None, object()], ids=lambda v: type(v).__name__)
def test_object_that_is_no_buffer_raises_type_error(value: Any) -> None:
    with pytest.raises(TypeError):
        shmtree.unpack(value)


def test_strided_buffer_raises_buffer_error() -> None:
    with pytest.raises(BufferError):
        shmtree.unpack(memoryview(bytes(200))[::2])


@pytest.mark.parametrize(
    "call",
    [
        lambda: shmtree.pack(),  # type: ignore[call-arg]
        lambda: shmtree.pack(1, True, 2),  # type: ignore[call-arg]
        lambda: shmtree.pack(1, pickle=True),  # type: ignore[call-arg]
        lambda: shmtree.pack(1, True, allow_pickle=True),  # type: ignore[misc]
        lambda: shmtree.unpack(),  # type: ignore[call-arg]
        lambda: shmtree.unpack(b"", True),  # type: ignore[misc]
        lambda: shmtree.unpack(b"", unknown=1),  # type: ignore[call-arg]
    ],
)
def test_wrong_arguments_raise_type_error(call: Any) -> None:
    with pytest.raises(TypeError):
        call()


def test_arguments_may_be_passed_by_keyword() -> None:
    assert shmtree.unpack(buffer=bytes(shmtree.pack(obj=[1], allow_pickle=False)), copy=True) == [1]


def test_views_outlive_their_frame() -> None:
    frame = shmtree.pack({"a": np.arange(100_000), "b": np.ones(100_000)})
    got = shmtree.unpack(frame)
    a, b = got["a"], got["b"][10:20]
    assert np.shares_memory(a, np.frombuffer(frame, np.uint8))
    del frame, got
    gc.collect()
    assert a[-1] == 99_999 and b.sum() == 10


def test_views_share_one_owner() -> None:
    got = shmtree.unpack(shmtree.pack([np.zeros(10_000), np.ones(10_000)]))
    assert got[0].base is got[1].base
    assert type(got[0].base).__name__ == "ViewOwner"
    assert not got[0].flags.writeable


def test_views_of_a_writable_buffer_are_writable() -> None:
    buffer = bytearray(shmtree.pack(np.zeros(10_000)))
    shmtree.unpack(buffer)[5] = 1
    assert shmtree.unpack(buffer)[5] == 1
    assert shmtree.unpack(bytes(buffer), copy=True).flags.writeable


def test_dump_and_load_round_trip(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "sample.shmtree"
    for target in (path, os.fspath(path)):
        shmtree.dump(SAMPLE, target)
        assert_same(shmtree.load(target), SAMPLE)
    assert os.listdir(tmp_path) == ["sample.shmtree"]


def test_load_maps_the_file_and_writes_stay_private(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "array"
    shmtree.dump(np.zeros(100_000), path)
    got = shmtree.load(path)
    assert got.flags.writeable and not got.flags.owndata
    got[0] = 1
    assert shmtree.load(path)[0] == 0


def test_dump_replaces_a_mapped_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "array"
    shmtree.dump(np.zeros(100_000), path)
    old = shmtree.load(path)
    shmtree.dump(np.ones(50), path)
    assert old.sum() == 0 and shmtree.load(path).sum() == 50


def test_dump_refuses_a_path_that_is_no_regular_file(tmp_path: pathlib.Path) -> None:
    fifo, link, folder = tmp_path / "fifo", tmp_path / "link", tmp_path / "folder"
    os.mkfifo(fifo)
    link.symlink_to(fifo)
    folder.mkdir()
    for path, error in ((fifo, FileExistsError), (link, FileExistsError), (folder, IsADirectoryError)):
        with pytest.raises(error, match=str(path)):
            shmtree.dump([1], path)
        with pytest.raises(error, match=str(path)):
            shmtree.SharedList(iter(lambda: pytest.fail("read an item"), None), path=path)
    assert fifo.is_fifo()
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [fifo, folder, link]


def test_failed_dump_leaves_only_the_old_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "value"
    shmtree.dump([1], path)
    with pytest.raises(shmtree.PickleRefused):
        shmtree.dump([print], path, allow_pickle=False)
    with pytest.raises(OSError):
        shmtree.dump([1], tmp_path / "missing" / "value")
    assert shmtree.load(path) == [1] and os.listdir(tmp_path) == ["value"]


def test_dump_gives_the_file_the_usual_permissions(tmp_path: pathlib.Path) -> None:
    shmtree.dump(1, tmp_path / "value")
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "value").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_load_refuses_pickle_unless_allowed(tmp_path: pathlib.Path) -> None:
    shmtree.dump({"f": len}, tmp_path / "value")
    with pytest.raises(shmtree.PickleRefused):
        shmtree.load(tmp_path / "value")
    assert shmtree.load(tmp_path / "value", allow_pickle=True) == {"f": len}


@pytest.mark.parametrize("content", [b"", b"x", b"not a frame at all", b"SHMT", b"\0" * 4096], ids=repr)
def test_foreign_file_raises_corrupt_message(content: bytes, tmp_path: pathlib.Path) -> None:
    (tmp_path / "value").write_bytes(content)
    with pytest.raises(shmtree.CorruptMessage):
        shmtree.load(tmp_path / "value")


def test_truncated_file_raises_corrupt_message(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "value"
    shmtree.dump(SAMPLE, path)
    size = path.stat().st_size
    for keep in (1, 15, 16, 100, size // 2, size - 1):
        shmtree.dump(SAMPLE, path)
        os.truncate(path, keep)
        with pytest.raises(shmtree.CorruptMessage):
            shmtree.load(path)


def test_refused_pickle_error_says_how_to_load_it(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "frame"
    shmtree.dump({"f": len}, path)
    for loading in (lambda: shmtree.load(path), lambda: shmtree.unpack(path.read_bytes())):
        with pytest.raises(shmtree.PickleRefused, match="pass allow_pickle=True if you trust its origin"):
            loading()


def test_dump_to_a_missing_directory_names_the_path(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "missing" / "frame"
    with pytest.raises(FileNotFoundError) as caught:
        shmtree.dump(1, path)
    assert caught.value.filename == str(path)


def test_load_of_a_missing_file_raises_file_not_found(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        shmtree.load(tmp_path / "missing")


def test_frame_of_another_version_raises_with_both_versions(tmp_path: pathlib.Path) -> None:
    frame = bytearray(shmtree.pack(1))
    frame[14] += 1
    (tmp_path / "frame").write_bytes(frame)
    sender, _ = shmtree.create_pair()
    reads: list[Any] = [
        lambda: shmtree.unpack(frame),
        lambda: shmtree.load(tmp_path / "frame"),
        lambda: shmtree.describe(frame),
        lambda: sender.put_frame(frame),
    ]
    for read in reads:
        with pytest.raises(shmtree.IncompatibleMessage, match="The frame has version 3; this library reads version 2"):
            read()


def test_corrupt_message_is_a_value_error_without_a_ticket() -> None:
    with pytest.raises(ValueError) as caught:
        shmtree.unpack(b"\0" * 100)
    assert isinstance(caught.value, shmtree.CorruptMessage) and caught.value.ticket is None


def described(value: Any) -> str:
    out = io.StringIO()
    shmtree.describe(value, file=out)
    return out.getvalue()


def test_describe_shows_kinds_shapes_and_bytes() -> None:
    text = described(SAMPLE)
    for part in ("'image'", "uint8 (84, 84, 4)", "28224 bytes", "float64 (10,)", "'ep-12'", "float 1", "false", "none"):
        assert part in text, part
    assert text == described(shmtree.pack(SAMPLE)) == described(bytes(shmtree.pack(SAMPLE)))


def test_describe_prints_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    shmtree.describe([1])
    assert "list of 1" in capsys.readouterr().out


def test_describe_unpickles_nothing_and_shows_sharing() -> None:
    assert "pickle" in described(bytes(shmtree.pack({"f": len})))
    array = np.zeros(10_000)
    assert described([array, array[:]]).count("buffer 0") == 2


def test_describe_shows_every_native_kind() -> None:
    import collections
    import datetime as dt
    import decimal
    import fractions
    import uuid

    value = [
        np.float32(1),
        np.datetime64(1, "s"),
        np.dtype("f8"),
        np.dtype([("a", "i4")]),
        np.ma.array([1, 2], mask=[0, 1]),
        memoryview(b"x"),
        collections.deque([1], 3),
        collections.defaultdict(list, a=1),
        collections.Counter("ab"),
        collections.OrderedDict(a=1),
        {(1, 2): 3, "k": {1}},
        frozenset([1]),
        dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1), "X")),
        dt.time(1),
        dt.date(2024, 1, 1),
        dt.timedelta(1),
        decimal.Decimal("1.5"),
        fractions.Fraction(1, 3),
        uuid.uuid4(),
        pathlib.Path("/x"),
        range(3),
        slice(1),
        3**100,
        1j,
        ...,
        "long" * 5000,
        b"long" * 5000,
        list(range(500)),
        [None] * 500,
    ]
    text = described(value)
    assert "400 more" in text and "unknown" not in text


def test_describe_of_a_damaged_frame_raises_corrupt_message() -> None:
    with pytest.raises(shmtree.CorruptMessage):
        shmtree.describe(bytes(shmtree.pack(SAMPLE))[:-1])


def test_describe_treats_other_buffers_as_objects() -> None:
    assert "bytes of 3 bytes" in described(b"abc")
    assert "uint8 (3,)" in described(np.zeros(3, np.uint8))


def test_threads_pack_and_unpack_at_once() -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for i in range(100):
                value = {"seed": seed, "array": np.full(20_000 + i, seed), "items": [i] * 50}
                assert_same(shmtree.unpack(shmtree.pack(value)), value)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_pack_beside_a_thread_that_empties_the_list_is_safe() -> None:
    stop = threading.Event()
    value: list[Any] = []

    def churn() -> None:
        while not stop.is_set():
            value[:] = [np.ones(100_000) for _ in range(3)]
            value.clear()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(200):
            got = shmtree.unpack(shmtree.pack(value))
            assert all(array.min() == array.max() == 1 for array in got)
    finally:
        stop.set()
        thread.join()


def test_many_round_trips_leak_nothing() -> None:
    shared: list[Any] = [1]
    values = [
        SAMPLE,
        {"pickled": print, "array": np.zeros(5000)},
        [shared, shared],
        [np.zeros(3), np.ma.array([1, 2], mask=[0, 1]), np.float32(1), np.dtype("M8[s]"), "x" * 10_000],
        {1: {2}, (3,): frozenset([4])},
    ]
    frames = [bytearray(shmtree.pack(value)) for value in values]

    def round_trips() -> None:
        for value, frame in zip(values, frames):
            shmtree.unpack(shmtree.pack(value))
            for copy in (None, True, False):
                shmtree.unpack(frame, copy=copy, allow_pickle=True)
            with contextlib.suppress(shmtree.CorruptMessage):
                shmtree.unpack(frame[:-9], allow_pickle=True)
            with contextlib.suppress(shmtree.PickleRefused):
                shmtree.pack([value, object(), print], allow_pickle=False)

    def blocks() -> int:
        gc.collect()
        return sys.getallocatedblocks()

    # Caches fill up at first, including Python's own. A leak of one object would add at least one per round.
    rounds = 300
    growth = []
    for _ in range(4):
        before = blocks()
        for _ in range(rounds):
            round_trips()
        growth.append(blocks() - before)
    assert min(growth) < rounds // 2, growth
