"""Reducers that a program registers for classes with a native kind: queues and pipes use them, as the standard ones."""

from __future__ import annotations

import collections
import copyreg
import datetime
import decimal
import fractions
import pathlib
import queue
import re
import types
import uuid
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest

import shmtree
from shmtree import multiprocessing as mp

VALUES: list[Any] = [
    np.arange(3),
    np.zeros(100_000),
    np.float64(1.0),
    np.dtype("f4"),
    np.ma.array([1, 2]),
    decimal.Decimal(1),
    fractions.Fraction(1, 2),
    pathlib.PurePosixPath("a"),
    datetime.date(2020, 1, 1),
    datetime.datetime(2020, 1, 1),
    uuid.UUID(int=1),
    types.SimpleNamespace(a=1),
    collections.OrderedDict(a=1),
    collections.deque([1]),
    collections.Counter("a"),
    complex(1, 2),
    range(3),
    re.compile("a"),
]
REGISTER: dict[str, tuple[Callable[..., None], dict[Any, Any]]] = {
    "copyreg": (copyreg.pickle, copyreg.dispatch_table),
    "ForkingPickler": (ForkingPickler.register, ForkingPickler._extra_reducers),  # type: ignore[attr-defined]
}


def restored(name: str) -> str:
    return f"reduced {name}"


def reduce(value: Any) -> Any:
    return restored, (type(value).__name__,)


@pytest.fixture(params=REGISTER)
def register(request: Any) -> Iterator[Callable[[type], None]]:
    """Returns a function that registers `reduce` for a class. The table is restored after the test."""
    function, table = REGISTER[request.param]
    before = dict(table)
    yield lambda cls: function(cls, reduce)
    table.clear()
    table.update(before)


def ways() -> dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]]:
    q, (there, here) = mp.Queue(), mp.Pipe()
    sender, receiver = shmtree.create_pair()
    return {
        "queue": (q.put, lambda: q.get(timeout=60)),
        "pipe": (there.send, here.recv),
        "pair": (sender.put, lambda: receiver.get(timeout=60)),
    }


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_registered_reducer_is_used_at_the_top_and_inside(register, value):
    register(type(value))
    expected = f"reduced {type(value).__name__}"
    for put, get in ways().values():
        put(value)
        assert get() == expected
        put({"a": [value, 1]})
        assert get() == {"a": [expected, 1]}


def test_reducer_is_used_while_it_is_registered(register):
    put, get = ways()["queue"]
    for _ in range(2):
        put(decimal.Decimal(1))
        assert get() == decimal.Decimal(1)
        register(decimal.Decimal)
        put(decimal.Decimal(1))
        assert get() == "reduced Decimal"
        for _, table in REGISTER.values():
            table.pop(decimal.Decimal, None)


def test_reducer_that_replaces_another_is_used():
    put, get = ways()["queue"]
    try:
        for text in ("one", "two"):
            copyreg.pickle(decimal.Decimal, lambda value, text=text: (str, (text,)))  # type: ignore[misc, arg-type]
            put(decimal.Decimal(1))
            assert get() == text
    finally:
        del copyreg.dispatch_table[decimal.Decimal]


def test_other_values_keep_their_native_kind(register):
    register(decimal.Decimal)
    q = mp.Queue()
    array = np.arange(5000)
    q.put([array, datetime.date(2020, 1, 1)])
    got = q.get(timeout=60)
    assert (got[0] == array).all() and got[1] == datetime.date(2020, 1, 1)
    assert q.stats()["pickled"] == 0


def test_native_kind_is_used_where_pickles_are_refused(register):
    register(np.ndarray)
    register(decimal.Decimal)
    sender, receiver = shmtree.create_pair(allow_pickle=False)
    sender.put([np.arange(3), decimal.Decimal(1)])
    array, number = receiver.get(timeout=60)
    assert array.tolist() == [0, 1, 2] and number == decimal.Decimal(1)


def test_error_of_a_registered_reducer_is_raised_by_put():
    def fail(value: Any) -> Any:
        raise ZeroDivisionError

    copyreg.pickle(uuid.UUID, fail)
    try:
        q = mp.Queue()
        with pytest.raises(ZeroDivisionError):
            q.put([uuid.UUID(int=1)])
        with pytest.raises(queue.Empty):
            q.get_nowait()
    finally:
        del copyreg.dispatch_table[uuid.UUID]
