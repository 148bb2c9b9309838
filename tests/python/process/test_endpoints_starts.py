"""Endpoints reach processes that pools, executors and threads start, with any start method, and despite failures."""

from __future__ import annotations

import gc
import multiprocessing as mp
import os
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import endpoint_peers
import pytest
from endpoint_peers import KINDS, Made
from starts import START_METHODS

import shmtree


def descriptors() -> int:
    """Returns the number of open descriptors, after closing those that were kept for starting processes."""
    gc.collect()
    shmtree._process.spawn.sweep()
    return len(os.listdir("/proc/self/fd"))


inherited: Any = None


def use_inherited(told) -> None:
    told.send(endpoint_peers.use(inherited))


@pytest.mark.parametrize("kind", KINDS)
def test_endpoint_is_inherited_as_a_global_by_fork(arena, start, monkeypatch, kind):
    made = Made(kind, arena)
    monkeypatch.setitem(globals(), "inherited", made.given)
    ours, theirs = mp.Pipe()
    start(use_inherited, theirs)
    made.check_used(ours.recv())


@pytest.mark.parametrize("method", START_METHODS)
def test_executor_initializer_gets_an_endpoint(arena, method):
    sender, receiver = arena.create_pair()
    pool = ProcessPoolExecutor(2, mp.get_context(method), initializer=endpoint_peers.keep, initargs=(sender,))
    with pool:
        pids = set(pool.map(endpoint_peers.use_kept, range(6), timeout=60))
    assert sorted(receiver.get(timeout=30) for _ in range(6)) == list(range(6))
    assert os.getpid() not in pids


@pytest.mark.parametrize("method", START_METHODS)
def test_pool_initializer_gets_an_endpoint(arena, method):
    sender, receiver = arena.create_pair()
    with mp.get_context(method).Pool(2, endpoint_peers.keep, (sender,)) as pool:
        pool.map_async(endpoint_peers.use_kept, range(6), chunksize=1).get(60)
    assert sorted(receiver.get(timeout=30) for _ in range(6)) == list(range(6))


@pytest.mark.parametrize("method", START_METHODS)
def test_executor_task_gets_an_endpoint(arena, method):
    sender, receiver = arena.create_pair()
    with ProcessPoolExecutor(1, mp.get_context(method)) as pool:
        for number in range(3):
            pool.submit(endpoint_peers.put_number, sender, number).result(60)
    assert [receiver.get(timeout=30) for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("kind", ["sender", "joinable"])
@pytest.mark.parametrize("then", START_METHODS)
@pytest.mark.parametrize("method", START_METHODS)
def test_child_passes_its_endpoint_to_a_child_of_its_own(arena, start, method, then, kind):
    if (method, then) == ("fork", "forkserver"):
        pytest.skip("multiprocessing cannot do it: a forked child asks after its parent's fork server, and fails")
    made = Made(kind, arena)
    ours, theirs = mp.get_context(method).Pipe()
    start(endpoint_peers.pass_on, made.given, then, theirs, method=method)
    made.check_used(ours.recv())


@pytest.mark.parametrize("method", START_METHODS)
def test_endpoints_of_several_arenas_keep_their_identity(start, method):
    arenas = [shmtree.Arena(8 << 20) for _ in range(3)]
    made = [(arena.Queue(), *arena.create_pair(), arena.array((2,), "i8")) for arena in arenas]
    ours, theirs = mp.get_context(method).Pipe()
    child = start(endpoint_peers.use_all, {"all": made, "again": [each[0] for each in made]}, theirs, method=method)
    assert ours.recv() == [True, True, True]
    for queue, _, receiver, array in made:
        assert queue.get(timeout=30) == receiver.get(timeout=30) == array.array[0] == child.pid
    child.join(30)
    assert child.exitcode == 0


@pytest.mark.parametrize("method", START_METHODS)
def test_endpoint_is_an_attribute_of_a_process_object(arena, method):
    process = endpoint_peers.PROCESSES[method](arena.Queue())
    process.start()
    assert process.queue.get(timeout=60) == process.pid
    process.join(60)
    process.close()


@pytest.mark.parametrize("method", START_METHODS)
def test_threads_start_processes_with_one_endpoint_at_once(arena, start, method):
    # opens the descriptors that the start method itself needs
    start(endpoint_peers.put_number, arena.create_pair()[0], 0, method=method).join(60)
    before = descriptors()
    sender, receiver = arena.create_pair(capacity=None)
    processes: list[Any] = []

    def run(number: int) -> None:
        process = mp.get_context(method).Process(target=endpoint_peers.put_number, args=(sender, number))
        process.start()
        processes.append(process)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    sender.close()
    assert sorted(receiver) == list(range(6))
    for process in processes:
        process.join(60)
        process.close()
    processes.clear()
    assert descriptors() == before


def test_process_that_fails_to_start_leaves_nothing_behind(arena):
    sender, receiver = arena.create_pair()
    participants = arena.stats()["participants"]
    before = descriptors()
    for _ in range(5):
        process = mp.get_context("spawn").Process(target=endpoint_peers.use_argument, args=(sender, lambda: None))
        with pytest.raises(Exception, match="local object"):
            process.start()
        del process
    assert descriptors() == before
    sender.close()
    with pytest.raises((shmtree.ChannelClosed, shmtree.PeerDied)):
        receiver.get(timeout=30)
    assert arena.stats()["participants"] == participants


@pytest.mark.parametrize("method", START_METHODS)
def test_array_memory_is_freed_when_both_processes_drop_it(arena, start, method):
    before = arena.stats()["used_bytes"]
    array = arena.array((1 << 17,), "i8")
    ours, theirs = mp.get_context(method).Pipe()
    child = start(endpoint_peers.use_argument, array, theirs, method=method)
    assert ours.recv() == child.pid
    assert array.array[1] == child.pid
    child.join(30)
    del array
    assert arena.holders() == []
    arena.new_empty(((64 << 20) - (64 << 10),), "u1")  # fits only if the memory was freed
    assert arena.stats()["used_bytes"] == before


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_endpoint_of_a_process_that_fails_in_start_is_returned(arena, start, method):
    sender, receiver = arena.create_pair()
    child = start(endpoint_peers.use_argument, sender, endpoint_peers.Poison(), method=method)
    child.join(30)
    assert child.exitcode == 1
    sender.close()
    with pytest.raises((shmtree.ChannelClosed, shmtree.PeerDied)):
        receiver.get(timeout=30)


def test_unrelated_program_opens_an_end_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("SHMTREE_NAMES_DIR", str(tmp_path / "shmtree"))
    name = f"test-{os.getpid()}-program"
    there, back = shmtree.create_pair(name=name), shmtree.create_pair(name=name + "-back")
    program = """if True:
        import sys, shmtree
        receiver, sender = shmtree.open_receiver(sys.argv[1]), shmtree.open_sender(sys.argv[1] + "-back")
        sender.put(receiver.get(timeout=60) + " and back")
        """
    child = subprocess.Popen([sys.executable, "-c", program, name])
    there[0].put("there")
    assert back[1].get(timeout=60) == "there and back"
    assert child.wait(60) == 0


def test_joblib_workers_use_an_end(arena):
    joblib = pytest.importorskip("joblib")
    sender, receiver = arena.create_pair(capacity=None)
    with joblib.parallel_config(backend="loky", n_jobs=2):
        joblib.Parallel()(joblib.delayed(endpoint_peers.put_number)(sender, i) for i in range(8))
    assert sorted(receiver.get(timeout=30) for _ in range(8)) == list(range(8))
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True)


def test_loky_workers_get_an_end_at_start(arena):
    loky = pytest.importorskip("joblib.externals.loky")
    sender, receiver = arena.create_pair(capacity=None)
    executor = loky.ProcessPoolExecutor(2, initializer=endpoint_peers.keep, initargs=(sender,))
    list(executor.map(endpoint_peers.use_kept, range(4), timeout=60))
    executor.shutdown(wait=True)
    assert sorted(receiver.get(timeout=30) for _ in range(4)) == list(range(4))


def test_torch_processes_use_an_end(arena):
    torch = pytest.importorskip("torch")
    sender, receiver = arena.create_pair()
    torch.multiprocessing.spawn(put_rank, args=(sender,), nprocs=2)
    assert sorted(receiver.get(timeout=30) for _ in range(2)) == [0, 1]


def put_rank(rank: int, sender: shmtree.Sender) -> None:
    sender.put(rank, timeout=60)


def test_normal_exit_under_a_preloaded_forkserver_is_no_death(tmp_path):
    program = tmp_path / "program.py"  # a file that the fork server can import
    program.write_text("""if True:
        import multiprocessing as mp, shmtree
        def child(sender):
            sender.put(1)
            sender.close()
        if __name__ == "__main__":
            context = mp.get_context("forkserver")
            context.set_forkserver_preload(["shmtree"])
            for _ in range(3):
                sender, receiver = shmtree.create_pair()
                process = context.Process(target=child, args=(sender,))
                process.start()
                sender.close()
                print(receiver.get(timeout=60))
                process.join()
                receiver.stats()  # checks which processes are attached
                try:
                    receiver.get(timeout=60)
                except shmtree.ChannelClosed as error:
                    print(type(error).__name__)
        """)
    ran = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120)
    assert (ran.stdout, ran.stderr) == ("1\nChannelClosed\n" * 3, "")
