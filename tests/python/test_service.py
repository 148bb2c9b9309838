"""Requests and replies: answers out of order, from threads and coroutines, and what dies on either side."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing as mp
import os
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
from conftest import START_METHODS

import shmtree
from shmtree import Client, Service
from shmtree._channel import Terms, new_channel


def double_all(service: Service[Any]) -> None:
    for request in service:
        request.reply(request.value * 2)


def serve_name(name: str, handle: Any = double_all) -> None:
    handle(Service(name))


def end(process: Any) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.join(30)


@pytest.fixture
def served(start, runtime_directory, name):
    """The name of a service that doubles, and the process that serves it."""
    process = start(serve_name, name)
    return name, process


@pytest.fixture
def client(served):
    with Client(served[0], timeout=30) as made:
        yield made


def test_a_call_returns_the_answer(client):
    assert client.call(21, timeout=60) == 42
    assert (client.call(np.arange(10_000), timeout=60) == 2 * np.arange(10_000)).all()


@pytest.mark.parametrize("method", START_METHODS)
def test_a_service_without_a_name_is_served_by_a_process_that_is_given_it(start, method):
    service: Service[int] = Service()
    start(double_all, service, method=method)
    sender = service.sender
    with Client(sender) as client:
        assert client.call(21, timeout=60) == 42
    service.close()


def test_a_client_is_given_to_a_process_as_an_argument(served, client, start):
    told, ours = mp.Pipe()
    start(ask, client, told, method="spawn")
    assert ours.recv() == 14
    assert client.call(1, timeout=60) == 2


def ask(client: Client, told: Any) -> None:
    told.send(client.call(7, timeout=60))


def test_ten_thousand_requests_of_eight_threads_each_get_their_answer(client):
    def work(thread: int) -> int:
        asked = [(number, client.submit(number)) for number in range(thread, 10_000, 8)]
        return sum(future.result(timeout=120) == 2 * number for number, future in asked)

    with futures.ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(work, range(8))) == 10_000


def test_ten_thousand_coroutines_each_get_their_answer(client):
    async def all_of_them() -> list[int]:
        return await asyncio.gather(*(client.call_async(number, timeout=240) for number in range(10_000)))

    assert asyncio.run(all_of_them()) == [2 * number for number in range(10_000)]


def test_calls_of_several_threads_each_get_their_answer(client):
    def work(thread: int) -> bool:
        return all(client.call(number, timeout=120) == 2 * number for number in range(thread, 4000, 4))

    with futures.ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))


def answer_backwards(service: Service[int]) -> None:
    requests = [service.get() for _ in range(100)]
    for request in reversed(requests):
        request.reply(request.value + 1)
    service.get()


def test_answers_come_in_any_order(start, runtime_directory, name):
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


def test_what_the_service_fails_fails_at_the_client(start, runtime_directory, name):
    start(serve_name, name, fail_all)
    with Client(name, timeout=30) as client:
        with pytest.raises(shmtree.RemoteError, match="KeyError: 'missing'") as failed:
            client.call("error", timeout=60)
        assert failed.value.kind == "KeyError"
        for what, why in (("text", "no such thing"), ("drop", "without an answer"), ("unsendable", "PickleRefused")):
            with pytest.raises(shmtree.RemoteError, match=why):
                client.call(what, timeout=60)


class Unknown:
    """Registered by the client only."""


def test_a_request_that_cannot_be_loaded_fails_and_the_next_is_served(served, client):
    client.call(1, timeout=60)
    shmtree.register(Unknown, lambda unknown: 1, lambda flat: Unknown())
    with pytest.raises(shmtree.RemoteError, match="PickleRefused.*Unknown"):
        client.call(Unknown(), timeout=60)
    assert client.call(2, timeout=60) == 4


def tell_and_wait(told: Any) -> None:
    told.send("up")
    signal.pause()


def answer_in_children(service: Service[int]) -> None:
    """One for each request, and one that is killed."""
    context = mp.get_context("fork")
    for request in service:
        child = context.Process(target=request.reply, args=(request.value + 1,))
        child.start()
        child.join()
        told, ours = mp.Pipe()
        idle = context.Process(target=tell_and_wait, args=(told,))
        idle.start()
        assert ours.recv() == "up"
        idle.kill()
        idle.join()
        request._replies = None  # it was answered


def test_forked_children_of_a_server_answer_for_it_and_their_death_is_nobodys_concern(start, runtime_directory, name):
    start(serve_name, name, answer_in_children)
    with Client(name, timeout=30) as client:
        assert [client.call(number, timeout=60) for number in range(10)] == list(range(1, 11))


def answer_with_unknown(service: Service[Any]) -> None:
    shmtree.register(Unknown, lambda unknown: 1, lambda flat: Unknown())
    for request in service:
        request.reply(Unknown() if request.value == "unknown" else request.value)


def test_a_reply_that_cannot_be_loaded_fails_its_request_only(start, runtime_directory, name):
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


def never_answer(service: Service[Any]) -> None:
    kept = []
    for request in service:
        kept.append(request)


def test_a_deadline_ends_the_call_and_its_reply_is_nobodys(start, runtime_directory, name):
    start(serve_name, name, never_answer)
    with Client(name, timeout=30) as client:
        with pytest.raises(TimeoutError, match=r"0\.2 s"):
            client.call(1, timeout=0.2)
        with pytest.raises(TimeoutError, match=r"0\.2 s"):
            asyncio.run(client.call_async(1, timeout=0.2))
        assert client._line is not None and client._line._pending == {}


def test_a_request_whose_deadline_has_passed_is_not_served(arena):
    service: Service[str] = Service(arena=arena)
    with Client(service.sender) as client:
        with pytest.raises(TimeoutError):
            client.call("late", timeout=0.01)
        future = client.submit("in time")
        assert service.get(timeout=30).value == "in time"
        future.cancel()


def test_there_is_no_room_and_the_call_says_so(arena):
    service: Service[int] = Service(arena=arena, capacity=1)
    with Client(service.sender) as client:
        kept = client.submit(1)
        with pytest.raises(TimeoutError, match="no room"):
            client.call(2, timeout=0.1)
        with pytest.raises(TimeoutError):
            asyncio.run(client.call_async(2, timeout=0.1))
        assert not kept.done()


# --- deaths ----------------------------------------------------------------------------------------------------------


def test_a_server_that_is_killed_fails_what_is_on_the_way_soon(start, runtime_directory, name):
    server = start(serve_name, name, never_answer)
    with Client(name, timeout=30) as client:
        asked = [client.submit(number) for number in range(100)]
        while client._requests.stats()["received"] < 100:
            time.sleep(0.01)
        end(server)
        for future in asked:
            assert isinstance(future.exception(timeout=30), shmtree.PeerDied)
            assert future.exception().pids == (server.pid,)


def test_a_server_that_is_killed_before_it_heard_of_a_client_fails_its_requests_too(start, runtime_directory, name):
    server = start(wait_for_ever, name)
    clients = [Client(name, timeout=30) for _ in range(3)]
    asked = [client.submit(1) for client in clients]
    end(server)
    for future in asked:
        assert isinstance(future.exception(timeout=30), shmtree.PeerDied)
    for client in clients:
        client.close()


def test_a_name_whose_maker_was_killed_before_it_served_fails_requests_too(runtime_directory, name):
    terms = Terms(0, 0, "raise", keep_open=True)
    _channel, _allow, known = new_channel(None, terms, None, name)
    with Client(name) as client:
        assert isinstance(client.submit(1).exception(timeout=30), shmtree.PeerDied)
    assert known is not None


def wait_for_ever(name: str) -> None:
    service: Service[Any] = Service(name)
    signal.pause()
    service.close()


def test_a_server_that_starts_again_serves_and_does_not_do_what_was_told_to_have_failed(start, runtime_directory, name):
    first = start(wait_for_ever, name)
    with Client(name, timeout=30) as client:
        lost = client.submit("lost")
        end(first)
        assert isinstance(lost.exception(timeout=30), shmtree.PeerDied)
        told, ours = mp.Pipe()
        start(tell_what_is_served, name, told)
        assert ours.recv() == "ready"
        assert client.call("asked anew", timeout=60) == "asked anew"
        assert ours.recv() == "asked anew"


def tell_what_is_served(name: str, told: Any) -> None:
    service: Service[str] = Service(name)
    told.send("ready")
    for request in service:
        told.send(request.value)
        request.reply(request.value)


def test_one_of_two_servers_is_killed_and_the_other_goes_on(start, runtime_directory, name):
    servers = [start(serve_name, name) for _ in range(2)]
    with Client(name, timeout=30) as client:
        while client._requests.stats()["receivers"] < 2:
            time.sleep(0.01)
        while {client.call(1, timeout=60)} and client._line._replies.stats()["senders"] < 2:
            pass
        end(servers[0])
        answers = []
        while len(answers) < 100:
            try:
                answers.append(client.call(1, timeout=60))
            except shmtree.PeerDied as death:
                assert death.pids == (servers[0].pid,)
        assert answers == [2] * 100


def ask_and_be_killed(name: str, told: Any) -> None:
    client = Client(name, timeout=30)
    asked = [client.submit(number) for number in range(500)]
    told.send(asked[0].result(60))
    os.kill(os.getpid(), signal.SIGKILL)


def test_clients_that_are_killed_do_not_stop_the_server(served, client, start):
    name, _server = served
    for _ in range(4):
        told, ours = mp.Pipe()
        child = start(ask_and_be_killed, name, told)
        assert ours.recv() == 0
        child.join(30)
    assert client.call(21, timeout=60) == 42


def test_a_service_lets_go_of_clients_that_have_gone(arena, monkeypatch):
    monkeypatch.setattr("shmtree._service._FEW", 4)
    service: Service[int] = Service(arena=arena)
    thread = threading.Thread(target=double_all, args=(service,))
    thread.start()
    for number in range(20):
        with Client(service.sender) as client:
            assert client.call(number, timeout=60) == 2 * number
    assert len(service._clients) <= 64
    service._forget_gone()
    assert len(service._clients) == 0
    service.close()
    thread.join(30)


def exit_with_a_request(name: str) -> None:
    global kept_request
    kept_request = Service(name).get()


kept_request: Any = None


def test_a_server_that_exits_fails_what_it_has_not_answered(start, runtime_directory, name):
    keeper: Service[Any] = Service(name)  # so that somebody is left who serves
    start(exit_with_a_request, name)
    with Client(name) as client, pytest.raises(shmtree.RemoteError, match="without an answer"):
        client.call(1, timeout=60)
    keeper.close()


# --- closing, and forks ----------------------------------------------------------------------------------------------


def replying_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "shmtree-replies"]


@pytest.fixture
def no_threads() -> None:
    """Those of the tests before have ended."""
    for thread in replying_threads():
        thread.join(30)
    assert replying_threads() == []


def test_a_thread_comes_when_it_is_needed_and_goes_with_the_client(no_threads, served):
    client = Client(served[0], timeout=30)
    assert client.call(1, timeout=60) == 2
    assert replying_threads() == []
    assert client.submit(1).result(timeout=60) == 2
    (thread,) = replying_threads()
    assert client.call(1, timeout=60) == 2
    client.close()
    client.close()
    thread.join(30)
    assert not thread.is_alive()
    with pytest.raises(shmtree.ChannelClosed):
        client.call(1)


def test_a_client_that_is_waited_for_stays_and_one_that_is_dropped_goes(no_threads, arena):
    service: Service[int] = Service(arena=arena)
    future = Client(service.sender).submit(21)
    gc.collect()
    (thread,) = replying_threads()
    service.get(timeout=30).reply(42)
    assert future.result(timeout=60) == 42
    del future
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()


def test_what_is_on_the_way_when_the_client_is_closed_fails(arena):
    service: Service[int] = Service(arena=arena)
    client = Client(service.sender)
    asked = [client.submit(number) for number in range(2)]
    request = service.get(timeout=30)
    client.close()
    for future in asked:
        assert isinstance(future.exception(timeout=30), shmtree.ChannelClosed)
    assert request.reply(2) is False
    with pytest.raises(queue.Empty):
        service.get(timeout=0.1)  # nobody waits for the other one


def test_a_request_is_answered_once(arena):
    service: Service[int] = Service(arena=arena)
    with Client(service.sender) as client:
        future = client.submit(1)
        request = service.get(timeout=30)
        assert request.reply(2) is True
        with pytest.raises(ValueError, match="answered"):
            request.reply(3)
        assert future.result(timeout=30) == 2


def test_a_closed_service_ends_its_loop(arena):
    service: Service[int] = Service(arena=arena)
    threading.Timer(0.1, service.close).start()
    assert list(service) == []
    service.close()


def test_a_coroutine_serves(arena):
    service: Service[int] = Service(arena=arena)

    async def serve() -> None:
        async for request in service:
            request.reply(request.value + 1)
            if request.value == 9:
                service.close()

    async def both() -> list[int]:
        serving = asyncio.create_task(serve())
        with Client(service.sender) as client:
            answers = [await client.call_async(number, timeout=60) for number in range(10)]
        await serving
        return answers

    assert asyncio.run(both()) == list(range(1, 11))


def test_a_forked_child_asks_by_the_client_of_its_parent_and_gets_its_own_answers(served, client):
    asked = [client.submit(number) for number in range(100)]
    told, ours = mp.Pipe()

    def in_child() -> None:
        theirs = all(
            isinstance(future.exception(timeout=30), shmtree.ChannelClosed) or future.done() for future in asked
        )
        told.send((theirs, [client.call(number, timeout=60) for number in range(50)]))

    child = mp.get_context("fork").Process(target=in_child)
    child.start()
    assert ours.recv() == (True, [2 * number for number in range(50)])
    child.join(30)
    assert [future.result(timeout=60) for future in asked] == [2 * number for number in range(100)]
    assert client.call(3, timeout=60) == 6


def test_a_cancelled_request_takes_no_reply(arena):
    service: Service[int] = Service(arena=arena)
    with Client(service.sender) as client:
        cancelled, other = client.submit(1), client.submit(2)
        assert cancelled.cancel()
        for _ in range(2):
            service.get(timeout=30).reply("answer")
        assert other.result(timeout=30) == "answer"
        assert cancelled.cancelled()


def test_bad_arguments_are_refused(arena):
    with pytest.raises(TypeError, match="name of a Service"):
        Client(7)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        Client("nobody-made-this-name")


# --- what others write -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [None, 1, (1, 2), ((1, 2, 3), 4), ((b"", 1, None), 1), ((b"smthand1" + bytes(44), 1, None), 1), (((), 1), 1)],
    ids=repr,
)
def test_what_is_no_request_is_passed_over(arena, message):
    service: Service[int] = Service(arena=arena)
    service.sender.put(message)
    with Client(service.sender) as client:
        future = client.submit(7)
        request = service.get(timeout=30)
        assert request.value == 7
        request.reply(8)
        assert future.result(timeout=30) == 8


@pytest.mark.parametrize("message", [None, 1, (1, 2), ((1, 2, 3), 4), ((99, True), 4), (("1", True), 4)], ids=repr)
def test_what_is_no_reply_is_passed_over(arena, message):
    service: Service[int] = Service(arena=arena)
    with Client(service.sender) as client:
        future = client.submit(7)
        request = service.get(timeout=30)
        request._replies.put(message)
        request.reply(8)
        assert future.result(timeout=30) == 8
