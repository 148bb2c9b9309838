"""SharedList in several processes: start methods, queues, messages, deaths, memory."""

from __future__ import annotations

import contextlib
import errno
import gc
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from starts import START_METHODS, running

import shmtree
from shmtree import SharedList
from shmtree import multiprocessing as shared_mp
from shmtree._ipc import list_handles

PATIENCE = 60


def list_mappings(pid: int | str = "self") -> int:
    with open(f"/proc/{pid}/maps") as maps:
        return sum("memfd:shmtree-list" in line for line in maps)


def answer(connection: Any, shared: Any) -> None:
    arrays = [item["x"] for item in shared]
    connection.send((len(shared), [int(array[0]) for array in arrays], any(array.flags.writeable for array in arrays)))
    connection.recv()


def samples(count: int = 5) -> SharedList[Any]:
    return SharedList({"x": np.full(10_000, number)} for number in range(count))


@pytest.mark.parametrize("method", START_METHODS)
def test_process_gets_the_list_as_argument(method: str) -> None:
    shared = samples()
    with running(answer, None, shared[1:], method=method) as (process, connection):
        assert connection.recv() == (4, [1, 2, 3, 4], False)
        assert list_mappings(process.pid) == 1
        connection.send("done")
        process.join(PATIENCE)
        assert process.exitcode == 0


def answer_twice(connection: Any, first: Any, second: Any, third: Any) -> None:
    connection.send([len(first), len(second), len(third)])
    connection.send(list_mappings())


@pytest.mark.parametrize("method", START_METHODS)
def test_slices_in_one_start_share_one_mapping(method: str) -> None:
    shared = samples()
    other = samples(2)
    with running(answer_twice, None, shared[1:], shared[2:], other, method=method) as (_, connection):
        assert connection.recv() == [4, 3, 2]
        assert connection.recv() == 2


def from_queue(connection: Any, queue: Any) -> None:
    shared = queue.get()
    connection.send([item["x"].sum() for item in shared])


@pytest.mark.parametrize("method", START_METHODS)
@pytest.mark.parametrize("package", [multiprocessing, shared_mp], ids=["standard", "shmtree"])
def test_list_passes_through_a_queue(method: str, package: Any) -> None:
    queue = package.get_context(method).Queue()
    context = package.get_context(method)
    mine, theirs = context.Pipe()
    process = context.Process(target=from_queue, args=(theirs, queue))
    process.start()
    queue.put(samples())

    assert mine.poll(PATIENCE)
    assert mine.recv() == [0, 10_000, 20_000, 30_000, 40_000]
    process.join(PATIENCE)


def from_channel(connection: Any, receiver: shmtree.Receiver) -> None:
    connection.send("ready")
    message = receiver.get(timeout=PATIENCE)
    connection.send((message["id"], len(message["list"]), int(message["list"][3]["x"][0])))


def test_list_passes_through_a_channel_without_pickle() -> None:
    sender, receiver = shmtree.create_pair(allow_pickle=False)
    with running(from_channel, None, receiver, method="spawn") as (_, connection):
        assert connection.recv() == "ready"
        sender.put({"id": 7, "list": samples()})
        assert connection.recv() == (7, 5, 3)


@pytest.fixture
def swept() -> None:
    """Drops the lists that earlier tests have passed on."""
    list_handles.sweep()
    gc.collect()


@pytest.mark.guarantee("list-in-transit")
def test_list_in_transit_keeps_its_memory_until_it_is_opened(swept: None) -> None:
    before = inodes_of_lists(os.getpid())
    sender, receiver = shmtree.create_pair()
    sender.put(samples())
    gc.collect()
    list_handles.sweep()
    assert len(inodes_of_lists(os.getpid()) - before) == 1

    received = receiver.get()
    assert len(received) == 5
    assert list_handles._in_transit == set()
    del received
    gc.collect()

    assert inodes_of_lists(os.getpid()) == before


def open_and_wait(connection: Any) -> None:
    shared = pickle.loads(connection.recv())
    connection.send(len(shared))
    connection.recv()


def test_sender_unmaps_a_list_once_another_process_opened_it(swept: None) -> None:
    before = list_mappings()
    shared = samples()
    with running(open_and_wait, None, method="spawn") as (_, connection):
        connection.send(pickle.dumps(shared))
        assert connection.recv() == 5
        del shared
        list_handles.sweep()
        gc.collect()
        assert list_mappings() == before
        connection.send("done")


def give_and_die(connection: Any) -> None:
    shared = samples()
    connection.send(pickle.dumps(shared))
    connection.recv()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.guarantee("list-lifetime")
def test_list_of_a_dead_sender_stays_valid_in_its_receivers() -> None:
    with running(give_and_die, None, method="spawn") as (process, connection):
        text = connection.recv()
        shared = pickle.loads(text)
        connection.send("die")
        process.join(PATIENCE)

    assert shared[4]["x"][0] == 4
    again = pickle.loads(text)
    assert again._memory is shared._memory


def put_and_die(sender: shmtree.Sender) -> None:
    sender.put(samples())
    sender.put("next")
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.guarantee("list-in-transit")
def test_list_freed_in_transit_raises_at_its_first_use(start: Any) -> None:
    sender, receiver = shmtree.create_pair(allow_pickle=False)
    child = start(put_and_die, sender)
    child.join(PATIENCE)

    shared, following = receiver.get(timeout=PATIENCE), receiver.get(timeout=PATIENCE)

    assert following == "next"
    assert repr(shared) == "<SharedList, gone>" and len(shared) == 5
    for use in (lambda: shared[0], lambda: list(shared), lambda: shared.nbytes, lambda: pickle.dumps(shared)):
        with pytest.raises(FileNotFoundError, match="shared list was freed before it was received"):
            use()


def test_reference_finds_the_list_in_a_third_process() -> None:
    """The pickle names a descriptor that its process has closed; another process still has the list."""
    context = shared_mp.get_context("spawn")
    mine, theirs = context.Pipe()
    shared = samples()
    process = context.Process(target=answer, args=(theirs, shared))
    process.start()
    mine.recv()
    text = pickle.dumps(shared)
    del shared
    list_handles._in_transit.clear()
    gc.collect()

    found = pickle.loads(text)

    assert [item["x"][0] for item in found] == [0, 1, 2, 3, 4]
    mine.send("done")
    process.join(PATIENCE)


def build_for_ever(connection: Any) -> None:
    def items() -> Iterator[Any]:
        yield np.zeros(4 << 20, np.uint8)
        connection.send(os.getpid())
        while True:
            time.sleep(0.01)
            yield np.zeros(1000)

    SharedList(items())


def inodes_of_lists(pid: int) -> set[int]:
    """Returns the memory files of lists that a process has open."""
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            if "memfd:shmtree-list" in os.readlink(f"/proc/{pid}/fd/{fd}"):
                found.add(os.stat(f"/proc/{pid}/fd/{fd}").st_ino)
    return found


@pytest.mark.guarantee("list-lifetime")
def test_kill_during_building_frees_the_memory() -> None:
    with running(build_for_ever, None, method="spawn") as (process, connection):
        made = inodes_of_lists(connection.recv())
        assert len(made) == 1
        process.kill()
        process.join(PATIENCE)
    assert not made & inodes_of_lists(os.getpid())


@pytest.mark.guarantee("list-files")
def test_kill_during_building_of_a_file_leaves_the_old_file(tmp_path: Any) -> None:
    path = tmp_path / "list.smt"
    SharedList([1, 2], path=path)
    with running(build_file_for_ever, None, str(path), method="spawn") as (process, connection):
        connection.recv()
        process.kill()
        process.join(PATIENCE)

    assert list(SharedList.load(path)) == [1, 2]


def build_file_for_ever(connection: Any, path: str) -> None:
    def items() -> Iterator[Any]:
        yield np.zeros(4 << 20, np.uint8)
        connection.send("building")
        while True:
            time.sleep(0.01)
            yield np.zeros(1000)

    SharedList(items(), path=path)


def test_mapped_file_passes_to_another_process(tmp_path: Any) -> None:
    path = tmp_path / "list.smt"
    samples().dump(path)
    shared = SharedList.load(path)
    os.unlink(path)
    with running(answer, None, shared, method="spawn") as (_, connection):
        assert connection.recv() == (5, [0, 1, 2, 3, 4], False)


@pytest.mark.guarantee("list-never-changes")
def test_channel_without_pickles_refuses_a_list_in_a_file(tmp_path: Any) -> None:
    path = tmp_path / "list.smt"
    samples().dump(path)
    for allow in (True, False):
        sender, receiver = shmtree.create_pair(allow_pickle=allow)
        sender.put(SharedList.load(path))
        if allow:
            assert len(receiver.get()) == 5
        else:
            with pytest.raises(shmtree.CorruptMessage, match="has a shared list in a file"):
                receiver.get()


@pytest.mark.parametrize(
    "places", [range(6), range(-1, 3), range(9, -2, -3), range(2**62)], ids=["more", "before", "backwards", "huge"]
)
def test_message_with_items_outside_of_the_list_is_corrupt(places: range) -> None:
    sender, receiver = shmtree.create_pair(allow_pickle=False)
    shared = samples()
    sender.put(SharedList._of(shared._memory, places, False))

    with pytest.raises(shmtree.CorruptMessage, match=r"has the items range\(.* of a shared list of 5 items"):
        receiver.get()


def private_dirty_bytes() -> int:
    """Returns the bytes that this process has written to, outside of shared memory."""
    total = 0
    in_list = False
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            key, _, rest = line.partition(" ")
            if not key.endswith(":"):
                in_list = "memfd:" in line
            elif key == "Private_Dirty:" and not in_list:
                total += int(rest.split()[0]) << 10
    return total


def read_all(connection: Any, shared: Any) -> None:
    read_some(shared[:100])
    before = private_dirty_bytes()
    read_some(shared)
    connection.send(private_dirty_bytes() - before)


def read_some(shared: Any) -> None:
    for item in shared:
        assert item["values"][0] == item["values"].sum() // 64


@pytest.mark.parametrize("method", START_METHODS)
def test_memory_of_a_worker_does_not_grow_with_the_list(method: str) -> None:
    shared = SharedList(
        {"name": f"image {number}", "values": np.full(64, number), "boxes": [(number, 1, 2, 3)] * 10}
        for number in range(100_000)
    )
    assert shared.nbytes > 60 << 20
    with running(read_all, None, shared, method=method) as (_, connection):
        assert connection.recv() < 15 << 20


@pytest.mark.parametrize(
    "text", [b"", b"x" * 10, b"\0" * 40, b"\0" * 60, b"\xff" * 200], ids=["empty", "short", "zero", "longer", "ones"]
)
def test_invalid_reference_raises(text: bytes) -> None:
    with pytest.raises((shmtree.CorruptMessage, FileNotFoundError)):
        list_handles.open_reference(text, None)


def test_lack_of_descriptors_keeps_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise OSError(errno.EMFILE, "too many open files")

    sender, receiver = shmtree.create_pair()
    sender.put(samples())
    with monkeypatch.context() as patched:
        patched.setattr(list_handles, "open_memory", fail)
        patched.setattr(list_handles, "known_memory", lambda *_: None)
        with pytest.raises(shmtree.OutOfSharedMemory, match="too many open files"):
            receiver.get()
    assert len(receiver.get(timeout=PATIENCE)) == 5


def test_threads_pass_one_list_at_the_same_time(swept: None) -> None:
    shared = samples()
    failures: list[BaseException] = []

    def passes() -> None:
        try:
            for _ in range(100):
                assert len(pickle.loads(pickle.dumps(shared))) == 5
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=passes) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and list_handles._in_transit == set()


def test_fork_does_not_keep_the_lists_in_transit() -> None:
    sender, receiver = shmtree.create_pair()
    sender.put(samples())
    pid = os.fork()
    if pid == 0:
        os._exit(0 if list_handles._in_transit == set() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(receiver.get()) == 5
