"""Spans of put and get in torch's profiler."""

from __future__ import annotations

import queue
from collections import Counter
from typing import Any

import numpy as np
import pytest

import shmtree
from shmtree import multiprocessing as mp

torch = pytest.importorskip("torch")

import shmtree.torch  # noqa: E402  # needs torch


def spans(profile: Any) -> Counter[str]:
    return Counter(event.name for event in profile.events() if event.name.startswith("shmtree."))


def profiler() -> Any:
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])


def test_each_call_is_a_span_while_the_profiler_runs(arena: shmtree.Arena) -> None:
    sender, receiver = arena.create_pair(capacity=None)
    sender.put("before")
    with profiler() as profile:
        for number in range(5):
            sender.put({"x": np.zeros(10_000), "n": number})
        sender.put_nowait(5)
        sender.put_many([6, 7, 8])
        assert receiver.get() == "before"
        for _ in range(4):
            receiver.get_nowait()
        assert next(receiver)["n"] == 4
        assert receiver.get_many(2) == [5, 6]
        with receiver.take() as delivery:
            assert delivery.item == 7
    assert receiver.get() == 8

    assert spans(profile) == {
        "shmtree.put": 6,
        "shmtree.put_many": 1,
        "shmtree.get": 7,  # one of them within get_many
        "shmtree.get_many": 1,
        "shmtree.take": 1,
    }


def test_calls_that_raise_are_spans_and_raise_the_same(arena: shmtree.Arena) -> None:
    sender, receiver = arena.create_pair(capacity=1, allow_pickle=False)
    with profiler() as profile:
        with pytest.raises(queue.Empty):
            receiver.get_nowait()
        with pytest.raises(shmtree.PickleRefused):
            sender.put(lambda: None)
        sender.put(1)
        with pytest.raises(queue.Full):
            sender.put(2, timeout=0.001)

    assert spans(profile) == {"shmtree.put": 3, "shmtree.get": 1}


def test_queue_spans_do_not_overlap_the_computation_between(arena: shmtree.Arena) -> None:
    tasks = arena.Queue()
    with profiler() as profile:
        tasks.put(torch.ones(3))
        torch.add(tasks.get(), 1)

    ours = {event.name: event for event in profile.events()}
    assert ours["shmtree.put"].time_range.end <= ours["shmtree.get"].time_range.start
    assert ours["shmtree.get"].time_range.end <= ours["aten::add"].time_range.start


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return torch.full((64, 64), float(index))


def test_a_loader_receives_its_batches_in_spans() -> None:
    loader = torch.utils.data.DataLoader(
        Numbers(),
        batch_size=2,
        num_workers=1,
        collate_fn=shmtree.torch.collate,
        multiprocessing_context=mp.get_context("spawn"),
    )
    with profiler() as profile:
        assert len(list(loader)) == 3

    found = spans(profile)
    assert found["shmtree.get"] >= 3  # the loader polls every few seconds
    assert found["shmtree.put"] >= 3  # requests for samples


def test_failing_profiler_does_not_disturb_put_and_get(arena: shmtree.Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise LookupError(name)

    monkeypatch.setattr("torch.profiler.record_function", fail)
    told: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", lambda raised: told.append(str(raised.exc_value)))
    sender, receiver = arena.create_pair()
    with profiler():
        sender.put(1)
        assert receiver.get() == 1

    assert told == ["shmtree.put", "shmtree.get"]


def test_an_interrupt_in_the_profiler_is_not_lost(arena: shmtree.Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt(name)

    sender, receiver = arena.create_pair()

    def put_and_go_on() -> None:
        sender.put(1)
        for _ in range(1000):  # the interrupt arrives within the next instructions
            pass

    with profiler(), monkeypatch.context() as patched:
        patched.setattr("torch.profiler.record_function", interrupt)
        with pytest.raises(KeyboardInterrupt, match=r"shmtree\.put"):
            put_and_go_on()
    assert receiver.get() == 1
