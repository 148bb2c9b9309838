"""Functions that other processes run in the tests of Broadcast."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from typing import Any

import shmtree


def report_all(subscriber: shmtree.Subscriber, told: Connection) -> None:
    """Sends each message that it receives through the pipe, and then the name of the error that ended the stream."""
    told.send("ready")
    try:
        while True:
            told.send(subscriber.get(timeout=100))
    except shmtree.Error as error:
        told.send(type(error).__name__)


def subscribe_and_report(broadcast: shmtree.Broadcast, told: Connection) -> None:
    report_all(broadcast.subscribe(), told)


def count_whole(subscriber: shmtree.Subscriber, told: Connection) -> None:
    """Receives messages of `numbered` up to the one with number 0, and sends the number of intact ones."""
    count = 0
    while (message := subscriber.get(timeout=100))["number"] != 0:
        count += bool((message["big"] == message["number"]).all())
    told.send(count)


def put_run(broadcast: shmtree.Broadcast, numbers: Any) -> None:
    for number in numbers:
        broadcast.put(number, timeout=100)


def put_then_hang(broadcast: shmtree.Broadcast, item: Any, told: Connection) -> None:
    broadcast.put(item)
    told.send(os.getpid())
    told.recv()


def hang(broadcast: shmtree.Broadcast, told: Connection) -> None:
    told.send(os.getpid())
    told.recv()


def read_one_and_hang(subscriber: shmtree.Subscriber, told: Connection) -> None:
    told.send(subscriber.get(timeout=100))
    told.recv()


def close_on_signal(subscriber: shmtree.Subscriber, told: Connection) -> None:
    told.send("ready")
    told.recv()
    subscriber.close()
    told.recv()


def hold_unused(subscriber: shmtree.Subscriber, told: Connection) -> None:
    told.send("ready")
    signal.pause()
    subscriber.close()


def put_on_signal(broadcast: shmtree.Broadcast, told: Connection) -> None:
    while True:
        broadcast.put(told.recv())
