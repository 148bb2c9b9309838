"""Requests and replies: servers and clients that die, close, exit and fork."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing as mp
import os
import pathlib
import queue
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
from services import double_all, end, never_answer, serve_name

import shmtree
from shmtree import Client, Service, _core
from shmtree._ipc.request import reply_senders

# --- clients that are stopped ----------------------------------------------------------------------------------------


def ask_and_stop(name: str, count: int) -> None:
    client = Client(name, timeout=30, arena=shmtree.Arena(8 << 20))
    asked = [client.submit(None) for _ in range(count)]
    os.kill(os.getpid(), signal.SIGSTOP)
    asked[-1].result(timeout=60)


@pytest.mark.guarantee("service-stopped-client")
def test_stopped_client_delays_only_its_first_replies(start, runtime_directory, name):
    service: Service[None] = Service(name)
    client = start(ask_and_stop, name, 60)
    requests = [service.get(timeout=30) for _ in range(60)]
    while (pathlib.Path("/proc") / str(client.pid) / "stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)

    large = np.zeros(1 << 20, np.uint8)
    began = time.monotonic()
    sent = [request.reply(large, timeout=1.0) for request in requests[:-1]]
    took = time.monotonic() - began
    os.kill(client.pid, signal.SIGCONT)

    assert sent[0] and not any(sent[20:])
    assert took < 20  # far less than the timeout of one second for each reply
    assert requests[-1].reply(large, timeout=30)  # this timeout is longer than the total of the failed waits
    client.join(60)
    assert client.exitcode == 0
    service.close()


# --- deaths ----------------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("service-dead-server")
def test_killed_server_fails_requests_in_flight(start, runtime_directory, name):
    server = start(serve_name, name, never_answer)
    with Client(name, timeout=30) as client:
        asked = [client.submit(number) for number in range(100)]
        while client._requests.stats()["received"] < 100:
            time.sleep(0.01)
        end(server)
        for future in asked:
            assert isinstance(future.exception(timeout=30), shmtree.PeerDied)
            assert future.exception().pids == (server.pid,)


@pytest.mark.guarantee("service-dead-server")
def test_server_killed_before_its_first_get_fails_requests(start, runtime_directory, name):
    server = start(wait_for_ever, name)
    clients = [Client(name, timeout=30) for _ in range(3)]
    asked = [client.submit(1) for client in clients]
    end(server)
    for future in asked:
        assert isinstance(future.exception(timeout=30), shmtree.PeerDied)
    for client in clients:
        client.close()


@pytest.mark.guarantee("service-dead-server")
def test_name_whose_creator_died_before_serving_fails_requests(runtime_directory, name):
    _channel, known = _core.make_channel("service", name=name, keep_open=True)
    with Client(name) as client:
        assert isinstance(client.submit(1).exception(timeout=30), shmtree.PeerDied)
    assert known is not None


@pytest.mark.guarantee("service-dead-server")
def test_error_says_if_a_server_may_have_handled_the_request(start, runtime_directory, name):
    handled, never = "a server may have handled this request", "; no server has handled this request"
    server = start(serve_name, name, never_answer)
    with Client(name, timeout=30) as client:
        taken = client.submit(1)
        while client._requests.stats()["received"] < 1:
            time.sleep(0.01)
        end(server)
        assert handled in str(taken.exception(timeout=30))
        idle = start(wait_for_ever, name)
        client._requests.wait_for_receivers(1, timeout=30)
        waiting = client.submit(2)
        end(idle)
        assert str(waiting.exception(timeout=30)).endswith(f"{idle.pid} was killed{never}")


def test_error_without_a_server_says_that_none_has_handled_it():
    never = "no server process is left; no server has handled this request"
    service: Service[int] = Service(capacity=1)
    client = Client(service)
    service.close()
    for _ in range(2):  # the first request stays in the channel; there is no space for the second
        with pytest.raises(shmtree.PeerDied) as raised:
            client.call(1, timeout=30)
        assert str(raised.value) == never
    asked = Client(Service(keep_open=True))
    with pytest.raises(shmtree.PeerDied, match="no server process is left; a server that starts later may handle"):
        asked.call(1, retry=0.1)


def wait_for_ever(name: str) -> None:
    service: Service[Any] = Service(name)
    signal.pause()
    service.close()


@pytest.mark.guarantee("service-dead-server")
def test_restarted_server_does_not_serve_failed_requests(start, runtime_directory, name):
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


def be_killed_on_the_first_request(name: str) -> None:
    service: Service[int] = Service(name)
    service._open_replies = lambda handle: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign,assignment]
    service.get()


def serve_after(name: str, told: Any) -> None:
    service: Service[int] = Service(name)
    told.recv()
    double_all(service)


@pytest.mark.guarantee("service-killed-request")
def test_request_unread_by_a_killed_server_reaches_another(start, runtime_directory, name):
    told, ours = mp.Pipe()
    other = start(serve_after, name, told)
    with Client(name, timeout=30) as client:
        while not client.stats()["receivers"]:
            time.sleep(0.01)
        killed = start(be_killed_on_the_first_request, name)
        asked = client.submit(21)
        killed.join(30)
        assert killed.exitcode == -signal.SIGKILL
        ours.send("serve")
        assert asked.result(timeout=60) == 42
    assert other.is_alive()


@pytest.mark.guarantee("service-dead-server")
def test_surviving_server_keeps_replying_after_a_kill(start, runtime_directory, name):
    servers = [start(serve_name, name) for _ in range(2)]
    with Client(name, timeout=30) as client:
        while client._requests.stats()["receivers"] < 2:
            time.sleep(0.01)
        while {client.call(1, timeout=60)} and client._lines[False]._replies.stats()["senders"] < 2:
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


@pytest.mark.guarantee("service-failures")
def test_killed_clients_do_not_stop_the_server(served, client, start):
    name, _server = served
    for _ in range(4):
        told, ours = mp.Pipe()
        child = start(ask_and_be_killed, name, told)
        assert ours.recv() == 0
        child.join(30)
    assert client.call(21, timeout=60) == 42


@pytest.mark.guarantee("service-failures")
def test_service_forgets_closed_clients(arena):
    service: Service[int] = Service(arena=arena)
    thread = threading.Thread(target=double_all, args=(service,))
    thread.start()
    for number in range(200):
        with Client(service.sender) as client:
            assert client.call(number, timeout=60) == 2 * number
    assert len(reply_senders) <= 65
    service.close()
    thread.join(30)


def exit_with_a_request(name: str) -> None:
    global kept_request
    kept_request = Service(name).get()


kept_request: Any = None


@pytest.mark.guarantee("service-failures")
def test_exiting_server_fails_its_unanswered_requests(start, runtime_directory, name):
    keeper: Service[Any] = Service(name)  # keeps one server attached
    start(exit_with_a_request, name)
    with Client(name) as client, pytest.raises(shmtree.RemoteError, match="without an answer"):
        client.call(1, timeout=60)
    keeper.close()


# --- closing, and forks ----------------------------------------------------------------------------------------------


def replying_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "shmtree-replies"]


@pytest.fixture
def no_threads() -> None:
    """Waits for the threads of earlier tests to end."""
    for thread in replying_threads():
        thread.join(30)
    assert replying_threads() == []


def test_reply_thread_starts_on_submit_and_ends_at_close(no_threads, served):
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


def test_client_lives_while_a_future_waits_for_it(no_threads, arena):
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


def test_close_fails_requests_in_flight(arena):
    service: Service[int] = Service(arena=arena)
    client = Client(service.sender)
    asked = [client.submit(number) for number in range(2)]
    request = service.get(timeout=30)
    client.close()
    for future in asked:
        assert isinstance(future.exception(timeout=30), shmtree.ChannelClosed)
    assert request.reply(2) is False
    with pytest.raises(queue.Empty):
        service.get(timeout=0.1)  # the other request was dropped: its client does not wait for it


def test_request_is_answered_once(arena):
    service: Service[int] = Service(arena=arena)
    with Client(service.sender) as client:
        future = client.submit(1)
        request = service.get(timeout=30)
        assert request.reply(2) is True
        with pytest.raises(ValueError, match="answered"):
            request.reply(3)
        assert future.result(timeout=30) == 2


def test_coroutine_can_serve_requests(arena):
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


@pytest.mark.guarantee("service-replies")
def test_forked_child_uses_the_client_of_its_parent(served, client):
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


def test_cancelled_request_takes_no_reply(arena):
    service: Service[int] = Service(arena=arena)
    with Client(service.sender) as client:
        cancelled, other = client.submit(1), client.submit(2)
        assert cancelled.cancel()
        for _ in range(2):
            service.get(timeout=30).reply("answer")
        assert other.result(timeout=30) == "answer"
        assert cancelled.cancelled()


def test_invalid_client_arguments_raise(arena):
    with pytest.raises(TypeError, match="name of a Service"):
        Client(7)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        Client("a-name-that-does-not-exist")
