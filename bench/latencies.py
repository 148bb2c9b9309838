"""Scenarios of single messages: their latency, and how soon a blocked put continues."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from bench import processes, roles
from bench.competitors import Base, Unsupported
from bench.scenarios import Scenario, Stream, spread

_FORK = multiprocessing.get_context("fork")


class Latency(Stream):
    """One-way latency, with pauses that are long enough for the receiver to sleep."""

    gap = 0.001

    def calibrate(self) -> None:
        self.count = max(100, int(self.seconds * 4 / self.gap / 3))

    def run(self) -> dict[str, Any]:
        self.consumers[0].order("stamped", self.count)
        self.producers[0].order("stamped", self.count, self.gap)
        puts, gets = self.answer(self.producers[0]), self.answer(self.consumers[0])
        times = [(got - began) / 1e3 for (began, _), (_, got) in zip(puts, gets)]
        return {"one_way_us": spread(times), "samples": times[:: max(1, len(times) // 1000)]}

    def detail(self) -> dict[str, Any]:
        return {}


class Wake(Stream):
    """A full channel: time from a get to the return of the put that waited for space. Then the receiver pauses."""

    def prepare(self) -> dict[str, Any]:
        if not self.competitor.is_bounded:
            raise Unsupported("has no limit on the number of messages")
        workload, channel = self.workload, self.channel()
        heard, told = _FORK.Pipe(duplex=False)
        self.producers = [self.worker(partial(roles.Waiter, channel, workload, self.message, told))]
        self.consumers = [self.worker(partial(roles.Slow, channel, workload, self.message, heard))]
        self.wait_ready()
        self.count = 100 if not workload.pause else max(2, min(100, round(4 * self.seconds / workload.pause)))
        return {}

    def run(self) -> dict[str, Any]:
        places = self.workload.capacity
        self.producers[0].order("telling", self.count + places)
        self.consumers[0].order("slowly", self.count, places, self.workload.pause)
        puts, gets = self.answer(self.producers[0]), self.answer(self.consumers[0])
        return {"wake_us": spread([(put - got) / 1e3 for put, got in zip(puts[places:], gets)])}

    def detail(self) -> dict[str, Any]:
        return {}


class PingPong(Scenario):
    """Sends a message to and fro over two channels."""

    def prepare(self) -> dict[str, Any]:
        there, back = self.channel(), self.channel()
        self.pinger = self.worker(partial(roles.Pinger, there, back, self.message))
        self.echo = self.worker(partial(roles.Forwarder, there, back))
        self.wait_ready()
        self.count = 100
        self.calibrate()
        return {}

    def run(self) -> dict[str, Any]:
        self.echo.order("same", self.count)
        self.pinger.order("rally", self.count)
        times = self.answer(self.pinger)
        self.answer(self.echo)
        return {"seconds": sum(times) / 1e9, "one_way_us": spread([t / 2e3 for t in times])}


class BusyPingPong(PingPong):
    """PingPong next to four processes that only compute."""

    def run(self) -> dict[str, Any]:
        with processes.busy(4):
            return super().run()


class Cold(Scenario):
    """Both ends in one process: time from the creation of the channel to the first received message."""

    def prepare(self) -> dict[str, Any]:
        return {}

    def run(self) -> dict[str, Any]:
        child_conn, conn = _FORK.Pipe()
        process = _FORK.Process(target=self.start_and_time, args=(conn, self.message))
        process.start()
        kind, value = child_conn.recv()
        process.join()
        if kind == "error":
            raise RuntimeError(value)
        return {"cold_ms": value}

    def start_and_time(self, conn: Connection, message: Any) -> None:
        """Runs in a new process, so that no state of an earlier channel exists."""
        try:
            started = time.perf_counter()
            channel = self.channel()
            put, get = self.two_ends(channel)
            put(message)
            get()
            conn.send(("ok", (time.perf_counter() - started) * 1e3))
        except BaseException as error:
            conn.send(("error", f"{type(error).__name__}: {error}"))
            os._exit(1)
        with contextlib.suppress(Exception):
            channel.close()
        os._exit(0)

    def two_ends(self, channel: Base) -> tuple[Callable[[Any], Any], Callable[[], Any]]:
        receive = channel.receiver()
        return channel.sender(), receive
