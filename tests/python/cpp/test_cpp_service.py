"""C++ and Python serve each other's requests."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import shmtree

PROGRAMS = os.environ.get("SHMTREE_PROGRAMS")

pytestmark = pytest.mark.skipif(not PROGRAMS, reason="SHMTREE_PROGRAMS does not say where the C++ programs were built")


@pytest.fixture
def name() -> str:
    return f"cpp-service-{uuid.uuid4().hex}"


@contextlib.contextmanager
def cpp_server(name: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [str(pathlib.Path(PROGRAMS or "") / "service_peer"), "serve", name, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "serving\n"
        yield server
        server.kill()


def cpp_client(what: str, name: str, argument: str) -> list[str]:
    command = [str(pathlib.Path(PROGRAMS or "") / "service_peer"), what, name, argument]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()


@contextlib.contextmanager
def python_server(name: str) -> Iterator[shmtree.Service[Any]]:
    with shmtree.Service[Any](name) as service:
        thread = threading.Thread(target=serve, args=(service,))
        thread.start()
        yield service
        service.close()
        thread.join(60)


def serve(service: shmtree.Service[Any]) -> None:
    for request in service:
        what = request.value["do"]
        if what == "double":
            request.reply({"values": 2 * request.value["values"]})
        elif what == "fail":
            request.fail(LookupError("no such thing"))
        del request  # drops it, if it was not answered


def test_cpp_server_answers_python_clients(name: str) -> None:
    with cpp_server(name), shmtree.Client(name, timeout=60) as client:
        for size in (3, 100_000):
            values = np.arange(float(size))
            reply = client.call({"do": "double", "values": values}, timeout=60)
            np.testing.assert_array_equal(reply["values"], 2 * values)
        futures = [client.submit({"do": "double", "values": np.full(2, n, float)}) for n in range(300)]
        for n, future in enumerate(futures):
            assert future.result(timeout=60)["values"][0] == 2 * n


def test_python_server_answers_cpp_clients(name: str) -> None:
    with python_server(name):
        assert cpp_client("call", name, "double") == ["2.000000", "5.000000"]
        assert cpp_client("many", name, "300") == [f"{300 * 299:.6f}"]


def test_cpp_server_answers_cpp_clients(name: str) -> None:
    with cpp_server(name) as server:
        assert cpp_client("call", name, "double") == ["2.000000", "5.000000"]
        assert cpp_client("call", name, "pid") == [str(server.pid)]


@pytest.mark.guarantee("service-failures")
def test_cpp_server_fails_and_drops_requests_of_python(name: str) -> None:
    with cpp_server(name), shmtree.Client(name, timeout=60) as client:
        with pytest.raises(shmtree.RemoteError, match="ValueError: no such thing") as failed:
            client.call({"do": "fail"}, timeout=60)
        assert failed.value.kind == "ValueError"
        assert not failed.value.dropped
        with pytest.raises(shmtree.RemoteError, match="dropped the request") as dropped:
            client.call({"do": "drop"}, timeout=60)
        assert dropped.value.dropped


@pytest.mark.guarantee("service-failures")
def test_python_server_fails_and_drops_requests_of_cpp(name: str) -> None:
    with python_server(name):
        assert cpp_client("call", name, "fail") == ["remote error LookupError not dropped: LookupError: no such thing"]
        (line,) = cpp_client("call", name, "drop")
        assert line == "remote error  dropped: the server dropped the request without an answer"


@pytest.mark.guarantee("service-dead-server")
def test_killed_cpp_server_fails_requests_of_python(name: str) -> None:
    with cpp_server(name) as server, shmtree.Client(name, timeout=60) as client:
        future = client.submit({"do": "hold"})
        assert server.stdout is not None
        assert server.stdout.readline() == "holding\n"
        server.kill()
        with pytest.raises(shmtree.PeerDied, match="may have handled this request") as died:
            future.result(timeout=60)
        assert died.value.pids == (server.pid,)


@pytest.mark.guarantee("service-waits")
def test_python_client_waits_for_the_next_cpp_server(name: str) -> None:
    service = shmtree.Service[Any](name, keep_open="both")
    with cpp_server(name, "both") as first, shmtree.Client(service) as client:
        service.close()
        future = client.submit({"do": "hold"})
        assert first.stdout is not None
        assert first.stdout.readline() == "holding\n"
        first.kill()
        with pytest.raises(shmtree.PeerDied):
            future.result(timeout=60)
        waiting = client.submit({"do": "pid"})
        with cpp_server(name, "both") as second:
            assert waiting.result(timeout=60) == second.pid


def test_forked_python_clients_get_replies_of_a_cpp_server(name: str) -> None:
    with cpp_server(name), shmtree.Client(name, timeout=60) as client:
        assert client.call({"do": "double", "values": np.ones(1)}, timeout=60)["values"][0] == 2
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = int(client.call({"do": "double", "values": np.ones(1)}, timeout=60)["values"][0] != 2)
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert client.call({"do": "double", "values": np.ones(1)}, timeout=60)["values"][0] == 2


def test_cpp_server_takes_requests_with_values_of_python(name: str) -> None:
    with cpp_server(name), shmtree.Client(name, timeout=60) as client:
        assert isinstance(client.call({"do": "pid", "more": {1, 2}}, timeout=60), int)
