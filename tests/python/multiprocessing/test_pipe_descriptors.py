"""Descriptors of connections in poll loops: when they are ready for reading and for writing."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import select
import selectors
import signal
from typing import Any
from unittest import mock

import pytest
from forks import fork, join

from shmtree import multiprocessing as mp

WAIT_S = 60
PIPES: dict[str, Any] = {"duplex": mp.Pipe, "simplex": lambda: mp.Pipe(False)[::-1]}


@pytest.fixture(params=PIPES)
def ends(request: Any) -> Any:
    """Returns a connection that sends, and the other side."""
    made = PIPES[request.param]()
    yield made
    for end in made:
        end.close()


def events(conn: Any, timeout_s: float = 0) -> int:
    poll = select.poll()
    poll.register(conn, select.POLLIN | select.POLLOUT)
    return sum(mask for _, mask in poll.poll(1000 * timeout_s))


@pytest.mark.guarantee("pipe-descriptors")
def test_select_reports_a_connection_that_can_send(ends):
    conn, _there = ends
    assert select.select([conn], [conn], [], 0) == ([], [conn], [])


def test_poll_epoll_and_selectors_report_pollout(ends):
    conn, _there = ends
    assert events(conn) == select.POLLOUT
    with select.epoll() as epoll:
        epoll.register(conn, select.EPOLLIN | select.EPOLLOUT)
        assert epoll.poll(0) == [(conn.fileno(), select.EPOLLOUT)]
    with selectors.DefaultSelector() as selector:
        key = selector.register(conn, selectors.EVENT_READ | selectors.EVENT_WRITE)
        assert selector.select(0) == [(key, selectors.EVENT_WRITE)]


def test_add_writer_calls_back_for_a_connection(ends):
    conn, there = ends

    async def send() -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_writer(conn.fileno(), ready.set)
        await asyncio.wait_for(ready.wait(), WAIT_S)
        loop.remove_writer(conn.fileno())
        conn.send("x")

    asyncio.run(send())
    assert there.recv() == "x"


def test_receiving_connection_is_not_writable():
    reader, writer = mp.Pipe(False)
    writer.send(1)
    assert events(reader) == select.POLLIN


@pytest.mark.guarantee("pipe-descriptors")
def test_connection_is_readable_only_while_a_message_waits():
    here, there = mp.Pipe()
    for _ in range(3):
        assert events(here) == select.POLLOUT
        there.send(1)
        there.send(2)
        assert events(here) == select.POLLIN | select.POLLOUT
        assert here.recv() == 1
        assert events(here) == select.POLLIN | select.POLLOUT
        assert here.recv() == 2


@pytest.mark.guarantee("pipe-descriptors")
def test_sending_does_not_make_a_connection_readable(ends):
    conn, there = ends
    assert events(conn) == select.POLLOUT
    for i in range(100):
        conn.send(i)
    assert [there.recv() for _ in range(100)] == list(range(100))
    assert events(conn) == select.POLLOUT


def test_edge_triggered_epoll_reports_each_message_after_a_drain():
    here, there = mp.Pipe()
    with select.epoll() as epoll:
        epoll.register(here, select.EPOLLIN | select.EPOLLET)
        assert epoll.poll(0) == []
        for i in range(10):
            there.send(i)
            assert epoll.poll(WAIT_S) == [(here.fileno(), select.EPOLLIN)]
            while here.poll(0):
                assert here.recv() == i
            assert epoll.poll(0) == []


def send_when_told(conn: Any) -> None:
    for obj in iter(conn.recv, None):
        conn.send(obj)


def test_messages_of_another_process_make_a_connection_readable():
    here, there = mp.Pipe()
    pid = fork(lambda: send_when_told(there))
    for i in range(200):
        here.send(i)
        assert select.select([here], [], [], WAIT_S)[0] == [here]
        assert here.recv() == i
        assert events(here) == select.POLLOUT
    here.send(None)
    join(pid)


@pytest.mark.guarantee("pipe-descriptors")
def test_close_of_the_other_side_makes_a_connection_ready(ends):
    conn, there = ends
    assert events(conn) == select.POLLOUT
    there.close()
    assert select.select([conn], [conn], [], WAIT_S) == ([conn], [conn], [])
    assert events(conn) & select.POLLIN and events(conn) & select.POLLOUT
    with pytest.raises(BrokenPipeError):
        conn.send(1)


def stay(conn: Any) -> None:
    conn.send("here") if conn.writable else None
    signal.pause()


def send_until_refused(conn: Any) -> None:
    while True:  # until this process has found the death
        conn.send(1)


@pytest.mark.guarantee("pipe-descriptors")
def test_death_of_the_other_side_makes_a_connection_ready(ends):
    conn, there = ends
    process = multiprocessing.get_context("fork").Process(target=stay, args=(there,))
    process.start()
    there.close()
    if conn.readable:
        assert conn.recv() == "here"
    assert events(conn) == select.POLLOUT
    process.kill()
    process.join()
    assert select.select([conn], [conn], [], WAIT_S) == ([conn], [conn], [])
    with pytest.raises(BrokenPipeError):
        send_until_refused(conn)


def test_forked_child_has_a_descriptor_of_its_own():
    here, there = mp.Pipe()
    assert events(here) == select.POLLOUT

    def child() -> None:
        assert events(here) == select.POLLOUT
        there.send("x")
        assert select.select([here], [here], [], WAIT_S)[:2] == ([here], [here])
        assert here.recv() == "x"
        assert events(here) == select.POLLOUT

    join(fork(child))
    assert here.poll() is False
    there.send("y")
    assert events(here, WAIT_S) == select.POLLIN | select.POLLOUT


def test_descriptors_of_hundreds_of_connections_are_closed_again():
    gc.collect()  # closes the descriptors of other tests' garbage
    before = os.listdir("/proc/self/fd")
    for _ in range(2):
        pipes = [mp.Pipe() for _ in range(200)]  # more than one context of the system has space for
        for here, there in pipes:
            assert events(here) == select.POLLOUT
            there.send(1)
        for here, _there in pipes:
            assert events(here) == select.POLLIN | select.POLLOUT
            assert here.recv() == 1
        for here, there in pipes:
            assert events(here) == select.POLLOUT
            here.close()
            there.close()
    assert os.listdir("/proc/self/fd") == before


def test_descriptor_that_the_program_closed_is_replaced():
    here, there = mp.Pipe()
    os.close(here.fileno())
    assert events(here) == select.POLLOUT
    taken = here.fileno()
    os.close(taken)
    other = select.epoll()
    os.dup2(other.fileno(), taken)  # another file of the same kind
    assert here.fileno() != taken
    there.send(1)
    assert events(here) == select.POLLIN | select.POLLOUT
    here.close()
    os.fstat(taken)  # was not closed
    os.close(taken)
    other.close()


def test_standard_wait_omits_a_connection_that_only_sends():
    _reader, writer = mp.Pipe(duplex=False)
    assert multiprocessing.connection.wait([writer], 0) == []


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("duplex", [True, False])
def test_attributes_of_a_connection_can_be_set_and_patched(duplex, side):
    conn = mp.Pipe(duplex)[side]
    conn.label = "x"
    assert vars(conn)["label"] == "x"
    with mock.patch.object(conn, "poll", return_value=7):
        assert conn.poll() == 7
    conn.close = lambda: None
    del conn.close
    conn.close()
    assert conn.closed
