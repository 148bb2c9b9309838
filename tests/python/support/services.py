"""Servers and clients for tests of requests and replies."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from shmtree import Client, Service


def double_all(service: Service[Any]) -> None:
    for request in service:
        request.reply(request.value * 2)


def serve_name(name: str, handle: Any = double_all) -> None:
    handle(Service(name))


def end(process: Any) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.join(30)


def never_answer(service: Service[Any]) -> None:
    kept = []
    for request in service:
        kept.append(request)


@pytest.fixture
def served(start, runtime_directory, name):
    """Returns the name of a service that doubles numbers, and the process that serves it."""
    process = start(serve_name, name)
    return name, process


@pytest.fixture
def client(served):
    with Client(served[0], timeout=30) as made:
        yield made
