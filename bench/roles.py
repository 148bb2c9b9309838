"""The roles of worker processes: producers, consumers and forwarders. Each runs in its own process.

An order is a tuple: the name of a method and its arguments. The answer is the method's return value. The timed loops
contain only the measured calls. Times are from the monotonic clock, which all processes share.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from bench.competitors import Base
from bench.workloads import PAGE, Workload, equal

now = time.perf_counter_ns


def serve(conn: Connection, make: Callable[[], Any]) -> None:
    """Runs orders until an empty one arrives or the process that sends them exits."""
    try:
        role = make()
        conn.send(("ok", None))
        gc.collect()
        gc.freeze()
        while order := conn.recv():
            conn.send(("ok", getattr(role, order[0])(*order[1:])))
        conn.send(("ok", None))
    except EOFError:
        pass
    except BaseException as error:
        traceback.print_exc()
        conn.send(("error", f"{type(error).__name__}: {error}"))


class Producer:
    def __init__(self, channel: Base, workload: Workload, message: Any) -> None:
        self.put = channel.sender()
        self.workload = workload
        self.message = message
        loan = channel.loan() if workload.kind in ("loan", "forward") else None
        self.make: Callable[[], Any]
        if loan:
            self.make = lambda: fill(loan((workload.nbytes // 4,)))
        elif channel.shares_tensors and workload.type is object:
            self.make = lambda: self.message.clone()
        else:
            self.make = lambda: self.message

    def varied(self, n: int) -> int:
        """Puts different messages for the check. Returns the time of the first put."""
        started = now()
        for i in range(n):
            self.put(self.workload.make(i) if i else self.message)
        return started

    def same(self, n: int) -> tuple[int, int]:
        put, message = self.put, self.message
        started = now()
        for _ in range(n):
            put(message)
        return started, now()

    def made(self, n: int) -> tuple[int, int]:
        """Like `same`, but makes each message anew, in place if the competitor lends memory."""
        put, make = self.put, self.make
        started = now()
        for _ in range(n):
            put(make())
        return started, now()

    def stamped(self, n: int, gap: float) -> list[tuple[int, int]]:
        """Returns the start and end time of each put. Pauses for `gap` seconds before each."""
        put, make, times = self.put, self.make, []
        for _ in range(n):
            if gap:
                time.sleep(gap)
            before = now()
            put(make())
            times.append((before, now()))
        return times


def fill(array: Any) -> Any:
    """Fills lent memory with one store, since filling all of it costs the same for every competitor."""
    array[0] = 1
    return array


class Consumer:
    def __init__(self, channel: Base, workload: Workload, message: Any) -> None:
        self.get = channel.receiver()
        self.workload = workload
        self.expected = message
        self.lends_bytes = channel.lends_bytes
        self.is_in_place = workload.kind in ("loan", "forward")

    def is_right(self, item: Any, wanted: Any) -> bool:
        if self.lends_bytes and isinstance(item, memoryview):
            return bool(item == wanted)
        return equal(item, wanted)

    def varied(self, n: int) -> tuple[int, list[int]]:
        """Returns when the first message arrived, and the numbers of the wrong messages."""
        item = self.get()
        arrived = now()
        wrong = [] if self.is_right(item, self.expected) else [0]
        for i in range(1, n):
            item = None  # release it first: some competitors lend a limited number
            item = self.get()
            if not self.is_right(item, self.workload.make(i)):
                wrong.append(i)
        return arrived, wrong

    def same(self, n: int) -> tuple[int, int, bool]:
        """Returns when the first message arrived and the last was read, and whether the last is correct."""
        first, last, item = self.read_all(n) if self.workload.buffers else self.get_all(n)
        return first, last, self.is_in_place or self.is_right(item, self.expected)

    def get_all(self, n: int) -> tuple[int, int, Any]:
        get = self.get
        item = get()
        first = now()
        for _ in range(n - 1):
            item = get()
        return first, now(), item

    def read_all(self, n: int) -> tuple[int, int, Any]:
        """Reads one byte of each page of a received message, the least that a program does with its arrays."""
        get, buffers = self.get, self.workload.buffers
        assert buffers is not None
        item = get()
        first = now()
        read_pages(buffers(item))
        for _ in range(n - 1):
            item = None  # a second huge message might not fit
            item = get()
            read_pages(buffers(item))
        return first, now(), item

    def stamped(self, n: int) -> list[tuple[int, int]]:
        """Returns when each get began and ended."""
        get, times = self.get, []
        for _ in range(n):
            before = now()
            item = get()
            times.append((before, now()))
            del item
        return times


def read_pages(buffers: tuple[Any, ...]) -> None:
    for buffer in buffers:
        memoryview(buffer).cast("B")[::PAGE].tobytes()


class Waiter(Producer):
    """Puts into a full channel, and reports each return of a put."""

    def __init__(self, channel: Base, workload: Workload, message: Any, told: Connection) -> None:
        super().__init__(channel, workload, message)
        self.told = told

    def telling(self, n: int) -> list[int]:
        """Returns when each put returned."""
        put, message, tell, times = self.put, self.message, self.told.send_bytes, []
        for _ in range(n):
            put(message)
            times.append(now())
            tell(b"")
        return times


class Slow(Consumer):
    """Gets from a full channel, one message at a time, with pauses."""

    def __init__(self, channel: Base, workload: Workload, message: Any, heard: Connection) -> None:
        super().__init__(channel, workload, message)
        self.heard = heard

    def slowly(self, n: int, places: int, pause: float) -> list[int]:
        """Returns when each of the first `n` gets began. A pause of 0 lasts until the blocked put has returned."""
        get, hear, times = self.get, self.heard.recv_bytes, []
        for _ in range(places):
            hear()
        time.sleep(0.01)  # until the next put blocks
        for _ in range(n):
            times.append(now())
            get()
            time.sleep(pause)
            hear()
        for _ in range(places):
            get()
        return times


class Forwarder:
    """Receives from one channel and sends to the next."""

    def __init__(self, source: Base, target: Base) -> None:
        self.get = source.receiver()
        self.put = target.forward(target.sender())

    def same(self, n: int) -> None:
        get, put = self.get, self.put
        for _ in range(n):
            put(get())

    def stamped(self, n: int) -> list[tuple[int, int]]:
        get, put, times = self.get, self.put, []
        for _ in range(n):
            item = get()
            before = now()
            put(item)
            times.append((before, now()))
            del item
        return times


class Pinger:
    """Sends a message and waits for the answer, repeatedly. The other side is a Forwarder."""

    def __init__(self, there: Base, back: Base, message: Any) -> None:
        self.put, self.get, self.message = there.sender(), back.receiver(), message

    def rally(self, n: int) -> list[int]:
        put, get, message, times = self.put, self.get, self.message, []
        for _ in range(n):
            before = now()
            put(message)
            get()
            times.append(now() - before)
        return times
