"""Recordings as other tools read them: with the reference reader of MCAP, by chunks and their index."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

import shmtree
from shmtree.recording import Recording
from shmtree.recording._mcap import ALIGNMENT, Writer

pytestmark = pytest.mark.usefixtures("runtime_directory")

LARGE = 300_000  # items of an array; its message ends a chunk


def written(path: Path, values: list[tuple[str, Any]]) -> Path:
    """Writes a recording of (channel, value), the n-th at n seconds."""
    with Writer(path) as writer:
        for number, (channel, value) in enumerate(values):
            frame = shmtree.pack(value)
            writer.write(writer.add_channel(channel, "queue"), [(number * 10**9, number, frame)])
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    small = [("ab"[n % 2], {"n": n, "x": np.full(5000, n % 256, np.uint8)}) for n in range(400)]
    return written(tmp_path / "made.mcap", [*small, ("a", np.zeros(LARGE)), ("b", np.ones(LARGE)), ("b", "last")])


@pytest.fixture
def file(path: Path) -> Iterator[IO[bytes]]:
    with path.open("rb") as opened:
        yield opened


def test_reference_reader_lists_chunks_channels_and_counts(file: IO[bytes]) -> None:
    reader = pytest.importorskip("mcap.reader").make_reader(file)
    assert reader.get_header().profile == "shmtree"
    summary = reader.get_summary()
    statistics = summary.statistics
    assert statistics.message_count == 403
    assert statistics.channel_message_counts == {0: 201, 1: 202}
    assert (statistics.message_start_time, statistics.message_end_time) == (0, 402 * 10**9)
    assert {each.topic: each.metadata for each in summary.channels.values()} == {
        each: {"kind": "queue"} for each in "ab"
    }
    chunks = summary.chunk_indexes
    assert len(chunks) == statistics.chunk_count >= 4
    assert all(each.uncompressed_size < (1 << 20) + LARGE * 8 for each in chunks)
    for one, following in itertools.pairwise(chunks):
        assert one.message_end_time < following.message_start_time
        after = one.chunk_start_offset + one.chunk_length + one.message_index_length
        assert after <= following.chunk_start_offset < after + 100  # the record of a new channel may follow


@pytest.mark.filterwarnings("ignore:start_time is deprecated")
@pytest.mark.filterwarnings("ignore:end_time is deprecated")
def test_reference_reader_seeks_by_time_and_topic(path: Path, file: IO[bytes]) -> None:
    make_reader = pytest.importorskip("mcap.reader").make_reader
    reads: list[int] = []

    class Counted(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            reads.append(len(data))
            return data

    found = make_reader(Counted(path.read_bytes())).iter_messages(["b"], 100 * 10**9, 110 * 10**9)
    assert [shmtree.unpack(message.data)["n"] for _, _, message in found] == [101, 103, 105, 107, 109]
    assert sum(reads) < path.stat().st_size / 2
    every = [shmtree.unpack(message.data) for _, _, message in make_reader(file).iter_messages()]
    assert every[-1] == "last" and len(every) == 403


def test_message_indexes_give_the_offsets_of_messages(file: IO[bytes]) -> None:
    records = pytest.importorskip("mcap.records")
    stream_reader = pytest.importorskip("mcap.stream_reader")
    chunk, found = None, 0
    for record in stream_reader.StreamReader(file, emit_chunks=True, validate_crcs=True).records:
        if isinstance(record, records.Chunk):
            chunk = record
        elif isinstance(record, records.MessageIndex):
            assert chunk is not None
            assert record.records == sorted(record.records)
            for time_ns, offset in record.records:
                assert chunk.data[offset] == 0x05
                assert int.from_bytes(chunk.data[offset + 9 : offset + 11], "little") == record.channel_id
                assert int.from_bytes(chunk.data[offset + 15 : offset + 23], "little") == time_ns
                found += 1
    assert found == 403


def test_frames_in_chunks_are_aligned_and_loaded_as_views(path: Path) -> None:
    for message in Recording(path):
        frame = np.frombuffer(message.frame, np.uint8)
        assert frame.ctypes.data % ALIGNMENT == 0
    *_, array = [each.load() for each in Recording(path) if each.frame.nbytes > LARGE]
    assert not array.flags.writeable and not array.flags.owndata
    assert (array == 1).all()


@pytest.mark.guarantee("recordings")
def test_file_that_was_not_closed_has_every_written_message(tmp_path: Path) -> None:
    path = tmp_path / "open.mcap"
    writer = Writer(path)
    number = writer.add_channel("a")
    for step in range(300):
        writer.write(number, [(step, step, shmtree.pack({"step": step, "x": np.zeros(1000)}))])
        if step % 50 == 0:
            recording = Recording(path)
            assert [each.load()["step"] for each in recording] == list(range(step + 1))
            assert not recording.whole
    writer.close(in_order=False)
    reader = pytest.importorskip("mcap.reader")
    steps = []
    with path.open("rb") as file, contextlib.suppress(Exception):  # the file has no end
        for _, _, message in reader.NonSeekingReader(file).iter_messages(log_time_order=False):
            steps.append(shmtree.unpack(message.data)["step"])
    assert steps == list(range(300))


@pytest.mark.guarantee("recordings")
def test_chunks_of_another_writer_are_read_unless_compressed(path: Path, tmp_path: Path) -> None:
    mcap = pytest.importorskip("mcap.writer")
    for compression in (mcap.CompressionType.NONE, mcap.CompressionType.ZSTD):
        other = tmp_path / "other.mcap"
        writer = mcap.Writer(str(other), chunk_size=10_000, compression=compression)
        writer.start("shmtree")
        channel = writer.register_channel("a", "shmtree", 0)
        for step in range(30):
            frame = bytes(shmtree.pack({"step": step, "x": np.full(5000, step)}))
            writer.add_message(channel, step, frame, step)
        writer.finish()
        if compression is mcap.CompressionType.NONE:
            values = [each.load() for each in Recording(other)]
            assert [each["step"] for each in values] == list(range(30))
            assert all((each["x"] == each["step"]).all() for each in values)
        else:
            with pytest.raises(shmtree.CorruptMessage, match="a compressed chunk"):
                Recording(other)
