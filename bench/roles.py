"""What producers, consumers and those in between do when they are told to; each runs in a process of its own.

An order is a tuple: the name of a method and its arguments. The answer is what the method returns. The timed loops
hold nothing but the calls that are measured; times are of the monotonic clock, which all processes share.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from bench.competitors import Base
from bench.workloads import Workload, equal

now = time.perf_counter_ns


def serve(conn: Connection, make: Callable[[], Any]) -> None:
    """The body of such a process: until an empty order or the end of the one who gives them."""
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
        """Different messages, for the check; the time of the first put."""
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
        """As `same`, each message made anew: in place where the competitor lends memory."""
        put, make = self.put, self.make
        started = now()
        for _ in range(n):
            put(make())
        return started, now()

    def stamped(self, n: int, gap: float) -> list[tuple[int, int]]:
        """When each put began and ended, after a pause of `gap` seconds each."""
        put, make, times = self.put, self.make, []
        for _ in range(n):
            if gap:
                time.sleep(gap)
            before = now()
            put(make())
            times.append((before, now()))
        return times


def fill(array: Any) -> Any:
    """What a producer does with lent memory; one store, since filling it costs the same everywhere."""
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
        """When the first arrived, and which of the messages were not what they should be."""
        item = self.get()
        arrived = now()
        wrong = [] if self.is_right(item, self.expected) else [0]
        for i in range(1, n):
            item = None  # one at a time: some lend only so many
            item = self.get()
            if not self.is_right(item, self.workload.make(i)):
                wrong.append(i)
        return arrived, wrong

    def same(self, n: int) -> tuple[int, int, bool]:
        """When the first and the last arrived, and whether the last is right."""
        get = self.get
        item = get()
        first = now()
        for _ in range(n - 1):
            item = get()
        last = now()
        return first, last, self.is_in_place or self.is_right(item, self.expected)

    def stamped(self, n: int) -> list[tuple[int, int]]:
        """When each get began and ended."""
        get, times = self.get, []
        for _ in range(n):
            before = now()
            item = get()
            times.append((before, now()))
            del item
        return times


class Waiter(Producer):
    """Puts into a full channel, and tells of each put that it has returned."""

    def __init__(self, channel: Base, workload: Workload, message: Any, told: Connection) -> None:
        super().__init__(channel, workload, message)
        self.told = told

    def telling(self, n: int) -> list[int]:
        """When each put returned."""
        put, message, tell, times = self.put, self.message, self.told.send_bytes, []
        for _ in range(n):
            put(message)
            times.append(now())
            tell(b"")
        return times


class Slow(Consumer):
    """Gets from a full channel, one by one, and does something else in between."""

    def __init__(self, channel: Base, workload: Workload, message: Any, heard: Connection) -> None:
        super().__init__(channel, workload, message)
        self.heard = heard

    def slowly(self, n: int, places: int, pause: float) -> list[int]:
        """When each of the first `n` gets began. A pause of 0 lasts until the put that waited has returned."""
        get, hear, times = self.get, self.heard.recv_bytes, []
        for _ in range(places):
            hear()
        time.sleep(0.01)  # until the next put sleeps
        for _ in range(n):
            times.append(now())
            get()
            time.sleep(pause)
            hear()
        for _ in range(places):
            get()
        return times


class Forwarder:
    """Takes from one channel and passes on to the next."""

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
    """Sends a message, waits for the answer, and so on; an echo is a Forwarder."""

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
