"""Processes that fail, by an exception or an exit code, and what their peers get."""

from __future__ import annotations

import multiprocessing as mp
import multiprocessing.connection
import os
import pickle
import queue
import subprocess
import sys
import textwrap
from typing import Any

import failing
import pytest
from starts import START_METHODS

import shmtree
from shmtree import multiprocessing as shared_mp
from shmtree.errors import ConnectionLost, PeerDied, WorkerFailed
from shmtree.replay import Limits, RateLimit, ReplayBuffer


@pytest.mark.guarantee("worker-failed")
@pytest.mark.parametrize("module", [mp, shared_mp], ids=["multiprocessing", "shmtree.multiprocessing"])
@pytest.mark.parametrize("method", START_METHODS)
def test_loop_raises_worker_failed_after_all_results(method, module):
    to_work, numbers = shmtree.create_pair()
    to_main, results = shmtree.create_pair()
    context = module.get_context(method)
    workers = [context.Process(target=failing.divide, args=(numbers, to_main)) for _ in range(2)]
    for worker in workers:
        worker.start()
    numbers.close()
    to_main.close()
    to_work.put_many([1, 2, 0, 3, 4])
    to_work.close()
    found: list[int] = []
    with pytest.raises(WorkerFailed) as failed:
        found.extend(results)  # keeps the results before the error
    assert sorted(found) == [3, 4, 6, 12]
    for worker in workers:
        worker.join(60)
    (pid,) = [worker.pid for worker in workers if worker.exitcode == 1]
    assert failed.value.pids == (pid,)
    assert failed.value.exit_code == 1
    assert str(failed.value) == f"no senders are left, and these failed: {pid} (exit code 1)"
    with pytest.raises(shmtree.ChannelClosed):  # a failure is reported once
        results.get(timeout=60)


def end_of(sender: shmtree.Sender, receiver: shmtree.Receiver, process: Any) -> tuple[type[Exception], Any]:
    """Returns the class of the error at the end of a stream with one message, and its exit code."""
    assert receiver.get(timeout=60) == "before"
    sender.close()  # not before the process has its end
    with pytest.raises((PeerDied, shmtree.ChannelClosed)) as ended:
        receiver.get(timeout=60)
    if isinstance(ended.value, WorkerFailed):
        assert ended.value.pids == (process.pid,)
    process.join(60)
    return type(ended.value), getattr(ended.value, "exit_code", None)


@pytest.mark.guarantee("worker-failed")
@pytest.mark.parametrize("method", START_METHODS)
@pytest.mark.parametrize(
    ("error", "code"),
    [(SystemExit(3), 3), (SystemExit("text"), 1), (SystemExit(-1), 255), (ValueError(), 1), (GeneratorExit(), 1)],
    ids=repr,
)
def test_failure_has_the_exit_code_of_its_process(start, method, error, code):
    sender, receiver = shmtree.create_pair()
    process = start(failing.put_and_raise, sender, error, method=method)
    assert end_of(sender, receiver, process) == (WorkerFailed, code)
    assert process.exitcode == code


@pytest.mark.guarantee("worker-failed")
@pytest.mark.parametrize("error", [SystemExit(), SystemExit(0), SystemExit(256), KeyboardInterrupt()], ids=repr)
def test_exit_code_0_and_ctrl_c_are_no_failures(start, error):
    sender, receiver = shmtree.create_pair()
    process = start(failing.put_and_raise, sender, error)
    assert end_of(sender, receiver, process) == (shmtree.ChannelClosed, None)


@pytest.mark.guarantee("worker-failed")
@pytest.mark.parametrize("method", START_METHODS)
def test_sender_in_a_local_variable_reports_the_failure(start, name, method):
    sender, receiver = shmtree.create_pair(name=name)
    process = start(failing.open_and_raise, name, method=method)
    assert end_of(sender, receiver, process) == (WorkerFailed, 1)


def test_interrupted_process_has_not_failed(start):
    sender, receiver = shmtree.create_pair()
    process = start(failing.put_and_interrupt, sender)
    assert end_of(sender, receiver, process) == (shmtree.ChannelClosed, None)


def test_process_forked_in_an_except_block_has_not_failed(start):
    sender, receiver = shmtree.create_pair()
    try:
        raise ValueError
    except ValueError:
        process = start(sender.put, "before")
    assert end_of(sender, receiver, process) == (shmtree.ChannelClosed, None)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("method", START_METHODS)
def test_bare_fork_of_a_worker_that_returns_was_not_killed(start, method):
    sender, receiver = shmtree.create_pair()
    process = start(failing.put_in_a_fork, sender, method=method)
    assert end_of(sender, receiver, process) == (shmtree.ChannelClosed, None)


@pytest.mark.guarantee("worker-failed")
def test_put_raises_worker_failed_if_the_last_receiver_failed(start):
    sender, receiver = shmtree.create_pair(capacity=1)
    process = start(failing.get_and_raise, receiver)
    receiver.close()
    sender.put(1)
    with pytest.raises(WorkerFailed, match="no receivers are left") as failed:
        sender.put_many([2, 3], timeout=60)
    assert failed.value.pids == (process.pid,)
    assert failed.value.exit_code == 1


# --- policies --------------------------------------------------------------------------------------------------------


def test_on_peer_death_each_reports_a_failure_while_others_send(start):
    sender, receiver = shmtree.create_pair(on_peer_death="each")
    assert receiver.empty()  # this process only receives
    pipes = [mp.Pipe() for _ in range(2)]
    workers = [start(failing.put_and_end_when_told, sender, theirs) for _, theirs in pipes]
    assert {receiver.get(timeout=60) for _ in workers} == {worker.pid for worker in workers}
    assert mp.connection.wait([receiver], 0) == []
    pipes[0][0].send(3)
    assert mp.connection.wait([receiver], 60) == [receiver]
    with pytest.raises(WorkerFailed, match="these senders failed") as failed:
        receiver.get(timeout=60)
    assert (failed.value.pids, failed.value.exit_code) == ((workers[0].pid,), 3)
    assert mp.connection.wait([receiver], 0) == []
    pipes[1][0].send(0)
    sender.close()
    with pytest.raises(shmtree.ChannelClosed):
        receiver.get(timeout=60)


def test_on_peer_death_wait_waits_for_a_successor(start):
    sender, receiver = shmtree.create_pair(on_peer_death="wait")
    process = start(failing.put_and_raise, sender, ValueError())
    assert receiver.get(timeout=60) == "before"
    process.join(60)
    with pytest.raises(queue.Empty):
        receiver.get(timeout=0.3)
    successor = start(sender.put, "before")
    assert end_of(sender, receiver, successor) == (shmtree.ChannelClosed, None)


def test_keep_open_stream_waits_for_the_next_client(start):
    sender, receiver = shmtree.create_pair(keep_open=True)
    for error in (ValueError(), SystemExit()):
        start(failing.put_and_raise, sender, error).join(60)
        assert receiver.get(timeout=60) == "before"
    with pytest.raises(queue.Empty):
        receiver.get(timeout=0.01)


def test_queue_waits_after_a_failure_by_default(start):
    numbers: shmtree.Queue[str] = shmtree.Queue()
    start(failing.put_and_raise, numbers, ValueError()).join(60)
    assert numbers.get(timeout=60) == "before"
    with pytest.raises(queue.Empty):
        numbers.get(timeout=0.3)


def test_queue_with_on_peer_death_raise_reports_a_failure(start):
    numbers: shmtree.Queue[str] = shmtree.Queue(on_peer_death="raise")
    process = start(failing.put_and_raise, numbers, ValueError())
    assert numbers.get(timeout=60) == "before"
    with pytest.raises(WorkerFailed, match=rf"these failed: {process.pid} \(exit code 1\)") as failed:
        numbers.get(timeout=60)
    assert failed.value.exit_code == 1


def raise_in_a_task(number: int) -> None:
    raise ValueError(number)


def test_exception_in_a_task_of_a_pool_is_no_failure(arena):
    sender, receiver = arena.create_pair(on_peer_death="each")
    assert receiver.empty()
    with shared_mp.get_context("fork").Pool(1) as pool:
        with pytest.raises(ValueError, match="7"):
            pool.apply(raise_in_a_task, (7,))
        with pytest.raises(queue.Empty):
            receiver.get(timeout=0.01)
        pool.close()
        pool.join()
    sender.close()
    with pytest.raises(shmtree.ChannelClosed):
        receiver.get(timeout=60)


# --- blocks that are left by an exception ----------------------------------------------------------------------------


@pytest.mark.guarantee("worker-failed")
def test_sender_whose_block_was_left_by_an_exception_has_failed(start):
    sender, receiver = shmtree.create_pair()
    process = start(failing.raise_within, sender, ValueError())
    assert end_of(sender, receiver, process) == (WorkerFailed, None)
    assert process.exitcode == 0


def test_sys_exit_in_the_block_of_a_sender_has_its_exit_code(start):
    sender, receiver = shmtree.create_pair()
    process = start(failing.raise_within, sender, SystemExit(3))
    assert end_of(sender, receiver, process) == (WorkerFailed, 3)


@pytest.mark.parametrize(
    "error",
    [shmtree.ChannelClosed(), shmtree.ShutDown(), StopIteration(), KeyboardInterrupt(), GeneratorExit(), SystemExit(0)],
    ids=repr,
)
def test_block_left_because_a_stream_ended_closes_the_sender(start, error):
    sender, receiver = shmtree.create_pair()
    process = start(failing.raise_within, sender, error)
    assert end_of(sender, receiver, process) == (shmtree.ChannelClosed, None)


def test_fail_closes_the_sender_and_is_reported(pair):
    sender, receiver = pair
    sender.put(1)
    sender.fail()
    assert sender.closed
    assert receiver.get(timeout=60) == 1
    with pytest.raises(WorkerFailed, match=f"{os.getpid()} .closed its end after an exception.") as failed:
        receiver.get(timeout=60)
    assert failed.value.exit_code is None
    sender.fail()  # a closed sender reports nothing
    with pytest.raises(shmtree.ChannelClosed):
        receiver.get(timeout=60)


# --- other objects ---------------------------------------------------------------------------------------------------


def test_connection_of_a_failed_process_raises_both_errors(start):
    ours, theirs = shared_mp.Pipe()
    process = start(failing.get_and_exit, theirs, 3)
    theirs.close()
    ours.send("go")
    with pytest.raises(EOFError) as failed:
        ours.recv()
    assert isinstance(failed.value, ConnectionLost)
    assert isinstance(failed.value, WorkerFailed)
    assert (failed.value.pids, failed.value.exit_code) == ((process.pid,), 3)


def test_with_block_of_a_connection_reports_a_failure(start):
    ours, theirs = shared_mp.Pipe()
    process = start(failing.send_and_raise_in_block, theirs)
    theirs.close()
    assert ours.recv() == process.pid
    with pytest.raises(WorkerFailed) as failed:
        ours.recv()
    assert isinstance(failed.value, ConnectionLost)
    assert failed.value.pids == (process.pid,)


def test_error_keeps_its_attributes_in_a_pickle():
    error = ConnectionLost._of(WorkerFailed("text"))
    error.pids, error.exit_code = (5,), 3  # type: ignore[attr-defined]
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.pids, copy.exit_code, str(copy)) == (type(error), (5,), 3, "text")


@pytest.mark.guarantee("worker-failed")
def test_subscriber_of_a_failed_publisher_raises_worker_failed(start):
    broadcast = shmtree.Broadcast()
    subscriber = broadcast.subscribe()
    process = start(failing.publish_and_raise, broadcast.put)
    assert subscriber.get(timeout=60) == "before"
    with pytest.raises(WorkerFailed) as failed:
        subscriber.get(timeout=60)
    assert (failed.value.pids, failed.value.exit_code) == ((process.pid,), 1)
    process.join(60)
    broadcast.put("again")
    assert subscriber.get(timeout=60) == "again"


@pytest.mark.guarantee("worker-failed")
@pytest.mark.parametrize(("error", "code"), [(ValueError(), None), (SystemExit(3), 3)], ids=repr)
def test_publisher_whose_block_raised_has_failed(start, error, code):
    broadcast = shmtree.Broadcast()
    subscriber = broadcast.subscribe()
    process = start(failing.raise_within, broadcast, error)
    broadcast.close()
    assert subscriber.get(timeout=60) == "before"
    with pytest.raises(WorkerFailed) as failed:
        subscriber.get(timeout=60)
    assert (failed.value.pids, failed.value.exit_code) == ((process.pid,), code)


def test_block_left_because_a_stream_ended_closes_the_publisher(start):
    broadcast = shmtree.Broadcast()
    subscriber = broadcast.subscribe()
    start(failing.raise_within, broadcast, shmtree.ChannelClosed())
    broadcast.close()
    assert subscriber.get(timeout=60) == "before"
    with pytest.raises(shmtree.ChannelClosed):
        subscriber.get(timeout=60)


def test_latest_of_a_failed_publisher_raises_worker_failed(start):
    latest = shmtree.Latest()
    process = start(failing.publish_and_raise, latest.publish)
    version, _ = latest.get(timeout=60)
    with pytest.raises(WorkerFailed) as failed:
        latest.get(newer_than=version, timeout=60)
    assert (failed.value.pids, failed.value.exit_code) == ((process.pid,), 1)


def test_replay_sampler_raises_after_the_last_writer_failed(start):
    buffer = ReplayBuffer(
        100, example={"number": 0}, limits=Limits(rate=RateLimit(1.0, min_size=10), on_peer_death="raise")
    )
    process = start(failing.publish_and_raise, lambda _: buffer.add({"number": 1}))
    with pytest.raises(WorkerFailed) as failed:
        buffer.sample(4, timeout=60)
    assert (failed.value.pids, failed.value.exit_code) == ((process.pid,), 1)


def test_client_of_a_failed_server_raises_worker_failed(start, runtime_directory, name):
    service: shmtree.Service[Any] = shmtree.Service(name)
    client = shmtree.Client(name, timeout=60)
    process = start(failing.serve_and_raise, service)
    service.close()
    assert client.call(1, timeout=60) == "first"
    with pytest.raises(WorkerFailed, match=f"server process {process.pid} failed") as failed:
        client.call(2, timeout=60)
    assert failed.value.exit_code == 1
    client.close()


# --- main programs ---------------------------------------------------------------------------------------------------

MAIN = """
import multiprocessing as mp, sys
import shmtree

def report(receiver):
    try:
        receiver.get()
    except (shmtree.PeerDied, shmtree.ChannelClosed) as error:
        print(type(error).__name__, getattr(error, "exit_code", None), flush=True)

def fail():
    raise ValueError

sender, receiver = shmtree.create_pair()
sender.has_space()
mp.get_context("fork").Process(target=report, args=(receiver,)).start()
"""
ENDS_OF_MAIN = {
    "an exception": ([], "fail()", "WorkerFailed 1\n"),
    "an exception in a module": (["-m"], "fail()", "WorkerFailed 1\n"),
    "Ctrl-C": ([], "raise KeyboardInterrupt", "ChannelClosed None\n"),
    "its last line": ([], "", "ChannelClosed None\n"),
    "an exception that was printed": (
        [],
        "try:\n    fail()\nexcept ValueError as error:\n"
        "    sys.last_value = error.with_traceback(error.__traceback__.tb_next)",
        "ChannelClosed None\n",
    ),
    "an exception that the program keeps": (
        [],
        "try:\n    fail()\nexcept ValueError as error:\n    sys.last_exc = sys.last_value = error",
        "ChannelClosed None\n",
    ),
    "an exception that a module keeps": (
        ["-m"],
        "try:\n    fail()\nexcept ValueError as error:\n    sys.last_exc = sys.last_value = error",
        "ChannelClosed None\n",
    ),
    "an exception that the program keeps before sys.exit": (
        [],
        "try:\n    fail()\nexcept ValueError as error:\n    sys.last_exc = sys.last_value = error\nsys.exit()",
        "ChannelClosed None\n",
    ),
    "an exception that is raised again": (
        [],
        "try:\n    fail()\nexcept ValueError:\n    raise",
        "WorkerFailed 1\n",
    ),
    "an exception with a cause": (
        [],
        "try:\n    fail()\nexcept ValueError as error:\n    raise KeyError from error",
        "WorkerFailed 1\n",
    ),
    "an exception before a clause": (["-m"], "try:\n    fail()\nfinally:\n    print(end='')", "WorkerFailed 1\n"),
    "an exception at a prompt": (["-i"], "fail()", "ChannelClosed None\n"),
}


@pytest.mark.parametrize(("options", "end", "reported"), ENDS_OF_MAIN.values(), ids=ENDS_OF_MAIN.keys())
def test_child_detects_whether_the_main_program_failed(tmp_path, options, end, reported):
    (tmp_path / "program.py").write_text(textwrap.dedent(MAIN) + end)
    file = "program" if "-m" in options else "program.py"
    ran = subprocess.run(
        [sys.executable, *options, file],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.stdout == reported, ran.stderr
