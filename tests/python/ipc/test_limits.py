"""Out of descriptors, addresses, machine memory, file size or arena space: a clear error, and no change of state.

Calls succeed again as soon as there is some of the resource.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmtree

MIB = 1 << 20
UNDER_SANITIZER = "libasan" in os.environ.get("LD_PRELOAD", "")


def run_program(text: str, *command: str, **environment: str) -> str:
    """Runs a program, which must succeed. Returns its output."""
    before = "import errno, os, queue, resource, signal, sys, numpy as np, shmtree\nMIB = 1 << 20\n"
    done = subprocess.run(
        [*command, sys.executable, "-c", before + textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextlib.contextmanager
def limited(which: int, soft: int) -> Iterator[None]:
    before = resource.getrlimit(which)
    resource.setrlimit(which, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def can_mount() -> bool:
    tried = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /dev/shm"]
    with contextlib.suppress(OSError):
        return subprocess.run(tried, capture_output=True, check=False).returncode == 0
    return False


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not can_mount(), reason="this machine does not allow mounts in a namespace of the process")
def test_latest_works_if_dev_shm_is_full() -> None:
    shell = "mount -t tmpfs -o size=1m tmpfs /dev/shm && { cat /dev/zero >/dev/shm/fill 2>/dev/null || :; } && exec"
    run_program(
        """
        assert os.statvfs("/dev/shm").f_bavail == 0
        sender, receiver = shmtree.create_pair()
        for _ in range(3):
            sender.put(np.arange(4 * MIB))
            if os.fork() == 0:
                os._exit(int(receiver.get(timeout=30)[-1] != 4 * MIB - 1))
            assert os.wait()[1] == 0
        """,
        *("unshare", "-rm", "sh", "-c", shell + ' "$@"', "sh"),
    )


def test_file_size_limit_raises_and_sends_no_signal(tmp_path: Path) -> None:
    run_program(
        """
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # as in programs that are not Python's
        arena = shmtree.Arena(64 * MIB)
        sender, receiver = arena.create_pair()
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        name = f"limited-{os.getpid()}"
        for make in (lambda: shmtree.Arena(64 * MIB), lambda: arena.create_pair(name=name)):
            try:
                make()
            except OSError as error:
                assert error.errno == errno.EFBIG, error
            else:
                raise AssertionError("nothing was refused")
        sender.put(np.arange(MIB))
        assert receiver.get(timeout=30)[-1] == MIB - 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
        assert name not in [known.name for known in shmtree.list_names()]
        arena.create_pair(name=name)
        shmtree.Arena(64 * MIB).create_pair()
        """,
        SHMTREE_NAMES_DIR=str(tmp_path / "shmtree"),
    )


# --- descriptors -----------------------------------------------------------------------------------------------------


def use_everything(name: str) -> None:
    with shmtree.Arena(16 * MIB) as arena:
        sender, receiver = arena.create_pair(name=name)
        receiver.fileno()
        sender.put(b"large" * 10_000)
        opened = shmtree.open_receiver(name)
        child = os.fork()
        if child == 0:
            os._exit(0 if opened.get(timeout=30) == b"large" * 10_000 else 1)
        assert os.waitpid(child, 0)[1] == 0
        for end in (sender, receiver, opened):
            end.close()


def test_descriptor_exhaustion_raises_and_leaks_none(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SHMTREE_NAMES_DIR", str(tmp_path / "shmtree"))
    name = f"limits-{os.getpid()}-"
    use_everything(name)
    before = descriptors()
    refused = 0
    os.close(lowest := os.dup(0))
    for more in range(40):
        # The limit applies to descriptor numbers, and the library's own are far above it.
        with limited(resource.RLIMIT_NOFILE, lowest + more):
            try:
                use_everything(f"{name}{more}")
            except OSError as error:
                assert error.errno in (errno.EMFILE, None), error
                refused += 1
            else:
                break
        assert descriptors() == before
    assert 3 < refused < 40
    use_everything(name)
    assert [known.name for known in shmtree.list_names() if known.name.startswith(name)] == []


def send_an_end_and_wait(sender: Any, until: int) -> None:
    """Sends an end in an arena of this process. Returns when the other side of the pipe `until` is closed."""
    with shmtree.Arena(16 * MIB) as arena:
        theirs, given = arena.create_pair()
        theirs.put(7)
        sender.put([given])
        sender.put("next")
        os.read(until, 1)


def test_message_stays_in_channel_if_descriptors_run_out() -> None:
    sender, receiver = shmtree.create_pair()
    until, closed_here = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(closed_here)
        try:
            send_an_end_and_wait(sender, until)
        finally:
            os._exit(0)
    os.close(until)
    try:
        deadline = time.monotonic() + 60
        while receiver.qsize() < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.close(lowest := os.dup(0))
        with limited(resource.RLIMIT_NOFILE, lowest):
            for _ in range(3):
                with pytest.raises(shmtree.OutOfSharedMemory, match="cannot be opened now"):
                    receiver.get(timeout=60)
        (arrived,) = receiver.get(timeout=60)
        assert arrived.get(timeout=60) == 7 and receiver.get(timeout=60) == "next"
        assert receiver.dead_letters() == []
    finally:
        os.close(closed_here)
        os.waitpid(child, 0)


# --- addresses -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(UNDER_SANITIZER, reason="a sanitizer needs more addresses than any limit leaves")
def test_message_stays_queued_if_it_cannot_be_mapped() -> None:
    run_program(
        """
        arena = shmtree.Arena(256 * MIB)
        sender, receiver = arena.create_pair()
        before, _ = resource.getrlimit(resource.RLIMIT_AS)
        if os.fork() == 0:
            sender.put(np.full(8 * MIB, 7, np.int64))
            sender.put("small")
            os._exit(0)
        assert os.wait()[1] == 0
        pages = int(open("/proc/self/statm").read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + 32 * MIB, -1))
        for call in (receiver.get, receiver.take, lambda: sender.put(bytes(1)) and receiver.get()):
            try:
                call()
            except MemoryError as error:
                assert isinstance(error, shmtree.OutOfSharedMemory), error
            else:
                raise AssertionError("it was mapped")
        try:
            sender.put(np.empty(16 * MIB, np.int64))
        except MemoryError:
            pass
        assert receiver.qsize() == 3
        other, same = arena.create_pair()
        other.put({"small": 1})
        assert same.get() == {"small": 1}
        resource.setrlimit(resource.RLIMIT_AS, (before, -1))
        got = receiver.get(timeout=30)
        assert got[0] == got[-1] == 7 and len(got) == 8 * MIB
        assert receiver.get(timeout=30) == "small" and receiver.get(timeout=30) == bytes(1)
        from shared_state import violated
        assert violated(arena) == ""
        """
    )


# --- memory of the machine -------------------------------------------------------------------------------------------


@pytest.fixture
def control_group() -> Iterator[Path]:
    """Yields a control group with a limit of 160 MiB of memory."""
    for parent, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(parent) / f"shmtree-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(160 * MIB))
            yield group
            return
        except OSError:
            pass
        finally:
            for _ in range(200):  # the kernel takes time to notice that the group is empty
                with contextlib.suppress(OSError):
                    group.rmdir()
                    break
                time.sleep(0.01)
    pytest.skip("this machine does not allow this process to make a control group")


@pytest.mark.guarantee("control-group")
@pytest.mark.skipif(UNDER_SANITIZER, reason="a sanitizer needs more memory than the group has")
def test_full_control_group_raises_without_a_kill(control_group: Path) -> None:
    run_program(
        f"""
        open("{control_group}/cgroup.procs", "w").write(str(os.getpid()))
        arena = shmtree.Arena(1024 * MIB)
        sender, receiver = arena.create_pair(capacity=None)
        for _ in range(2):
            went = 0
            try:
                while True:
                    sender.put(np.full(2 * MIB, went, np.int64), timeout=0.2)
                    went += 1
            except (queue.Full, shmtree.OutOfSharedMemory):
                pass
            assert 2 <= went < 10, went
            kept = [receiver.get(timeout=30) for _ in range(went)]
            assert [int(array[-1]) for array in kept] == list(range(went))
            try:
                while True:
                    kept.append(sender.new_empty(2 * MIB, np.int64))
                    assert len(kept) < 20
            except shmtree.OutOfSharedMemory as error:
                assert "leaves" in str(error) or "no memory" in str(error), error
            del kept
            arena.trim()
        """
    )


@pytest.mark.guarantee("control-group")
@pytest.mark.skipif(UNDER_SANITIZER, reason="a sanitizer needs more memory than the group has")
@pytest.mark.parametrize("budget", ["", "2048 * MIB"])
@pytest.mark.parametrize("size", [100, 3_000, 60_000, MIB])
def test_control_group_full_of_small_messages_raises(control_group: Path, size: int, budget: str) -> None:
    run_program(
        f"""
        open("{control_group}/cgroup.procs", "w").write(str(os.getpid()))
        arena = shmtree.Arena({budget})
        sender, receiver = arena.create_pair(capacity=None)
        own = np.ones({0 if budget else 90} * MIB, np.uint8)
        went = 0
        try:
            while True:
                sender.put(bytes({size}), timeout=0.2)
                went += 1
        except (queue.Full, shmtree.OutOfSharedMemory) as error:
            met = str(error)
        if {bool(budget)}:
            assert "control group (cgroup v" in met and "{control_group.name}" in met, met
        assert went * {size} > 10 * MIB, (went, met)
        assert all(len(receiver.get(timeout=30)) == {size} for _ in range(went))
        sender.put("again", timeout=30)
        assert receiver.get(timeout=30) == "again"
        """
    )


@pytest.mark.guarantee("control-group")
@pytest.mark.skipif(UNDER_SANITIZER, reason="a sanitizer needs more memory than the group has")
@pytest.mark.parametrize("arenas", ["one arena", "an arena each"])
@pytest.mark.parametrize("size", [100, 60_000, 3_000_000, 10_000_000])
def test_processes_that_fill_a_control_group_survive(control_group: Path, size: int, arenas: str) -> None:
    run_program(
        f"""
        import multiprocessing, time

        def fill(arena, ready, go, filled, done):
            arena = arena or shmtree.Arena(1024 * MIB)
            sender, receiver = arena.create_pair(capacity=None)
            item = np.ones({size}, np.uint8) if {size} > 1000 else bytes({size})
            for _ in range(3):  # memory that the program touches once counts in the parent's control group
                sender.put(item)
                receiver.get()
            arena.trim()
            open("{control_group}/cgroup.procs", "w").write(str(os.getpid()))
            ready.release()
            go.acquire()
            went = 0
            try:
                while True:
                    sender.put(item, timeout=0.2)
                    went += 1
            except (queue.Full, shmtree.OutOfSharedMemory):
                pass
            filled.release()
            done.acquire()
            assert all(len(receiver.get(timeout=30)) == {size} for _ in range(went))

        context = multiprocessing.get_context("fork")
        events = [context.Semaphore(0) for _ in range(4)]
        arena = shmtree.Arena(1024 * MIB) if "{arenas}" == "one arena" else None
        processes = [context.Process(target=fill, args=(arena, *events)) for _ in range(8)]
        for process in processes:
            process.start()

        def wait_for(event):
            for _ in processes:
                while not event.acquire(timeout=0.05):
                    assert all(process.is_alive() for process in processes), [process.exitcode for process in processes]

        ready, go, filled, done = events
        wait_for(ready)
        for _ in processes:
            go.release()
        wait_for(filled)
        for _ in processes:
            done.release()
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0] * 8
        """
    )


def put_until_refused(sender: Any, item: Any) -> None:
    for _ in range(100):
        sender.put(item, block=False)


@pytest.mark.parametrize("kind", ["pair", "queue"])
@pytest.mark.parametrize("what", ["queued", "held", "both"])
def test_exhausted_budget_raises_until_memory_is_freed(arena: shmtree.Arena, kind: str, what: str) -> None:
    if kind == "pair":
        sender, receiver = arena.create_pair(capacity=None)
    else:
        sender = receiver = shmtree.Queue(arena=arena)
    payload = np.arange(MIB // 2)  # 4 MiB
    own = []
    if what != "queued":
        with pytest.raises(shmtree.OutOfSharedMemory, match=str(os.getpid())):
            own.extend(arena.new_empty(MIB // 2, np.int64) for _ in range(100))
        if what == "both":
            del own[4:]
    if what != "held":
        with pytest.raises((shmtree.OutOfSharedMemory, queue.Full)):
            put_until_refused(sender, payload)
        assert receiver.qsize() > 0
        while receiver.qsize() > 0:
            assert np.array_equal(receiver.get(timeout=30), payload)
    own.clear()
    sender.put(payload, timeout=30)
    assert np.array_equal(receiver.get(timeout=30), payload)
    sender.close()
    receiver.close()


# --- interrupted calls -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timer", "number"), [(signal.ITIMER_REAL, signal.SIGALRM), (signal.ITIMER_PROF, signal.SIGPROF)]
)
def test_continuous_signals_do_not_change_messages(arena: shmtree.Arena, timer: int, number: int) -> None:
    sender, receiver = arena.create_pair(capacity=4)
    large = np.arange(MIB)
    ran = []
    before = signal.signal(number, lambda *_: ran.append(1))
    child = os.fork()
    if child == 0:
        signal.setitimer(timer, 0.0002, 0.0002)
        for i in range(40):
            sender.put((i, large if i % 4 == 0 else b"small"), timeout=60)
            arena.trim()  # the pages are allocated again while signals arrive
        os._exit(0)
    try:
        signal.setitimer(timer, 0.0002, 0.0002)
        for i in range(40):
            got = receiver.get(timeout=60)
            assert got[0] == i
            assert np.array_equal(got[1], large) if i % 4 == 0 else got[1] == b"small"
            del got
        while not ran:  # a timer of CPU time may not have expired yet
            sum(range(1000))
    finally:
        signal.setitimer(timer, 0)
        signal.signal(number, before)
        assert os.waitpid(child, 0)[1] == 0
    sender.close()
    receiver.close()
