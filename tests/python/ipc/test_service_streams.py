"""Replies in several parts, and requests that their clients do not wait for any more."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import numpy as np
import pytest
from services import end

import shmtree
from shmtree import Client, RemoteError, Service


@pytest.fixture
def service(arena):
    with Service[Any](arena=arena) as made:
        yield made


@pytest.fixture
def asking(service):
    with Client[Any, Any](service.sender) as made:
        yield made


def in_thread(function: Any, *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    return thread


def test_stream_returns_every_part_in_order(service, asking):
    def serve() -> None:
        for last in (False, True):
            request = service.get(timeout=60)
            for number in range(request.value):
                assert request.stream(np.full(10_000, number))
            assert request.reply("last") if last else request.end()

    thread = in_thread(serve)
    assert [int(part[0]) for part in asking.stream(100, timeout=60)] == list(range(100))
    parts = list(asking.stream(3, timeout=60))
    assert [int(part[0]) for part in parts[:3]] == [0, 1, 2]
    assert parts[3] == "last"
    thread.join(60)
    assert asking._lines == {}


def test_call_of_a_stream_returns_the_last_result(service, asking):
    asked = [asking.submit(number) for number in range(2)]
    for request in service.get_many(2, timeout=60):
        assert request.stream("part")
        assert request.reply("last") if request.value else request.end()
    assert [future.result(60) for future in asked] == [None, "last"]


def count_to(limit: int) -> Any:
    yield from range(limit)
    if limit == 5:
        raise KeyError("five")


def test_generator_function_is_served_as_a_stream(service, asking):
    thread = in_thread(service.serve, count_to)
    assert list(asking.stream(100, timeout=60)) == list(range(100))
    stream = asking.stream(5, timeout=60)
    assert [next(stream) for _ in range(5)] == list(range(5))
    with pytest.raises(RemoteError, match="KeyError: 'five'"):
        next(stream)
    service.close()
    thread.join(60)


def test_server_waits_for_a_client_that_does_not_read(service, asking):
    stream = asking.stream("all", timeout=60)
    sent: list[None] = []
    is_full = threading.Event()

    def serve() -> None:
        request = service.get(timeout=60)
        while request.stream(len(sent), timeout=0):
            sent.append(None)
        is_full.set()
        request.stream("more", timeout=60)
        request.end()

    thread = in_thread(serve)
    got = [next(stream)]
    assert is_full.wait(60)
    got += list(stream)
    thread.join(60)
    assert 16 <= len(sent) <= 17
    assert got == [*range(len(sent)), "more"]


def test_closing_a_stream_early_cancels_its_request(service, asking):
    def serve(results: list[bool]) -> None:
        request = service.get(timeout=60)
        results.append(request.cancelled)
        while request.stream("part", timeout=60):
            pass
        results.append(request.cancelled)

    results: list[bool] = []
    thread = in_thread(serve, results)
    for _ in asking.stream("endless", timeout=60):
        break
    thread.join(60)
    assert results == [False, True]
    assert asking._lines == {}


def call_in_vain(client: Client[Any, Any], timeout: float) -> None:
    with pytest.raises(TimeoutError):
        client.call(1, timeout=timeout)


def request_that_expires(service: Service[Any], client: Client[Any, Any]) -> Any:
    """Returns a request whose client gives up. If the machine is too slow to get it before, the next one has longer."""
    for timeout in (0.5, 2, 8, 32):
        thread = in_thread(call_in_vain, client, timeout)
        try:
            return service.get(timeout=timeout)
        except queue.Empty:
            continue
        finally:
            thread.join(60)
    raise AssertionError("every request expired before the service got it")


def test_request_is_cancelled_after_timeout_or_close(service):
    with Client[Any, Any](service.sender) as client:
        late = request_that_expires(service, client)
        while not late.cancelled:
            time.sleep(0.01)
        client.submit(2)
        left = service.get(timeout=60)
        assert not left.cancelled
    assert left.cancelled
    left.reply(None)
    assert not left.cancelled


def ask_and_wait(client: Client[Any, Any]) -> None:
    client.call("wait", timeout=None)


def test_request_of_a_killed_client_is_cancelled(service, asking, start):
    process = start(ask_and_wait, asking)
    request = service.get(timeout=60)
    assert not request.cancelled
    end(process)
    while not request.cancelled:
        time.sleep(0.01)


def stream_and_wait(service: Service[Any]) -> None:
    request = service.get(timeout=60)
    request.stream("part")
    time.sleep(600)


def test_server_killed_in_a_stream_raises_after_its_parts(arena, start):
    service: Service[Any] = Service(arena=arena)
    process = start(stream_and_wait, service)
    with Client[Any, Any](service) as client:
        service.close()
        stream = client.stream(1, timeout=60)
        assert next(stream) == "part"
        end(process)
        with pytest.raises(shmtree.PeerDied):
            next(stream)


def test_stream_without_a_server_in_time_raises_timeout(service, asking):
    with pytest.raises(TimeoutError, match="no part of the reply within 0.01 s"):
        next(asking.stream(1, timeout=0.01))
