"""SharedList in files: dump, load, path, and files with invalid bytes."""

from __future__ import annotations

import contextlib
import os
import random
import stat
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmtree
from shmtree import SharedList

HEADER = struct.Struct("<8sIIQQQ16s")


class NeedsPickle:
    def __init__(self, value: int) -> None:
        self.value = value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "list.smt"


def written(path: Path, count: int = 10) -> bytes:
    SharedList({"id": number, "x": np.full(5, number)} for number in range(count)).dump(path)
    return path.read_bytes()


def with_header(text: bytes, **changes: int) -> bytes:
    """Returns the bytes of a list with other values in its header."""
    names = ("magic", "version", "header_bytes", "count", "index_offset", "nbytes", "identity")
    values: dict[str, Any] = dict(zip(names, HEADER.unpack_from(text), strict=True)) | changes
    return HEADER.pack(*values.values()) + text[HEADER.size :]


def test_loaded_list_has_the_items(path: Path) -> None:
    written(path)

    loaded = SharedList.load(path)

    assert len(loaded) == 10 and loaded.nbytes == path.stat().st_size
    assert [item["id"] for item in loaded] == list(range(10))
    assert loaded[3]["x"].tolist() == [3] * 5 and not loaded[3]["x"].flags.writeable


def test_path_may_be_bytes(path: Path) -> None:
    name: Any = os.fsencode(path)
    built: Any = shmtree.SharedList([1, 2], path=name)
    shmtree.SharedList([3]).dump(name)
    loaded: Any = shmtree.SharedList.load(name)
    shmtree.dump([4], name)
    assert [*built, *loaded, *shmtree.load(name)] == [1, 2, 3, 4]


def test_file_and_memory_have_the_same_bytes(path: Path) -> None:
    shared = SharedList([1, "text", np.arange(100)])
    shared.dump(path)
    with open(f"/proc/self/fd/{shared._open().fd}", "rb") as file:
        assert file.read() == path.read_bytes()


def test_slice_is_dumped_without_the_other_items(path: Path) -> None:
    shared = SharedList(np.full(1000, number) for number in range(100))

    shared[10:16:2].dump(path)

    assert [array[0] for array in SharedList.load(path)] == [10, 12, 14]
    assert path.stat().st_size < 40_000


def test_list_is_built_in_a_file(path: Path) -> None:
    shared = SharedList((np.full(1000, number) for number in range(100)), path=path)

    assert len(shared) == 100 and shared[7][0] == 7
    assert [array[0] for array in SharedList.load(path)[97:]] == [97, 98, 99]
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.guarantee("list-files")
def test_failed_build_leaves_the_old_file(path: Path) -> None:
    old = written(path)

    def items() -> Any:
        yield 1
        raise KeyError("broken source")

    with pytest.raises(KeyError):
        SharedList(items(), path=path)
    assert path.read_bytes() == old and os.listdir(path.parent) == [path.name]


@pytest.mark.guarantee("list-files")
def test_loaded_list_keeps_a_file_that_is_replaced(path: Path) -> None:
    written(path)
    loaded = SharedList.load(path)

    SharedList(["new"]).dump(path)

    assert loaded[9]["id"] == 9
    assert list(SharedList.load(path)) == ["new"]


def test_file_has_the_mode_of_the_umask(path: Path) -> None:
    mask = os.umask(0o027)
    try:
        written(path)
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_pickles_in_a_file_are_refused_by_default(path: Path) -> None:
    SharedList([1, NeedsPickle(5)]).dump(path)

    loaded = SharedList.load(path)

    assert loaded[0] == 1
    with pytest.raises(shmtree.PickleRefused, match=r"^item 1: "):
        loaded[1]
    assert SharedList.load(path, allow_pickle=True)[1].value == 5


def test_list_of_a_loaded_list_does_not_trust_its_pickles(path: Path) -> None:
    SharedList([NeedsPickle(5)]).dump(path)

    with pytest.raises(shmtree.PickleRefused):
        SharedList(SharedList.load(path))
    copied = SharedList(SharedList.load(path), allow_pickle=False)
    with pytest.raises(shmtree.PickleRefused):
        copied[0]


def test_file_in_shared_memory_is_loaded() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        written(Path(folder) / "list.smt")
        assert SharedList.load(f"{folder}/list.smt")[3]["id"] == 3


def test_missing_folder_and_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no/list"):
        SharedList([1]).dump(tmp_path / "no/list")
    with pytest.raises(FileNotFoundError, match="no/list"):
        SharedList.load(tmp_path / "no/list")


@pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
def test_other_kinds_of_files_are_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "thing"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path = Path("/dev/null")
    with pytest.raises(shmtree.CorruptMessage, match="is not a regular file"):
        SharedList.load(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is not a shared list"),
        (b"something else", "is not a shared list"),
        (bytes(shmtree.pack([1])), "it is one frame, which shmtree.load reads"),
        (b"smt-list", "is truncated: it has 8 bytes, and the header alone has 128"),
    ],
)
def test_file_of_another_format_is_refused(path: Path, text: bytes, message: str) -> None:
    path.write_bytes(text)
    with pytest.raises(shmtree.CorruptMessage, match=message):
        SharedList.load(path)


@pytest.mark.guarantee("list-hostile-files")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "has version 2; this library reads version 1"),
        ({"header_bytes": 64}, "has an invalid header"),
        ({"count": 11}, "has an invalid header"),
        ({"count": 2**64 - 1}, "has an invalid header"),
        ({"index_offset": 0}, "has an invalid header"),
        ({"index_offset": 2**64 - 64}, "has an invalid header"),
        ({"nbytes": 2**64 - 1}, "is truncated"),
        ({"nbytes": 128}, "has bytes after its end"),
    ],
)
def test_invalid_header_is_refused(path: Path, changes: dict[str, int], message: str) -> None:
    path.write_bytes(with_header(written(path), **changes))
    error = shmtree.IncompatibleMessage if "version" in changes else shmtree.CorruptMessage
    with pytest.raises(error, match=message):
        SharedList.load(path)


def test_truncated_file_is_refused_at_every_length(path: Path) -> None:
    text = written(path)
    for length in [*range(200), *range(200, len(text), 97), len(text) - 1]:
        path.write_bytes(text[:length])
        with pytest.raises(shmtree.CorruptMessage):
            SharedList.load(path)


@pytest.mark.guarantee("list-hostile-files")
@pytest.mark.parametrize(
    "offset", [0, 8, 120, 129, 2**32, 2**63, 2**64 - 1, 2**64 - 8], ids=lambda offset: f"{offset:#x}"
)
@pytest.mark.parametrize("number", [0, 5, 10])
def test_invalid_offset_is_refused_when_it_is_used(path: Path, number: int, offset: int) -> None:
    text = bytearray(written(path))
    struct.pack_into("<Q", text, len(text) - 8 * (11 - number), offset)
    path.write_bytes(text)

    loaded = SharedList.load(path)

    broken = min(number, 9)
    with pytest.raises(shmtree.CorruptMessage, match=f"^item {broken}: .*SharedList of 10 items in {str(path)!r}"):
        loaded[broken]
    assert loaded[2]["id"] == 2


def test_frame_larger_than_its_place_is_refused(path: Path) -> None:
    text = bytearray(written(path))
    (start,) = struct.unpack_from("<Q", text, len(text) - 88)
    struct.pack_into("<Q", text, start + 8, 2 << 56 | 2**40)
    path.write_bytes(text)

    with pytest.raises(shmtree.CorruptMessage, match="item 0: the index has invalid offsets"):
        SharedList.load(path)[0]


@pytest.mark.guarantee("list-hostile-files")
def test_random_damage_raises_only_known_errors(path: Path) -> None:
    text = written(path)
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(300):
        damaged = bytearray(text)
        for _ in range(chance.choice([1, 1, 4, 64])):
            damaged[chance.randrange(len(text))] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            loaded = SharedList.load(path)
        except shmtree.CorruptMessage:
            continue
        for number in range(len(loaded)):
            with contextlib.suppress(shmtree.CorruptMessage, shmtree.PickleRefused):
                loaded[number]


def test_change_of_a_mapped_file_is_checked_again(path: Path) -> None:
    text = written(path)
    loaded = SharedList.load(path)
    assert loaded[5]["id"] == 5

    with open(path, "r+b") as file:
        file.seek(len(text) - 8 * 6)
        file.write(struct.pack("<Q", 2**40))

    with pytest.raises(shmtree.CorruptMessage, match="item 5: "):
        loaded[5]


def test_sparse_file_of_a_large_list_is_mapped(path: Path) -> None:
    """A list of 64 GiB is mapped without reading it."""
    text = written(path)
    _, _, _, count, index_offset, _, _ = HEADER.unpack_from(text)
    moved = 64 << 30
    with open(path, "wb") as file:
        file.write(with_header(text, index_offset=moved, nbytes=moved + 8 * (count + 1))[:index_offset])
        file.seek(moved)
        file.write(text[index_offset:])

    loaded = SharedList.load(path)

    assert loaded.nbytes > moved and loaded[9]["id"] == 9


def test_item_survives_garbage_collection_of_list_and_file(path: Path) -> None:
    SharedList([np.arange(10_000)]).dump(path)
    array = SharedList.load(path)[0]
    path.unlink()
    assert array.sum() == 49_995_000


def test_errors_of_a_loaded_list_name_its_path(path: Path) -> None:
    SharedList([1, NeedsPickle(5)]).dump(path)
    loaded = SharedList.load(path)

    with pytest.raises(IndexError, match=rf"^index 2 is out of range for a SharedList of 2 items in {str(path)!r}$"):
        loaded[2]
    with pytest.raises(shmtree.PickleRefused, match=rf"^item 1: .* \(SharedList of 2 items in {str(path)!r}\)$"):
        loaded[1]
