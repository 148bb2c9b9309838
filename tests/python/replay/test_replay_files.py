"""Replay buffers in files: loading restores what was saved, or raises a clear error."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import resource
import signal
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import replay_peers
from replay_options import grouped

from shmtree import _core
from shmtree.replay import Episodes, Fifo, Limits, MaxPriority, Prioritized, ReplayBuffer, Sampling, Uniform


def row(number: int) -> dict[str, Any]:
    return {"obs": np.full(100, number, np.float32), "action": number}


def filled(rows: int, **options: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(**grouped(**{"capacity": 1000, "example": row(0), "chunk": 8, **options}))
    with buffer.writer() as writer:
        for number in range(rows):
            writer.add(row(number))
    return buffer


def rows_of(buffer: ReplayBuffer) -> dict[int, int]:
    """Returns the number of each row by its index. No process may add meanwhile."""
    batch = buffer.sample(len(buffer), replace=False)
    check(batch)
    return dict(zip(batch.index.tolist(), batch.data["action"].tolist()))


def check(batch: Any) -> None:
    """Asserts that no row is torn."""
    assert (batch.data["obs"] == batch.data["action"][:, None]).all()


def test_load_restores_rows_and_indices(tmp_path):
    buffer = filled(50)

    saved = buffer.save(tmp_path / "saved")
    back = ReplayBuffer.load(tmp_path / "saved")

    assert (saved.save, saved.rows) == (1, 50)
    assert saved.nbytes == saved.written > 50 * 408
    assert (len(back), back.capacity, back.chunk) == (50, 1000, 8)
    assert rows_of(back) == rows_of(buffer)


@pytest.mark.parametrize(("capacity", "rows"), [(20, 16), (2000, 50)])
def test_any_capacity_can_be_loaded(tmp_path, capacity, rows):
    filled(50).save(tmp_path / "saved")

    back = ReplayBuffer.load(tmp_path / "saved", capacity)

    assert back.capacity == capacity
    assert len(back) >= rows
    assert set(rows_of(back).values()) == set(range(50 - len(back), 50))
    back.add(row(50))


def test_load_accepts_smaller_chunks_and_rejects_larger_ones(tmp_path):
    filled(50).save(tmp_path / "saved")

    assert len(ReplayBuffer.load(tmp_path / "saved", limits=Limits(chunk=1))) == 50
    with pytest.raises(ValueError, match="chunk is 16 rows; it must be at most 8, the chunk of the rows in .*"):
        ReplayBuffer.load(tmp_path / "saved", limits=Limits(chunk=16))


def test_load_restores_the_versions_of_rows(tmp_path):
    buffer = ReplayBuffer(100, example=row(0))
    writer = buffer.writer()
    writer.version = 17
    writer.add(row(0))
    buffer.save(tmp_path / "saved")

    assert ReplayBuffer.load(tmp_path / "saved").sample(2).version.tolist() == [17, 17]


def test_second_save_writes_mainly_the_changes(tmp_path):
    buffer = filled(800)
    first = buffer.save(tmp_path / "saved")
    buffer.add(row(800))

    second = buffer.save(tmp_path / "saved")

    assert second.written < first.written / 5
    assert len(ReplayBuffer.load(tmp_path / "saved")) == 801


def test_loaded_buffer_saves_incrementally_to_its_files(tmp_path):
    first = filled(800).save(tmp_path / "saved")
    back = ReplayBuffer.load(tmp_path / "saved")
    back.add(row(800))

    assert back.save(tmp_path / "saved").written < first.written / 5
    assert rows_of(ReplayBuffer.load(tmp_path / "saved")) == rows_of(back)


def test_an_altered_file_is_a_value_error_that_names_it(tmp_path):
    filled(50).save(tmp_path / "saved")
    (data,) = (tmp_path / "saved").glob("data-*")
    good = data.read_bytes()

    data.write_bytes(good[:-100] + bytes([good[-100] ^ 1]) + good[-99:])
    with pytest.raises(ValueError, match=rf"{data.name}: was altered: "):
        ReplayBuffer.load(tmp_path / "saved")
    data.write_bytes(good[:-1])
    with pytest.raises(ValueError, match=rf"{data.name}: has {len(good) - 1} bytes; it must have {len(good)}"):
        ReplayBuffer.load(tmp_path / "saved")
    data.unlink()
    with pytest.raises(ValueError, match=rf"{data.name}: is missing"):
        ReplayBuffer.load(tmp_path / "saved")


def _crc32c(data: bytes) -> int:
    rest = 0xFFFFFFFF
    for byte in data:
        rest ^= byte
        for _ in range(8):
            rest = rest >> 1 ^ (0x82F63B78 if rest & 1 else 0)
    return rest ^ 0xFFFFFFFF


def _write_with_checksum(manifest: Path, changed: bytearray) -> None:
    """Corrects the checksum of a changed manifest as docs/internals/replay-files.md describes, and writes it."""
    struct.pack_into("<I", changed, 12, 0)
    struct.pack_into("<I", changed, 12, _crc32c(changed))
    manifest.write_bytes(changed)


def _set_capacity(manifest: Path, capacity: int) -> None:
    changed = bytearray(manifest.read_bytes())
    struct.pack_into("<Q", changed, 48, capacity)
    _write_with_checksum(manifest, changed)


def test_altered_note_raises_value_error_that_names_the_folder(tmp_path):
    folder = tmp_path / "saved"
    key = ("obs", 1)  # the note contains this key as a frame
    example = {key: np.zeros(3, np.float32), "r": 0.5, "done": False}
    options = {"next": [key], "n_step": 2, "reward": "r", "done": "done", "sampler": Prioritized(), "chunk": 8}
    ReplayBuffer(64, example=example, **grouped(**options)).save(folder)
    whole = (folder / "manifest").read_bytes()
    note = _core.ReplayFiles(str(folder)).note
    begin = whole.rindex(note)
    refused = 0
    generator = random.Random(7)
    for at in range(len(note)):
        for value in {0, 255, note[at] ^ 1, generator.randrange(256)} - {note[at]}:
            changed = bytearray(whole)
            changed[begin + at] = value
            _write_with_checksum(folder / "manifest", changed)
            try:
                ReplayBuffer.load(folder).close()  # with another sampler or key, loading succeeds
            except ValueError as error:
                assert type(error) is ValueError and str(error).startswith(str(folder))
                refused += 1
    assert refused > len(note)


def test_errors_of_arguments_of_load_keep_their_class(tmp_path):
    filled(50).save(tmp_path / "saved")
    with pytest.raises(TypeError, match="seed"):
        ReplayBuffer.load(tmp_path / "saved", sampling=Sampling(seed="x"))
    with pytest.raises(ValueError, match="chunk"):
        ReplayBuffer.load(tmp_path / "saved", limits=Limits(chunk=3))


def test_load_of_a_huge_saved_capacity_needs_the_argument(tmp_path):
    ReplayBuffer(100, example={"n": 0}, limits=Limits(chunk=1)).save(tmp_path / "saved")
    _set_capacity(tmp_path / "saved" / "manifest", 1_000_000)
    assert ReplayBuffer.load(tmp_path / "saved").capacity == 1_000_000
    _set_capacity(tmp_path / "saved" / "manifest", 10_000_000)
    with pytest.raises(ValueError, match="of 10000000 rows in chunks of 1; an empty buffer of that capacity takes 72"):
        ReplayBuffer.load(tmp_path / "saved")
    assert ReplayBuffer.load(tmp_path / "saved", capacity=100).capacity == 100


def test_load_and_save_reject_a_folder_without_a_buffer(tmp_path):
    with pytest.raises(FileNotFoundError):
        ReplayBuffer.load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="no manifest"):
        ReplayBuffer.load(tmp_path)
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match="other files"):
        filled(1).save(tmp_path)
    with pytest.raises(OSError):
        filled(1).save(tmp_path / "nowhere" / "saved")


def _save_with_a_limit(buffer: ReplayBuffer, path: Path, most: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    try:
        buffer.save(path)
    except OSError:
        os._exit(17)


def test_failed_save_leaves_the_previous_one_intact(tmp_path):
    buffer = filled(50)
    buffer.save(tmp_path / "saved")
    before = rows_of(buffer)
    names = sorted(os.listdir(tmp_path / "saved"))
    buffer.extend({"obs": np.full((100, 100), 77, np.float32), "action": np.full(100, 77)})

    child = multiprocessing.get_context("fork").Process(
        target=_save_with_a_limit, args=(buffer, tmp_path / "saved", 5000)
    )
    child.start()
    child.join(100)

    assert child.exitcode == 17
    assert sorted(os.listdir(tmp_path / "saved")) == names
    assert rows_of(ReplayBuffer.load(tmp_path / "saved")) == before


def _save_for_ever(buffer: ReplayBuffer, path: Path, started: Any) -> None:
    while True:
        buffer.save(path)
        started.set()
        buffer.add(row(1))


def test_folder_can_be_loaded_after_savers_were_killed(tmp_path):
    context = multiprocessing.get_context("fork")
    buffer = filled(50)
    for _ in range(10):
        started = context.Event()
        saving = context.Process(target=_save_for_ever, args=(buffer, tmp_path / "saved", started))
        saving.start()
        assert started.wait(100)
        os.kill(saving.pid or 0, signal.SIGKILL)
        saving.join(100)

        assert len(ReplayBuffer.load(tmp_path / "saved")) >= 50


def test_processes_add_and_sample_while_a_thread_saves(tmp_path):
    buffer = filled(500)
    buffer.save(tmp_path / "saved")
    context = multiprocessing.get_context("fork")
    adding = context.Process(target=replay_peers.add_numbered_rows_until_killed, args=(buffer, row))
    adding.start()
    failed: list[BaseException] = []

    def save() -> None:
        try:
            for _ in range(20):
                with contextlib.suppress(BlockingIOError):  # no row stayed long enough to be saved
                    buffer.save(tmp_path / "saved")
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=save)
    thread.start()
    while thread.is_alive():
        check(buffer.sample(10_000))
    thread.join()
    adding.kill()
    adding.join(100)

    assert failed == []
    back = ReplayBuffer.load(tmp_path / "saved")
    assert rows_of(back)  # the saved rows, each of them intact


def test_load_restores_priorities_and_episodes_for_any_sampler(tmp_path):
    example = {"obs": np.zeros(3, np.float32), "reward": 0.0, "done": False}
    buffer = ReplayBuffer(
        64,
        example=example,
        sampling=Sampling(Prioritized(alpha=1.0)),
        episodes=Episodes(next=("obs",), n_step=2, gamma=0.5),
    )
    writer = buffer.writer()
    for number in range(5):
        writer.add({"obs": np.full(3, number, np.float32), "reward": 1.0, "done": number == 4}, priority=number + 1)
    writer.end(final={"obs": np.full(3, 5, np.float32)}, truncated=True)
    buffer.update_priorities(buffer.sample(1).index, [90.0])
    buffer.save(tmp_path / "saved")

    back = ReplayBuffer.load(tmp_path / "saved")
    other = ReplayBuffer.load(tmp_path / "saved", sampling=Sampling(Fifo()))

    assert back.max_priority == 90.0
    known = {int(index): priority for index, priority in _priorities(buffer)}
    assert {int(index): priority for index, priority in _priorities(back)} == known
    batch = other.sample(5)
    assert batch.data["obs"][:, 0].tolist() == [0, 1, 2, 3, 4]
    assert batch.data["next"]["obs"][:, 0].tolist() == [2, 3, 4, 5, 5]
    assert batch.data["reward"].tolist() == [1.5, 1.5, 1.5, 1.5, 1.0]
    assert batch.discount.tolist() == [0.25, 0.25, 0.25, 0.25, 0.5]


@pytest.mark.parametrize(
    "samplers",
    [
        {"all": Uniform(), "per": Prioritized()},
        {"all": Uniform(), "per": MaxPriority()},
        {"oldest": Fifo(), "all": Uniform(), "other": Prioritized(alpha=1.0)},
    ],
)
def test_loaded_samplers_use_priorities_by_name_or_of_the_first(tmp_path, samplers):
    buffer = ReplayBuffer(64, example=0, sampling=Sampling({"per": Prioritized(), "all": Uniform()}))
    for number in range(50):
        buffer.add(number, priority=number + 1)
    buffer.save(tmp_path / "saved")

    back = ReplayBuffer.load(tmp_path / "saved", sampling=Sampling(samplers))

    last = list(samplers)[-1]
    assert back.max_priority == 50
    batch = back.sample(50, sampler=last, replace=False)
    np.testing.assert_allclose(batch.priority, batch.data + 1, rtol=1e-3)


def _priorities(buffer: ReplayBuffer) -> Any:
    batch = buffer.sample(len(buffer), replace=False)
    return zip(batch.index, batch.priority)
