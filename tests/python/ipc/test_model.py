"""Any sequence of calls behaves like a plain list, and leaves the arena consistent after each call.

Hypothesis generates the sequences. It prints a failing one as a program, with the seed to repeat it.
"""

from __future__ import annotations

import contextlib
import gc
import queue
from collections import Counter, deque
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from shared_state import violated

import shmtree

CAPACITY = 6
MAX_ATTEMPTS = 3
BUDGET = 8 << 20
SETTLINGS = st.sampled_from(["ack", "nack", "drop", "raise", "requeue"])
SIZES = st.sampled_from([0, 3, 200, 5000, 40_000, 300_000])

explored = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


def item_of(number: int, size: int) -> dict[str, Any]:
    return {"number": number, "array": np.full(size, number % 251, np.uint8)}


class Kept:
    """A received item, with its expected contents."""

    def __init__(self, item: dict[str, Any], number: int) -> None:
        assert item["number"] == number
        self.array, self.byte = item["array"], number % 251
        self.check()

    def check(self) -> None:
        assert self.array.size == 0 or (self.array[0] == self.byte and (self.array == self.byte).all())


class PairModel(RuleBasedStateMachine):
    """Compares a pair with a model: the tickets that are queued, taken, returned, and rejected."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = shmtree.Arena(BUDGET)
        self.sender, self.receiver = self.arena.create_pair(capacity=CAPACITY, max_attempts=MAX_ATTEMPTS)
        self.queued: deque[int] = deque()
        self.returned: list[int] = []
        self.dead: list[int] = []
        self.attempts: Counter[int] = Counter()
        self.taken: list[tuple[shmtree.Delivery, int]] = []
        self.kept: list[Kept] = []
        self.lent: list[np.ndarray] = []
        self.next = 0

    def waiting(self) -> int:
        return len(self.queued) + len(self.returned)

    def expect_next(self) -> int | None:
        if self.returned:
            return min(self.returned)
        return self.queued[0] if self.queued else None

    def remove(self, number: int) -> None:
        self.returned.remove(number) if number in self.returned else self.queued.popleft()

    def settle_as(self, delivery: shmtree.Delivery, number: int, how: str) -> bool:
        """Ends a delivery as `how` says.

        Returns True if the message is then in the same state as before it was taken.
        """
        if how == "raise":
            with contextlib.suppress(KeyError), delivery:
                raise KeyError
        elif how != "drop":
            getattr(delivery, how)()
        if how == "requeue":
            self.returned.append(number)
            self.attempts[number] = 0
        return how not in ("ack", "requeue")

    def put(self, item: Any) -> None:
        if self.waiting() >= CAPACITY:
            with pytest.raises(queue.Full):
                self.sender.put_nowait(item)
            return
        try:
            assert self.sender.put_nowait(item) == self.next
        except (queue.Full, shmtree.OutOfSharedMemory):
            assert self.kept or self.lent or self.waiting() or self.taken or self.dead  # the budget is in use
            return
        self.queued.append(self.next)
        self.next += 1

    @rule(size=SIZES)
    def put_a_copy(self, size: int) -> None:
        self.put(item_of(self.next, size))

    @rule(size=SIZES)
    def put_an_array_of_the_arena(self, size: int) -> None:
        with contextlib.suppress(shmtree.OutOfSharedMemory, queue.Full):
            array = self.sender.new_empty(size, np.uint8)
            array[:] = self.next % 251
            self.put({"number": self.next, "array": array})

    @rule(count=st.integers(1, 10))
    def put_many(self, count: int) -> None:
        room = max(CAPACITY - self.waiting(), 0)
        items = [item_of(self.next + i, 10) for i in range(count)]
        try:
            self.sender.put_many(items, timeout=0)
            sent = count
        except queue.Full as full:
            sent = full.sent
        assert sent == min(count, room)
        self.queued.extend(range(self.next, self.next + sent))
        self.next += sent

    @rule(copy=st.sampled_from([None, True, False]), keep=st.booleans())
    def get(self, copy: bool | None, keep: bool) -> None:
        expected = self.expect_next()
        if expected is None:
            with pytest.raises(queue.Empty):
                self.receiver.get(False)
            return
        kept = Kept(self.receiver.get(False, copy=copy), expected)
        self.remove(expected)
        if keep:
            self.kept.append(kept)

    @rule(count=st.integers(1, 10))
    def get_many(self, count: int) -> None:
        expected = [*sorted(self.returned), *self.queued][:count]
        if not expected:
            with pytest.raises(queue.Empty):
                self.receiver.get_many(count, timeout=0)
            return
        got = self.receiver.get_many(count, timeout=0)
        assert [item["number"] for item in got] == expected
        for number in expected:
            self.remove(number)

    @rule()
    def take(self) -> None:
        expected = self.expect_next()
        if expected is None:
            with pytest.raises(queue.Empty):
                self.receiver.take(False)
            return
        delivery = self.receiver.take(False)
        self.attempts[expected] += 1
        attempts = self.attempts[expected]
        assert (delivery.ticket, delivery.attempts, delivery.redelivered) == (expected, attempts, attempts > 1)
        Kept(delivery.item, expected)
        self.remove(expected)
        self.taken.append((delivery, expected))

    @precondition(lambda self: self.taken)
    @rule(which=st.integers(0, 100), how=SETTLINGS)
    def settle(self, which: int, how: str) -> None:
        delivery, number = self.taken.pop(which % len(self.taken))
        if self.settle_as(delivery, number, how):
            (self.dead if self.attempts[number] == MAX_ATTEMPTS else self.returned).append(number)
        del delivery
        gc.collect()

    @rule(how=SETTLINGS)
    def look_at_what_was_rejected(self, how: str) -> None:
        found = self.receiver.dead_letters()
        assert [delivery.ticket for delivery in found] == sorted(self.dead)
        for delivery in found:
            assert delivery.attempts == MAX_ATTEMPTS
            Kept(delivery.item, delivery.ticket)
            if not self.settle_as(delivery, delivery.ticket, how):
                self.dead.remove(delivery.ticket)

    @precondition(lambda self: self.kept)
    @rule(which=st.integers(0, 100))
    def drop_what_was_kept(self, which: int) -> None:
        self.kept.pop(which % len(self.kept)).check()

    @rule(size=SIZES)
    def lend(self, size: int) -> None:
        with contextlib.suppress(shmtree.OutOfSharedMemory, queue.Full):
            self.lent.append(self.arena.new_zeros(size, np.uint8))

    @precondition(lambda self: self.lent)
    @rule()
    def end_of_the_loan(self) -> None:
        assert not self.lent.pop().any()

    @rule()
    def trim(self) -> None:
        self.arena.trim()

    @invariant()
    def counts_are_exact(self) -> None:
        waiting = self.waiting()
        assert self.receiver.qsize() == waiting
        assert self.receiver.empty() == (waiting == 0)
        assert self.sender.has_space() == (not self.receiver.full()) == (waiting < CAPACITY)
        assert self.sender.pending_acks == waiting + len(self.taken)
        stats = self.sender.stats()
        assert (stats["taken"], stats["dead_letters"]) == (len(self.taken), len(self.dead))

    @invariant()
    def what_is_kept_does_not_change(self) -> None:
        for kept in self.kept:
            kept.check()

    @invariant()
    def the_arena_is_in_order(self) -> None:
        assert violated(self.arena) == ""

    def teardown(self) -> None:
        self.taken.clear()
        self.kept.clear()
        self.lent.clear()
        gc.collect()
        while not self.receiver.empty():
            self.receiver.get(False)
        self.sender.wait_for_all_ack(timeout=60)
        assert violated(self.arena) == ""


class QueueModel(RuleBasedStateMachine):
    """Compares a JoinableQueue with the standard library's queue for threads."""

    @initialize(size=st.sampled_from([0, 1, 5]))
    def make(self, size: int) -> None:
        self.arena = shmtree.Arena(BUDGET)
        self.ours = self.arena.JoinableQueue(size)
        self.model: queue.Queue[int] = queue.Queue(size)
        self.next = 0
        self.shut: str | None = None

    @rule(size=SIZES)
    def put(self, size: int) -> None:
        item = item_of(self.next, size)
        if self.shut:
            with pytest.raises(shmtree.ShutDown):
                self.ours.put_nowait(item)
            return
        try:
            self.model.put_nowait(self.next)
        except queue.Full:
            with pytest.raises(queue.Full):
                self.ours.put_nowait(item)
            return
        self.ours.put(item, timeout=60)
        self.next += 1

    @rule()
    def get(self) -> None:
        try:
            expected = self.model.get_nowait()
        except queue.Empty:
            with pytest.raises(shmtree.ShutDown if self.shut else queue.Empty):
                self.ours.get_nowait()
            return
        got = self.ours.get_nowait()
        Kept(got, expected)
        got["array"][:] = 1  # the copy belongs to the receiver

    @rule()
    def task_done(self) -> None:
        try:
            self.model.task_done()
        except ValueError:
            with pytest.raises(ValueError, match="too many times"):
                self.ours.task_done()
            return
        self.ours.task_done()

    @precondition(lambda self: self.model.unfinished_tasks == 0)
    @rule()
    def join(self) -> None:
        self.ours.join()

    @precondition(lambda self: self.next > 5)
    @rule(immediate=st.booleans())
    def shut_down(self, immediate: bool) -> None:
        self.ours.shutdown(immediate)
        self.shut = "at once" if immediate or self.shut == "at once" else "when empty"
        if immediate:
            while not self.model.empty():
                self.model.get_nowait()
                if self.model.unfinished_tasks:
                    self.model.task_done()

    @invariant()
    def it_is_as_the_standard_one(self) -> None:
        assert self.ours.qsize() == self.model.qsize()
        assert self.ours.empty() == self.model.empty()
        assert self.ours.full() == self.model.full()
        assert violated(self.arena) == ""


TestPair = pytest.mark.guarantee("get-once-in-order", "nack-over-capacity")(PairModel.TestCase)
TestPair.settings = explored
TestQueue = pytest.mark.guarantee("queue-counts")(QueueModel.TestCase)
TestQueue.settings = explored
