"""Several requests at once: get_many, get_batch, serve and call_many."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import queue
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shmtree import Client, RemoteError, Service


@pytest.fixture
def service(arena):
    with Service[Any](arena=arena) as made:
        yield made


@pytest.fixture
def asking(service):
    with Client[Any, Any](service.sender) as made:
        yield made


def test_get_many_requests_waits_within_for_more(service, asking):
    first = asking.submit(1)

    def ask_later() -> None:
        while service.stats()["received"] < 1:
            time.sleep(0.001)
        asking.submit(2)

    thread = threading.Thread(target=ask_later)
    thread.start()
    requests = service.get_many(2, timeout=60, within=60)
    thread.join(60)
    assert [request.value for request in requests] == [1, 2]
    requests[0].reply("one")
    assert first.result(60) == "one"


def test_get_many_requests_returns_what_came_within(service, asking):
    asked = [asking.submit(number) for number in range(3)]
    assert [request.value for request in service.get_many(2, timeout=60)] == [0, 1]
    assert [request.value for request in service.get_many(2, timeout=60, within=0.01)] == [2]
    with pytest.raises(queue.Empty):
        service.get_many(2, timeout=0)
    with pytest.raises(ValueError, match="n is 0"):
        service.get_many(0)
    with pytest.raises(TypeError, match="within"):
        service.get_many(1, within="soon")
    del asked


def test_signal_handler_in_get_many_loses_no_request(service, asking):
    def raises(*_: Any) -> None:
        raise OSError("from the handler")

    def interrupt() -> None:
        while service.stats()["received"] < 2:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGUSR1)

    asked = [asking.submit(number) for number in range(2)]
    before = signal.signal(signal.SIGUSR1, raises)
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        with pytest.raises(OSError, match="from the handler"):
            service.get_many(3, timeout=60, within=60)
        thread.join(60)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [request.value for request in service.get_many(2, timeout=60)] == [0, 1]
    del asked


@pytest.mark.parametrize("size", [3, 100_000])
def test_batch_stacks_arrays_and_replies_row_by_row(service, asking, size):
    asked = [asking.submit({"x": np.full(size, number, "f4"), "n": number}) for number in range(4)]
    batch = service.get_batch(4, timeout=60)
    assert len(batch) == 4
    assert batch.value["x"].shape == (4, size)
    assert batch.value["n"].tolist() == [0, 1, 2, 3]
    assert batch.reply({"sum": batch.value["x"].sum(axis=1), "twice": (2 * batch.value["x"],)}) == 4
    for number, future in enumerate(asked):
        reply = future.result(60)
        assert reply["sum"] == number * size
        assert (reply["twice"][0] == 2 * number).all()


def test_batch_stacks_tensors(service, asking):
    torch = pytest.importorskip("torch")
    asked = [asking.submit((torch.full((5,), number), torch.ones(2))) for number in range(2)]
    batch = service.get_batch(2, timeout=60)
    assert batch.value[0].shape == (2, 5)
    batch.reply(batch.value[0].sum(dim=1))
    assert [int(future.result(60)) for future in asked] == [0, 5]


def test_batch_of_different_shapes_raises_and_keeps_requests(service, asking):
    asked = [asking.submit({"x": np.zeros(size)}) for size in (2, 3, 2)]
    with pytest.raises(ValueError, match=r"\{'x': float64\[2\]\} and \{'x': float64\[3\]\}"):
        service.get_batch(3, timeout=60)
    for request in service.get_many(3, timeout=60):
        request.reply(request.value["x"].size)
    assert [future.result(60) for future in asked] == [2, 3, 2]


def exit_code_of_child(function: Callable[[], bool]) -> int:
    """Returns 0 if the function returns True in a forked child."""
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            code = 0 if function() else 1
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_forked_child_does_not_get_requests_that_were_kept(service, asking):
    asked = [asking.submit(np.zeros(size)) for size in (2, 3)]
    with pytest.raises(ValueError, match="same arrays"):
        service.get_batch(2, timeout=60, within=60)

    def finds_none() -> bool:
        with pytest.raises(queue.Empty):
            service.get(timeout=0)
        return True

    assert exit_code_of_child(finds_none) == 0
    for request in service.get_many(2, timeout=60):
        request.reply("parent")
    assert [future.result(60) for future in asked] == ["parent", "parent"]


def test_request_of_a_waiting_client_is_not_cancelled_in_a_child(service, asking):
    asked = asking.submit(1)
    request = service.get(timeout=60)
    assert exit_code_of_child(lambda: not request.cancelled and request.reply("child")) == 0
    assert asked.result(60) == "child"


def test_batch_result_of_wrong_length_raises_before_any_reply(service, asking):
    asked = [asking.submit(np.zeros(2)) for _ in range(2)]
    batch = service.get_batch(2, timeout=60)
    with pytest.raises(ValueError, match="the result has 3 rows; the batch has 2 requests"):
        batch.reply({"a": [1, 2], "b": np.zeros(3)})
    batch.requests[0].reply("single")
    batch.fail("no result")
    assert asked[0].result(60) == "single"
    with pytest.raises(RemoteError, match="no result"):
        asked[1].result(60)


# --- serve ------------------------------------------------------------------------------------------------------------


def halve(value: Any) -> Any:
    if isinstance(value, str):
        raise KeyError(value)
    return value / 2


def handles_sigterm(pid: int) -> bool:
    """Returns True once the process has begun to serve."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def serve_halves(name: str, options: dict[str, Any]) -> None:
    Service[Any](name).serve(halve, **options)


def test_serve_stops_while_it_waits_for_a_full_batch(start, runtime_directory, name):
    server = start(serve_halves, name, {"batch": 2, "within": None})
    with Client[Any, Any](name, timeout=60) as client:
        assert client.call_many([np.ones(1)] * 4, timeout=60) == [np.array([0.5])] * 4
        asked = client.submit(np.ones(1))
        while client.stats()["received"] < 5:
            time.sleep(0.01)
        os.kill(server.pid, signal.SIGTERM)
        assert asked.result(60) == np.array([0.5])
    server.join(60)
    assert server.exitcode == 0


@pytest.mark.parametrize("options", [{}, {"batch": 8, "within": 0.001}, {"workers": 3}, {"batch": 4, "workers": 2}])
def test_serve_answers_and_a_raising_function_fails_its_request(start, runtime_directory, name, options):
    processes = [start(serve_halves, name, options) for _ in range(2)]
    with Client[Any, Any](name, timeout=60) as client:
        assert client.call_many(range(300), timeout=60) == [number / 2 for number in range(300)]
        for size in (2, 3):
            assert (client.call(np.ones(size), timeout=60) == 0.5).all()
        if "batch" not in options:
            with pytest.raises(RemoteError, match="KeyError: 'wrong'"):
                client.call("wrong", timeout=60)
        mixed = client.call_many([np.ones(size) for size in (1, 2, 3)] * 5, timeout=60)
        assert [reply.size for reply in mixed] == [1, 2, 3] * 5
        for process in processes:
            while not handles_sigterm(process.pid):
                time.sleep(0.01)
            os.kill(process.pid, signal.SIGTERM)
    for process in processes:
        process.join(60)
        assert process.exitcode == 0


def test_function_that_raises_fails_its_whole_batch(service, asking):
    thread = threading.Thread(target=service.serve, args=(lambda batch: 1 // 0,), kwargs={"batch": 4})
    thread.start()
    for future in [asking.submit(np.zeros(1)) for _ in range(4)]:
        with pytest.raises(RemoteError, match="ZeroDivisionError"):
            future.result(60)
    with pytest.raises(RemoteError, match="ZeroDivisionError"):
        asking.call(np.zeros(1), timeout=60)
    service.close()
    thread.join(60)


def wait_then_answer(name: str, begun: Any, go_on: Any) -> None:
    def answer(value: Any) -> Any:
        begun.set()
        go_on.wait(60)
        return value

    Service[Any](name).serve(answer)


def test_sigterm_finishes_the_request_that_has_begun(start, runtime_directory, name):
    begun, go_on = mp.get_context("fork").Event(), mp.get_context("fork").Event()
    server = start(wait_then_answer, name, begun, go_on)
    with Client[Any, Any](name, timeout=60) as client:
        begun_one = client.submit("begun")
        assert begun.wait(60)
        os.kill(server.pid, signal.SIGTERM)
        other = client.submit("not begun")
        go_on.set()
        assert begun_one.result(60) == "begun"
        server.join(60)
        assert server.exitcode == 0
        assert "no server has handled this request" in str(other.exception(60))


def test_call_many_raises_the_first_error_and_forgets_the_rest(service, asking):
    thread = threading.Thread(target=service.serve, args=(halve,))
    thread.start()
    with pytest.raises(RemoteError, match="KeyError"):
        asking.call_many([1, "wrong", 2], timeout=60)
    assert asking.call_many([], timeout=60) == []
    assert asking.call(3, timeout=60) == 1.5
    service.close()
    thread.join(60)
