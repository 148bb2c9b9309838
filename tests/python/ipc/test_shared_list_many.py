"""Many SharedLists in one process: descriptors, memory, other processes, forked children."""

from __future__ import annotations

import gc
import os
import pickle
import resource
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from starts import START_METHODS, running

import shmtree
from shmtree import SharedList
from shmtree._ipc import list_handles, list_memory

MANY = 5000


@pytest.fixture(autouse=True)
def few_descriptors() -> Iterator[None]:
    """Allows this process and its children fewer descriptors than there are lists."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def lists(count: int = MANY) -> list[SharedList[Any]]:
    return [SharedList([number, {"x": np.full(10, number)}]) for number in range(count)]


def has_all_items(made: list[SharedList[Any]]) -> bool:
    return all(each[0] == number and each[1]["x"][9] == number for number, each in enumerate(made))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def memory_files() -> set[int]:
    """Returns the memory files of lists that this process has open or mapped."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{fd}"
        if os.path.lexists(path) and "memfd:shmtree-list" in os.readlink(path):
            found.add(os.stat(path).st_ino)
    with open("/proc/self/maps") as maps:
        return found | {int(line.split()[4]) for line in maps if "memfd:shmtree-list" in line}


@pytest.fixture
def without_lists() -> set[int]:
    list_handles.sweep()
    gc.collect()
    return memory_files()


def answer(connection: Any, made: Any, count: int) -> None:
    if not made:
        made = [connection.recv() for _ in range(count)]
    connection.send((has_all_items(made), descriptors()))
    connection.recv()


@pytest.mark.guarantee("list-descriptors")
def test_many_lists_share_descriptors(without_lists: set[int]) -> None:
    before = descriptors()
    made = lists()
    assert has_all_items(made) and descriptors() - before < 100

    del made
    gc.collect()
    assert descriptors() <= before and memory_files() <= without_lists


@pytest.mark.guarantee("list-descriptors")
@pytest.mark.parametrize("method", START_METHODS)
@pytest.mark.parametrize("way", ["argument", "messages"])
def test_worker_opens_many_lists(method: str, way: str) -> None:
    before = descriptors()  # a forked child inherits them
    made = lists()
    with running(answer, None, made if way == "argument" else [], MANY, method=method) as (_, connection):
        if way == "messages":
            for each in made:
                connection.send(each)
        has_all, open_files = connection.recv()
        assert has_all and open_files - before < 300
        connection.send("done")


@pytest.mark.guarantee("list-in-transit")
def test_many_lists_are_in_transit_at_the_same_time(without_lists: set[int]) -> None:
    sender, receiver = shmtree.create_pair()
    sender.put(lists())
    texts = [pickle.dumps(each) for each in lists()]
    gc.collect()

    assert has_all_items([pickle.loads(text) for text in texts]) and has_all_items(receiver.get())

    list_handles.sweep()
    gc.collect()
    assert memory_files() <= without_lists


def make_and_die(connection: Any) -> None:
    connection.send(lists())
    connection.recv()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.guarantee("list-lifetime")
def test_many_lists_outlive_their_maker() -> None:
    with running(make_and_die, None, method="spawn") as (process, connection):
        made = connection.recv()
        connection.send("die")
        process.join(60)
    assert has_all_items(made)
    assert has_all_items(pickle.loads(pickle.dumps(made)))


@pytest.fixture
def sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets each list of the test share a file with others, as in a process with many files."""
    list_memory._groups.clear()
    monkeypatch.setattr(list_memory, "_OWN_FILES", 0)


@pytest.mark.guarantee("list-never-changes")
def test_no_process_can_write_to_a_shared_file(sharing: None) -> None:
    shared = SharedList([7, "text"])
    path = f"/proc/self/fd/{shared._open().fd}"
    assert shared._open().is_sealed
    with pytest.raises(PermissionError):
        os.truncate(path, 0)
    with open(path, "r+b", buffering=0) as file, pytest.raises(PermissionError):
        file.write(b"x")
    with open(path, "r+b") as file, pytest.raises(PermissionError):
        os.posix_fallocate(file.fileno(), 128 << 20, 1)


def writable_files() -> set[int]:
    """Returns the memory files of lists that this process has mapped for writing."""
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps if "memfd:shmtree-list" in line]
    return {int(inode) for _, rights, _, _, inode, *_ in lines if "w" in rights}


@pytest.mark.guarantee("list-never-changes")
def test_forked_child_has_no_mapping_for_writing(sharing: None) -> None:
    shared = SharedList([7, "text"])
    of_parent = writable_files()
    assert shared._open().file.key[1] in of_parent
    pid = os.fork()
    if pid == 0:
        others = [SharedList([number]) for number in range(10)]
        is_right = shared[1] == "text" and others[9][0] == 9 and not of_parent & writable_files()
        os._exit(0 if is_right and len(writable_files()) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_shared_file_is_freed_after_its_last_list(without_lists: set[int], sharing: None) -> None:
    first, second = SharedList([1]), SharedList([2])
    view = SharedList([np.arange(1000)])
    array = view[0]
    del first, second, view
    gc.collect()
    assert array.sum() == 499_500
    del array
    gc.collect()
    assert memory_files() <= without_lists


def test_large_list_has_a_file_of_its_own(sharing: None) -> None:
    keep = SharedList([7, "text"])
    large = SharedList([np.zeros(list_memory._MAX_GROUPED_BYTES, np.uint8)])
    assert large._open().offset == 0 and len(keep) == 2


def test_lists_fill_several_shared_files(sharing: None) -> None:
    keep = SharedList([7, "text"])
    made = [SharedList([np.full(8 << 20, number, np.uint8)]) for number in range(9)]
    assert len({each._open().file.key[1] for each in made}) == 2
    assert [each[0][-1] for each in made] == list(range(9)) and keep[0] == 7


def test_list_has_a_file_of_its_own_if_a_shared_one_fails(sharing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: int) -> Any:
        raise OSError(22, "the kernel lacks a seal")

    monkeypatch.setattr(list_memory._core, "ListGroup", fails)
    made = SharedList([1])
    assert made._open().offset == 0 and made[0] == 1


def test_list_of_a_shared_file_is_dumped_alone(sharing: None, tmp_path: Any) -> None:
    shared = SharedList([7, "text"])
    shared.dump(tmp_path / "list")
    assert list(SharedList.load(tmp_path / "list")) == [7, "text"]
    assert (tmp_path / "list").stat().st_size == shared.nbytes
