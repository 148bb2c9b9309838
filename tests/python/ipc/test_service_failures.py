"""Answers of a `Service` that cannot be sent, and failures that a server reports."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
from services import serve_name

import shmtree
from shmtree import Client, PickleRefused, RemoteError, Service
from shmtree._ipc import service as service_module


class Unprintable(Exception):
    """An error that raises another error in str()."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Text(str):
    """A subclass of str that is not a native kind."""


UNSENDABLE: dict[str, Any] = {"class": threading.Lock, "lock": threading.Lock(), "generator": (x for x in ())}
ERRORS: dict[str, Any] = {
    "unprintable": Unprintable(),
    "subclass": Text("own class"),
    "surrogate": ValueError("\udc80"),
    "subclass in an error": ValueError(Text("own class")),
}


def answer_as_the_recipe(service: Service[str]) -> None:
    for request in service:
        answer_one(request)


def answer_one(request: shmtree.Request[str]) -> None:
    try:
        if request.value in ERRORS:
            request.fail(ERRORS[request.value])
        else:
            request.reply(UNSENDABLE.get(request.value, request.value))
    except Exception as error:
        request.fail(error)


def answer_coroutines(service: Service[str]) -> None:
    async def serve() -> None:
        async for request in service:
            answer_one(request)

    asyncio.run(serve())


@pytest.mark.guarantee("service-failures")
@pytest.mark.parametrize("serve", [answer_as_the_recipe, answer_coroutines])
def test_server_survives_unsendable_replies(start, runtime_directory, name, serve):
    process = start(serve_name, name, serve)
    with Client(name, timeout=30) as client:
        for value in UNSENDABLE:
            with pytest.raises(RemoteError, match="pickle") as failed:
                client.call(value, timeout=60)
            assert failed.value.kind == "PickleRefused"
        for value, text in zip(ERRORS, ("RuntimeError", "own class", "ValueError", "own class"), strict=True):
            with pytest.raises(RemoteError, match=text):
                client.call(value, timeout=60)
        assert client.call("served", timeout=60) == "served"
    assert process.is_alive()


def test_fail_after_a_failed_reply_keeps_the_error_of_the_reply(arena):
    service: Service[int] = Service(arena=arena, allow_pickle=False)
    with Client(service.sender) as client:
        future = client.submit(1)
        request = service.get(timeout=60)
        with pytest.raises(PickleRefused):
            request.reply(open)
        assert request.fail(KeyError("later"))
        assert not request.reply("later")
        assert request.fail("later still")
        with pytest.raises(RemoteError, match="PickleRefused"):
            future.result(timeout=60)


def test_request_can_fail_after_a_reply_ran_out_of_memory(arena):
    service: Service[int] = Service(arena=arena)
    with shmtree.Arena(max_bytes=8 << 20) as small, Client(service.sender, arena=small) as client:
        kept = small.new_empty((6 << 20,), "uint8")
        future = client.submit(1)
        request = service.get(timeout=60)
        with pytest.raises(shmtree.OutOfSharedMemory) as without:
            request.reply(np.zeros(6 << 20, "uint8"))
        assert request.fail(without.value)
        with pytest.raises(RemoteError, match="OutOfSharedMemory"):
            future.result(timeout=60)
        del kept


def test_failure_text_without_memory_is_shortened(arena):
    service: Service[int] = Service(arena=arena)
    with shmtree.Arena(max_bytes=8 << 20) as small, Client(service.sender, arena=small) as client:
        future = client.submit(1)
        assert service.get(timeout=60).fail(ValueError("é" * (9 << 20)))
        with pytest.raises(RemoteError, match=r"^ValueError: \\xe9.*\.\.\.$"):
            future.result(timeout=60)


@pytest.mark.guarantee("service-failures")
def test_unsent_failure_is_sent_later(arena):
    service: Service[int] = Service(arena=arena, allow_pickle=False)

    class LacksMemory:
        def send(self, *_: Any) -> bool:
            raise MemoryError

    with Client(service.sender) as client:
        futures = [client.submit(number) for number in range(2)]
        requests = [service.get(timeout=60) for _ in range(2)]
        for request in requests:
            replies, request._replies = request._replies, LacksMemory()  # type: ignore[assignment]
            with pytest.raises(MemoryError):
                request.reply(1)
            assert not request.fail("not this")
            request._replies = replies
        assert requests[0].fail("nor this")
        del request, requests
        for future in futures:
            with pytest.raises(RemoteError, match="MemoryError"):
                future.result(timeout=60)


def test_request_whose_client_cannot_be_opened_is_skipped(arena, monkeypatch):
    service: Service[int] = Service(arena=arena)
    errors = [MemoryError(), shmtree.OutOfSharedMemory("no addresses"), OSError(24, "too many files")]
    replies = service_module.open_replies

    def fail_first(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return replies(*arguments)

    monkeypatch.setattr(service_module, "open_replies", fail_first)
    with Client(service.sender) as client:
        for number in range(4):
            client.submit(number)
        assert service.get(timeout=60).value == 3


class Ends:
    """Loading an instance raises SystemExit, while `ending` is set."""


ending = threading.Event()


def load_ends(number: int) -> str:
    if ending.is_set():
        raise SystemExit("ends the server")
    return "loaded"


shmtree.register(Ends, lambda _: 1, load_ends)


@pytest.mark.parametrize("times", [7, 8])
def test_request_fails_after_eight_system_exits_in_loading(arena, times):
    service: Service[Any] = Service(arena=arena)
    ending.set()
    with Client(service.sender) as client:
        futures = [client.submit(Ends()), client.submit("next")]
        for _ in range(times):
            with pytest.raises(SystemExit):
                service.get(timeout=60)
        ending.clear()
        for _ in range(9 - times):
            request = service.get(timeout=60)
            request.reply(request.value)
        assert futures[1].result(timeout=60) == "next"
        if times < 8:
            assert futures[0].result(timeout=60) == "loaded"
        else:
            with pytest.raises(RemoteError, match="SystemExit: ends the server"):
                futures[0].result(timeout=60)
    assert service.stats()["dead_letters"] == 0


def test_unanswered_request_fails_when_the_loop_continues(start, runtime_directory, name):
    start(serve_name, name, pass_over_some)
    with Client(name, timeout=30) as client:
        held = client.submit("pass over")
        assert client.call("answer", timeout=60) == "answer"
        with pytest.raises(RemoteError, match="dropped the request without an answer"):
            held.result(timeout=60)


def pass_over_some(service: Service[str]) -> None:
    for request in service:
        if request.value == "pass over":
            continue
        request.reply(request.value)
