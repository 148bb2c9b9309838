"""Requests and replies: answers out of order, from threads and coroutines, and deaths on either side."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing as mp
import queue
import signal
import subprocess
import sys
import threading
import time
from concurrent import futures
from typing import Any

import numpy as np
import pytest
from services import double_all, end, never_answer, serve_name
from starts import START_METHODS

import shmtree
from shmtree import Client, PickleRefused, RemoteError, Service


def test_call_returns_the_reply(client):
    assert client.call(21, timeout=60) == 42
    assert (client.call(np.arange(10_000), timeout=60) == 2 * np.arange(10_000)).all()


@pytest.mark.parametrize("method", START_METHODS)
def test_client_of_a_service_that_is_not_closed_sees_an_exit(start, method):
    service: Service[int] = Service()
    server = start(answer_one, service, method=method)
    with Client(service) as client:
        assert client.call(21, timeout=60) == 22
        server.join(60)
        with pytest.raises(shmtree.PeerDied, match="no server process is left"):
            client.call(21, timeout=60)


def answer_one(service: Service[int]) -> None:
    request = service.get(timeout=60)
    request.reply(request.value + 1)


def test_client_has_a_sender_of_its_own(start):
    service: Service[int] = Service()
    start(double_all, service)
    client = Client(service.sender)
    service.close()
    assert client.call(21, timeout=60) == 42
    client.close()


@pytest.mark.guarantee("service-requests-only")
def test_put_into_a_service_raises(runtime_directory, name):
    service: Service[int] = Service(name)
    for sender in (service.sender, shmtree.open_sender(name)):
        for put, message in ((sender.put, 1), (sender.put_nowait, 1), (sender.put_many, [1])):
            with pytest.raises(ValueError, match="send them with shmtree.Client"):
                put(message)
        with pytest.raises(ValueError, match="send them with shmtree.Client"):
            asyncio.run(sender.put_async(1))
    assert service.stats()["put"] == 0
    with pytest.raises(ValueError, match="it belongs to a Service"):
        shmtree.create_pair(1024, name=name, keep_open=True, exist_ok=True)


def test_client_refuses_another_object_as_its_arena():
    service: Service[int] = Service()
    for arena in (5, service, shmtree.SharedList([1])):
        with pytest.raises(TypeError, match="it must be an Arena, or None"):
            Client(service, arena=arena)  # type: ignore[arg-type]


@pytest.mark.guarantee("service-requests-only")
def test_client_refuses_a_channel_that_is_not_of_a_service(runtime_directory, name):
    kept = shmtree.create_pair(name=name)
    with pytest.raises(ValueError, match="not the channel of a Service"):
        Client(name)
    del kept


def test_client_can_be_passed_to_a_process(served, client, start):
    told, ours = mp.Pipe()
    start(ask, client, told, method="spawn")
    assert ours.recv() == 14
    assert client.call(1, timeout=60) == 2


def ask(client: Client, told: Any) -> None:
    told.send(client.call(7, timeout=60))


@pytest.mark.guarantee("service-replies")
def test_10000_requests_of_8_threads_get_their_replies(client):
    def work(thread: int) -> int:
        asked = [(number, client.submit(number)) for number in range(thread, 10_000, 8)]
        return sum(future.result(timeout=120) == 2 * number for number, future in asked)

    with futures.ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(work, range(8))) == 10_000


@pytest.mark.guarantee("service-replies")
def test_10000_coroutines_get_their_replies(client):
    async def all_of_them() -> list[int]:
        return await asyncio.gather(*(client.call_async(number, timeout=240) for number in range(10_000)))

    assert asyncio.run(all_of_them()) == [2 * number for number in range(10_000)]


@pytest.mark.guarantee("service-replies")
def test_calls_of_4_threads_get_their_replies(client):
    def work(thread: int) -> bool:
        return all(client.call(number, timeout=120) == 2 * number for number in range(thread, 4000, 4))

    with futures.ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))


def answer_backwards(service: Service[int]) -> None:
    requests = [service.get() for _ in range(100)]
    for request in reversed(requests):
        request.reply(request.value + 1)
    service.get()


@pytest.mark.guarantee("service-replies")
def test_replies_may_arrive_in_any_order(start, runtime_directory, name):
    start(serve_name, name, answer_backwards)
    with Client(name, timeout=30) as client:
        asked = [client.submit(number) for number in range(100)]
        assert [future.result(timeout=60) for future in asked] == list(range(1, 101))


def fail_all(service: Service[Any]) -> None:
    for request in service:
        if request.value == "drop":
            del request
        elif request.value == "text":
            request.fail("no such thing")
        elif request.value == "unsendable":
            with pytest.raises(shmtree.PickleRefused):
                request.reply(threading.Lock)
        else:
            request.fail(KeyError("missing"))


@pytest.mark.guarantee("service-failures")
def test_service_failure_raises_remote_error_at_the_client(start, runtime_directory, name):
    start(serve_name, name, fail_all)
    with Client(name, timeout=30) as client:
        with pytest.raises(shmtree.RemoteError, match="KeyError: 'missing'") as failed:
            client.call("error", timeout=60)
        assert failed.value.kind == "KeyError"
        for what, why in (("text", "no such thing"), ("drop", "without an answer"), ("unsendable", "PickleRefused")):
            with pytest.raises(shmtree.RemoteError, match=why):
                client.call(what, timeout=60)


class Unknown:
    """A class that only the client has registered."""


@pytest.mark.guarantee("service-failures")
def test_request_that_fails_to_load_fails_alone(served, client):
    client.call(1, timeout=60)
    shmtree.register(Unknown, lambda unknown: 1, lambda flat: Unknown())
    with pytest.raises(shmtree.RemoteError, match="PickleRefused.*Unknown"):
        client.call(Unknown(), timeout=60)
    assert client.call(2, timeout=60) == 4


def tell_and_wait(told: Any) -> None:
    told.send("up")
    signal.pause()


def answer_in_children(service: Service[int]) -> None:
    """Forks one child to answer each request, and one that is killed."""
    context = mp.get_context("fork")
    for _ in range(10):
        request = service.get(timeout=60)
        child = context.Process(target=request.reply, args=(request.value + 1,))
        child.start()
        child.join()
        told, ours = mp.Pipe()
        idle = context.Process(target=tell_and_wait, args=(told,))
        idle.start()
        assert ours.recv() == "up"
        idle.kill()
        idle.join()
        request._replies = None  # a child has answered it


def test_forked_children_of_a_server_may_reply_and_exit(start, runtime_directory, name):
    server = start(serve_name, name, answer_in_children)
    with Client(name, timeout=30) as client:
        assert [client.call(number, timeout=60) for number in range(10)] == list(range(1, 11))
    server.join(60)  # its children have ended too
    assert server.exitcode == 0


def answer_with_unknown(service: Service[Any]) -> None:
    shmtree.register(Unknown, lambda unknown: 1, lambda flat: Unknown())
    for request in service:
        request.reply(Unknown() if request.value == "unknown" else request.value)


@pytest.mark.guarantee("service-failures")
def test_reply_that_fails_to_load_fails_its_request_only(start, runtime_directory, name):
    code = f"""
import shmtree, sys
with shmtree.Client({name!r}, timeout=30) as client:
    for _ in range(3):
        asked = [client.submit(value) for value in (1, "unknown", 2)]
        assert [asked[0].result(60), asked[2].result(60)] == [1, 2]
        assert isinstance(asked[1].exception(60), shmtree.PickleRefused), asked[1].exception()
"""
    start(serve_name, name, answer_with_unknown)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr


def test_call_raises_after_timeout_and_drops_its_reply(start, runtime_directory, name):
    start(serve_name, name, never_answer)
    with Client(name, timeout=30) as client:
        with pytest.raises(TimeoutError, match=r"0\.2 s"):
            client.call(1, timeout=0.2)
        with pytest.raises(TimeoutError, match=r"0\.2 s"):
            asyncio.run(client.call_async(1, timeout=0.2))
        assert client._lines[False]._pending == {}


def test_expired_request_is_not_served(arena):
    service: Service[str] = Service(arena=arena)
    with Client(service.sender) as client:
        with pytest.raises(TimeoutError):
            client.call("late", timeout=0.01)
        future = client.submit("in time")
        assert service.get(timeout=30).value == "in time"
        future.cancel()


def test_call_without_space_raises_timeout_error(arena):
    service: Service[int] = Service(arena=arena, capacity=1)
    with Client(service.sender) as client:
        kept = client.submit(1)
        with pytest.raises(TimeoutError, match="the service had no space for the request"):
            client.call(2, timeout=0.1)
        with pytest.raises(TimeoutError):
            asyncio.run(client.call_async(2, timeout=0.1))
        assert not kept.done()


def test_call_in_a_future_callback_raises_and_submit_works(arena):
    service: Service[int] = Service(arena=arena)
    client = Client(service.sender)
    told: queue.Queue[Any] = queue.Queue()

    def go_on(done: futures.Future[Any]) -> None:
        try:
            client.call(done.result())
        except RuntimeError as error:
            told.put(error)
        try:
            asyncio.run(client.call_async(done.result()))
        except RuntimeError as error:
            told.put(error)
        try:
            client.submit(done.result()).result()
        except RuntimeError as error:
            told.put(error)
        client.submit(done.result()).add_done_callback(lambda second: told.put(second.result()))

    future = client.submit(21)
    future.add_done_callback(go_on)
    service.get(timeout=60).reply(42)

    for _ in range(3):
        assert "submit()" in str(told.get(timeout=60))
    for _ in range(2):
        service.get(timeout=60).reply(84)
    assert told.get(timeout=60) == 84
    client.close()


def test_call_in_a_failure_callback_is_answered(start, runtime_directory, name):
    process = start(serve_name, name, never_answer)
    told: queue.Queue[Any] = queue.Queue()
    served_again = threading.Event()

    def ask_anew(_: object) -> None:
        served_again.wait(60)
        told.put(client.call(21, timeout=60))

    with Client(name, timeout=30) as client:
        client.submit(2).add_done_callback(ask_anew)
        # wait until the server has the request: otherwise another server would get it
        while not client._lines[False]._replies.stats()["senders"]:
            time.sleep(0.01)
        end(process)
        start(serve_name, name)
        while not client._requests.stats()["receivers"]:
            time.sleep(0.01)
        served_again.set()
        assert told.get(timeout=60) == 42


def test_pickle_refusal_names_the_path_in_request_or_reply(arena):
    service: Service[Any] = Service(arena=arena, allow_pickle=False)
    with Client(service.sender) as client:
        with pytest.raises(PickleRefused, match=r'It is at \["f"\] of the message') as refused:
            client.submit({"f": open})
        assert refused.value.path == '["f"]'
        with pytest.raises(PickleRefused, match="It is the message itself"):
            asyncio.run(client.call_async(open))

        future = client.submit(1)
        with pytest.raises(PickleRefused) as refused:
            service.get(timeout=60).reply([1, open])
        assert refused.value.path == "[1]"
        with pytest.raises(RemoteError, match=r"\[1\] of the message"):
            future.result(60)


def test_stats_of_client_and_service_agree(arena):
    service: Service[int] = Service(arena=arena)
    with Client(service.sender) as client:
        kept = [client.submit(x) for x in range(3)]
        assert client.stats()["queued"] == service.stats()["queued"] == 3
        assert client.stats()["receivers"] == 1
        del kept


# --- requests that cannot be loaded now ------------------------------------------------------------------------------


class Alarm(Exception):
    """The exception that the signal handler raises."""


class Signals:
    """Loading an instance sends SIGUSR1 to this process, without running Python code."""


class Scarce:
    """Loading an instance raises MemoryError, `failures[0]` times."""


tries: list[int] = []
failures: list[int] = [0]


def load_scarce(number: int) -> str:
    tries.append(number)
    if len(tries) <= failures[0]:
        raise MemoryError("none for this one")
    return "made"


shmtree.register(Signals, lambda _: int(signal.SIGUSR1), ctypes.CDLL(None)["raise"])
shmtree.register(Scarce, lambda _: 1, load_scarce)


@pytest.mark.usefixtures("no_collector_callbacks")
def test_request_returns_to_service_if_a_signal_handler_raises(arena):
    def raises(*_: Any) -> None:
        raise Alarm

    service: Service[Any] = Service(arena=arena)
    before = signal.signal(signal.SIGUSR1, raises)
    try:
        with Client(service.sender) as client:
            future = client.submit([Signals(), [[number] for number in range(50_000)]])
            for _ in range(10):
                with pytest.raises(Alarm):
                    service.get(timeout=60)
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            request = service.get(timeout=60)
            request.reply(len(request.value[1]))
            del request
            assert future.result(timeout=60) == 50_000
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("failed", [1, 7, 8])
def test_request_fails_after_eight_memory_errors(arena, failed):
    service: Service[Any] = Service(arena=arena)
    tries.clear()
    failures[0] = failed
    with Client(service.sender) as client:
        scarce, other = client.submit(Scarce()), client.submit("other")
        value = None
        while value != "other":
            request = service.get(timeout=60)
            value = request.value
            request.reply(value)
        assert other.result(timeout=60) == "other"
        if failed < 8:
            assert scarce.result(timeout=60) == "made"
        else:
            with pytest.raises(RemoteError, match="none for this one"):
                scarce.result(timeout=60)
    assert len(tries) == min(failed + 1, 8) and service.stats()["dead_letters"] == 0


# --- what others write -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [None, 1, (1, 2), ((1, 2, 3), 4), ((b"", 1, None), 1), ((b"smthand1" + bytes(44), 1, None), 1), (((), 1), 1)],
    ids=repr,
)
def test_malformed_request_is_skipped(arena, message):
    service: Service[int] = Service(arena=arena)
    service.sender._send_requests()
    service.sender.put(message)
    with Client(service.sender) as client:
        future = client.submit(7)
        request = service.get(timeout=30)
        assert request.value == 7
        request.reply(8)
        assert future.result(timeout=30) == 8


@pytest.mark.parametrize("message", [None, 1, (1, 2), ((1, 2, 3), 4), ((99, True), 4), (("1", True), 4)], ids=repr)
def test_malformed_reply_is_skipped(arena, message):
    service: Service[int] = Service(arena=arena)
    with Client(service.sender) as client:
        future = client.submit(7)
        request = service.get(timeout=30)
        request._replies.sender.put(message)  # type: ignore[union-attr]
        request.reply(8)
        assert future.result(timeout=30) == 8
