"""`shmtree.multiprocessing.Pipe`: connections like the standard ones, in shared memory."""

from __future__ import annotations

import array
import multiprocessing
import os
import pickle
import queue
import signal
import threading
from multiprocessing import connection, reduction
from typing import Any

import numpy as np
import pytest
from forks import WITHOUT_GIL, fork, fork_alone, join

import shmtree
from shmtree import multiprocessing as mp

METHODS = ["fork", "spawn", "forkserver"]


def echo(conn: Any) -> None:
    """Sends back what it receives, until None."""
    for obj in iter(conn.recv, None):
        conn.send(obj)


def say_and_stay(conn: Any) -> None:
    conn.send(os.getpid())
    signal.pause()


@pytest.fixture
def pipe():
    ends = mp.Pipe()
    yield ends
    for end in ends:
        end.close()


@pytest.fixture
def peer():
    """Returns peer(target, conn, method="fork"), which starts a process. The process is killed after the test."""
    started = []

    def begin(target, conn, method="fork"):
        process = mp.get_context(method).Process(target=target, args=(conn,))
        process.start()
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.join()


def test_one_way_pipe_reports_and_enforces_its_direction():
    reader, writer = mp.Pipe(duplex=False)
    assert (reader.readable, reader.writable) == (True, False)
    assert (writer.readable, writer.writable) == (False, True)
    assert "readable and writable" in repr(mp.Pipe()[0])
    writer.send(1)
    assert reader.recv() == 1
    for call in (writer.recv, writer.poll, writer.recv_bytes, lambda: reader.send(1), lambda: reader.send_bytes(b"")):
        with pytest.raises(OSError, match="only"):
            call()


def test_sent_messages_arrive_before_the_end_of_the_stream(pipe):
    here, there = pipe
    there.send(1)
    there.close()
    assert here.recv() == 1
    assert here.poll(0)
    with pytest.raises(EOFError):
        here.recv()
    with pytest.raises(BrokenPipeError):
        here.send(2)


def keep_both_sides() -> None:
    here, there = mp.Pipe()
    process = mp.get_context("fork").Process(target=say_and_stay, args=(there,))
    process.start()
    assert here.recv() == process.pid
    process.kill()
    process.join()
    assert not here.poll(0.1)  # the stream has not ended: this process has the other end too, and could give it away
    there.send("from here")
    assert here.recv() == "from here"
    with pytest.raises(queue.Empty):
        here._receiver.get(timeout=0.1)


def wait_for_ever(killed: bool) -> None:
    """Waits until the end of the stream. It is ConnectionLost if the peer was killed."""
    here, there = mp.Pipe()
    process = mp.get_context("fork").Process(target=say_and_stay if killed else echo, args=(there,))
    process.start()
    if killed:
        assert here.recv() == process.pid
        process.kill()
    else:
        here.send(None)
    with pytest.raises(EOFError) as end:
        here.recv()
    assert isinstance(end.value, shmtree.ConnectionLost if killed else shmtree.ChannelClosed)
    process.join()


def test_no_end_of_stream_while_one_process_has_both_sides():
    join(fork(keep_both_sides))


@pytest.mark.guarantee("deadlock-ends")
@pytest.mark.skipif(WITHOUT_GIL, reason="the threads of a Python without a GIL are not counted")
@pytest.mark.parametrize("killed", [False, True])
def test_recv_that_would_block_forever_raises_eof_error(killed):
    join(fork_alone(lambda: wait_for_ever(killed)))


def give_to_one_worker_after_the_other() -> None:
    reader, writer = mp.Pipe(duplex=False)
    for _ in range(3):
        process = mp.get_context("fork").Process(target=say_and_stay, args=(writer,))
        process.start()
        assert reader.recv() == process.pid
        process.kill()
        process.join()
        assert not reader.poll(0.05)


def test_same_pipe_serves_one_worker_after_another():
    join(fork(give_to_one_worker_after_the_other))


def test_process_can_send_to_itself_after_its_child_exited(pipe, peer):
    here, there = pipe
    process = peer(leave_at_once, there)
    process.join(30)
    here.send(1)
    assert there.recv() == 1


def leave_at_once(conn: Any) -> None:
    pass


def test_poll_reports_message_and_end_without_consuming_either(pipe):
    here, there = pipe
    assert not here.poll()
    assert not here.poll(0.01)
    assert not here.poll(-1)
    there.send(1)
    assert here.poll() and here.poll(None) and here.recv() == 1
    there.close()
    assert here.poll() and here.poll(None)
    with pytest.raises(EOFError):
        here.recv()


def test_poll_wakes_for_a_message(pipe):
    here, there = pipe
    thread = threading.Timer(0.05, there.send, ["late"])
    thread.start()
    assert here.poll(60)
    assert here.recv() == "late"
    thread.join()


def test_send_bytes_transfers_bytes_unchanged(pipe):
    here, there = pipe
    for data in (b"", b"x", os.urandom(1000), os.urandom(1 << 20)):
        here.send_bytes(data)
        assert there.recv_bytes() == data
    here.send_bytes(b"0123456789", 2, 5)
    assert there.recv_bytes() == b"23456"
    here.send_bytes(array.array("i", [1, 2, 3]), 4)
    assert there.recv_bytes() == array.array("i", [2, 3]).tobytes()


def test_objects_are_sent_as_pickled_bytes(pipe):
    here, there = pipe
    here.send([1, "x"])
    assert pickle.loads(there.recv_bytes()) == [1, "x"]
    here.send_bytes(pickle.dumps({"a": 1}))
    assert there.recv() == {"a": 1}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [((-1,), "-1"), ((11,), "11"), ((0, -2), "-2"), ((4, 7), "7"), ((0, 11), "11")],
)
def test_send_bytes_names_an_invalid_offset_or_size(pipe, arguments, named):
    here, there = pipe
    with pytest.raises(ValueError, match=named):
        here.send_bytes(b"0123456789", *arguments)
    assert not there.poll()


def test_bytes_are_received_into_a_buffer(pipe):
    here, there = pipe
    numbers = array.array("i", [0] * 5)
    here.send_bytes(array.array("i", [1, 2]))
    assert there.recv_bytes_into(numbers, 4) == 8
    assert list(numbers) == [0, 1, 2, 0, 0]


@pytest.mark.parametrize(
    ("buffer", "why"),
    [
        (b"12345678", "read-only"),
        (np.zeros((4, 4), np.uint8)[:, :2], "not contiguous"),
        (np.zeros((4, 4), np.uint8, order="F"), "not contiguous"),
    ],
)
def test_recv_bytes_into_a_bad_buffer_raises_and_takes_nothing(buffer: Any, why: str) -> None:
    here, there = mp.Pipe()
    here.send_bytes(b"abc")
    with pytest.raises(TypeError, match=why):
        there.recv_bytes_into(buffer)
    assert there.recv_bytes() == b"abc"


def test_bytes_calls_accept_buffers_of_any_item_type() -> None:
    here, there = mp.Pipe()
    sent = np.arange(4).astype([("a", ">i4"), ("b", "f8")])
    received = np.zeros_like(sent)
    here.send_bytes(sent)
    assert there.recv_bytes_into(received) == sent.nbytes
    assert (received == sent).all()
    here.send_bytes(np.empty(0))
    assert there.recv_bytes_into(np.empty(0)) == 0


def test_short_buffer_error_contains_the_message(pipe):
    here, there = pipe
    here.send_bytes(b"0123456789")
    with pytest.raises(multiprocessing.BufferTooShort) as short:
        there.recv_bytes_into(bytearray(12), 4)
    assert short.value.args == (b"0123456789",)


def test_recv_bytes_over_maxlength_closes_the_reader(pipe):
    here, there = pipe
    here.send_bytes(b"0123456789")
    with pytest.raises(ValueError, match="-1"):
        there.recv_bytes(-1)
    with pytest.raises(OSError, match="10 bytes"):
        there.recv_bytes(9)
    with pytest.raises(OSError):
        there.recv()


@pytest.mark.guarantee("pipe")
def test_many_sends_before_any_receive_do_not_block(pipe):
    here, there = pipe
    for conn in pipe:
        for i in range(2000):
            conn.send((i, b"x" * 1000))
    for conn in (there, here):
        assert [conn.recv()[0] for _ in range(2000)] == list(range(2000))


@pytest.mark.guarantee("pipe")
def test_standard_wait_accepts_our_and_standard_connections(pipe, peer):
    here, there = pipe
    theirs, other = multiprocessing.Pipe()
    elsewhere = mp.Pipe()
    process = peer(say_and_stay, elsewhere[1])
    conns = [here, theirs, process.sentinel]
    assert connection.wait(conns, 0) == []
    there.send(1)
    assert connection.wait(conns) == [here]
    other.send(1)
    assert set(connection.wait(conns)) == {here, theirs}
    assert (here.recv(), theirs.recv()) == (1, 1)
    process.kill()
    assert connection.wait(conns) == [process.sentinel]
    theirs.close()
    other.close()


@pytest.mark.guarantee("fileno-at-last-death")
def test_the_standard_wait_sees_a_killed_peer(pipe, peer):
    here, there = pipe
    process = peer(say_and_stay, there)
    there.close()
    assert here.recv() == process.pid
    threading.Timer(0.05, process.kill).start()
    assert connection.wait([here]) == [here]
    with pytest.raises(EOFError):
        here.recv()


def test_connection_can_be_sent_to_a_running_process(pipe, peer):
    here, there = pipe
    carrier, carried = mp.Pipe()
    process = peer(serve_requests, carried)
    carrier.send(there)
    there.close()
    here.send("x")
    assert here.recv() == "x"
    here.send(None)
    process.join(30)
    assert process.exitcode == 0


def serve_requests(conn: Any) -> None:
    echo(conn.recv())


def test_threads_share_a_connection(pipe):
    here, there = pipe
    threads = [threading.Thread(target=lambda: [here.send(1) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert sum(there.recv() for _ in range(2000)) == 2000
    for thread in threads:
        thread.join()


def test_unpicklable_object_raises_and_sends_nothing(pipe):
    here, there = pipe
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        here.send(lambda: None)
    assert not there.poll()


def test_send_handle_works_over_both_kinds_of_pipe() -> None:
    for pipe in (mp.Pipe, multiprocessing.Pipe):
        here, there = pipe()
        read, write = os.pipe()
        reduction.send_handle(here, write, os.getpid())
        os.close(write)
        received = reduction.recv_handle(there)
        os.write(received, b"hello")
        os.close(received)
        assert os.read(read, 9) == b"hello"
        os.close(read)


def test_recv_handle_refuses_another_message_by_its_type() -> None:
    here, there = mp.Pipe()
    here.send([1])
    with pytest.raises(RuntimeError, match="a list"):
        reduction.recv_handle(there)
