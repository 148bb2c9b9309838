"""Figures of `shmtree run`: estimates from samples, and sums over processes."""

from __future__ import annotations

import numpy as np
import pytest

from shmtree._run import counters as c
from shmtree._run import results
from shmtree._run.launch import Ended
from shmtree._run.sites import Site
from shmtree._run.sizes import size_of

KEY = Site("Queue", "program.py:3", "").key

CELLS = {
    f"{kind}_{name}": getattr(c, f"{kind}S") + getattr(c, name)
    for kind in ("PUT", "GET")
    for name in ("NS", "SAMPLES", "CPU_NS")
}


def cells(**values: int) -> list[int]:
    row = [0] * c.CELLS
    for name, value in values.items():
        row[CELLS.get(name) or getattr(c, name)] = value
    return row


def test_totals_are_scaled_from_samples_of_each_process() -> None:
    sender = cells(PUTS=100, PUT_NS=9 * 10**9, PUT_SAMPLES=10, PUT_CPU_NS=10**8, PUT_BYTES=50, OBJECTS=1)
    receiver = cells(GETS=90, GET_NS=10**9, GET_SAMPLES=30, GET_CPU_NS=10**8, POLL_NS=10**9)
    (row,) = results.rows([{KEY: sender}, {KEY: receiver}])
    assert row[:7] == ("Queue", "program.py:3", "", 1, 2, 100, 500)
    assert (row.put_s, row.get_s, row.cpu_s) == (9.0, 2.0, pytest.approx(1.3))
    assert row.blocked_s == pytest.approx(9.7)


TRIED = {"TRIALS": 2, "PICKLE_NS": 4 * 10**8, "STANDARD_NS": 6 * 10**8, "OURS_NS": 2 * 10**8}  # 0.2, 0.3, 0.1 s each


def test_small_messages_save_the_difference_of_the_trials() -> None:
    row = cells(PUTS=10, PUT_SAMPLES=5, PUT_CPU_NS=10**9, PUT_NS=10**10, FEED_NS=3 * 10**9, **TRIED)
    (found,) = results.rows([{KEY: row}])
    assert found.cpu_s == pytest.approx(5.0)
    assert found.pickle_s == pytest.approx(2.0)
    assert found.saved_cpu_s == pytest.approx(10 * 0.2)


def test_large_messages_save_more_if_their_calls_take_longer() -> None:
    calls = {"PUTS": 10, "PUT_SAMPLES": 5, "PUT_CPU_NS": 10**9, "PUT_NS": 10**10, "FEED_NS": 4 * 10**9}
    row = cells(PUT_BYTES=5 * 3 * c.CHUNK, **calls, **TRIED)  # three of four wake-ups are for more chunks of a message
    (found,) = results.rows([{KEY: row}])
    assert found.cpu_s == pytest.approx(6.0)  # twice as long as in the trials
    assert found.saved_cpu_s == pytest.approx(10 * 0.2 * 1.75)


def test_report_without_trials_estimates_no_savings() -> None:
    (row,) = results.rows([{KEY: cells(PUTS=1)}])
    assert row.saved_cpu_s is None


def test_starts_of_the_library_reduce_the_savings() -> None:
    row = cells(PUTS=10, **TRIED)
    rows = results.rows([{KEY: row}])
    found = results.savings(rows, Ended(0, seconds=10.0, cpu_seconds=20.0), start_s=1.5)
    assert found == pytest.approx((2.0 / 2 - 1.5, 2.0 - 1.5))  # two processes ran at the same time
    found = results.savings([], Ended(0, seconds=10.0, cpu_seconds=1.0), start_s=0.5)
    assert found == pytest.approx((-0.5, -0.5))


def test_rows_with_the_most_time_come_first() -> None:
    keys = [Site("Queue", f"program.py:{line}", "").key for line in range(3)]
    rows = results.rows([{keys[0]: cells(PUT_NS=1), keys[1]: cells(GET_NS=3), keys[2]: cells(PUT_NS=2)}])
    assert [row.place[-1] for row in rows] == ["1", "2", "0"]


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (np.zeros(1000), 8000),
        ({"a": np.zeros(10), "b": [1, 2.0, None], "c": b"1234"}, 108),
        ([np.zeros(100)] * 10_000, 800 * 10_000),
        ((), 0),
    ],
)
def test_size_of_a_message_is_that_of_its_data(message: object, size: int) -> None:
    assert size_of(message) == (pytest.approx(size, rel=0.01), False)


def test_size_of_an_object_is_that_of_its_attributes() -> None:
    class Sample:
        def __init__(self) -> None:
            self.image = np.zeros(500, np.uint8)

    assert size_of(Sample())[0] == 500


def test_shared_tensors_are_found() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(100)
    assert size_of({"x": tensor}) == (400, False)
    assert size_of({"x": tensor.share_memory_()}) == (400, True)
