"""Processes with torch on a real device that send tensors to each other, or receive in an arena that they pinned."""

from __future__ import annotations

import copy
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import shmtree
import shmtree.cuda
import shmtree.torch
from shmtree import multiprocessing
from shmtree.cuda import _driver, _pinned, _received
from shmtree.replay import ReplayBuffer

DEVICE = "cuda"
BUSY_CYCLES = 1_000_000_000  # about half a second, enough time to queue more work


def whole() -> torch.Tensor:
    return torch.arange(24.0, device=DEVICE).reshape(4, 6)


#: Tensors that the tests send, by their special property.
TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "whole": whole,
    "part": lambda: whole()[1:, ::2],
    "transposed": lambda: whole().T,
    "expanded": lambda: whole()[:, :1].expand(4, 5),
    "scalar": lambda: torch.tensor(3.5, device=DEVICE),
    "empty": lambda: torch.empty(0, 3, device=DEVICE),
    "bfloat16": lambda: whole().to(torch.bfloat16),
    "bool": lambda: whole() > 11,
    "complex64": lambda: torch.complex(whole(), -whole()),
    "conjugated": lambda: torch.complex(whole(), -whole()).conj(),
    "large": lambda: torch.arange(8_000_000.0, device=DEVICE),
    "with a gradient": lambda: whole().requires_grad_(),
    "parameter": lambda: torch.nn.Parameter(whole()),
    "frozen parameter": lambda: torch.nn.Parameter(whole(), requires_grad=False),
}


def describe(tensor: Any) -> tuple[Any, ...]:
    """Returns all properties that must be the same on both sides. For large tensors it has the sum of the values."""
    values = tensor.detach().resolve_conj()
    known = values.tolist() if values.numel() <= 1000 else float(values.double().sum())
    place = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
    return type(tensor).__name__, str(tensor.dtype), str(tensor.device), *place, tensor.requires_grad, known


def load_kernels() -> None:
    """Runs the kernels that tests with streams use. The first use of a kernel loads it, and may wait for the device."""
    with torch.cuda.stream(torch.cuda.Stream()):
        made = whole()
        torch.cuda._sleep(1)
        made.fill_(0)
        torch.empty_like(made).copy_(made)
    torch.cuda.synchronize()


class Peer:
    """One process with an end of a channel, which runs the commands of the test."""

    def __init__(self, end: Any, arena: shmtree.Arena | None) -> None:
        self.end = end
        self.arena: Any = arena
        self.made: Any = None
        self.got: Any = None

    def put(self, name: str) -> None:
        self.made = TENSORS[name]()
        self.end.put({"it": self.made}, timeout=30)

    def put_views(self) -> None:
        self.made = whole()
        self.end.put({"it": self.made, "part": self.made[1:]}, timeout=30)

    def describe_made(self) -> Any:
        return describe(self.made)

    def get(self) -> Any:
        self.got = self.end.get(timeout=60)["it"]
        return describe(self.got)

    def describe_received(self) -> Any:
        return describe(self.got)

    def write(self, value: float) -> None:
        self.made.fill_(value)
        torch.cuda.synchronize()

    def write_received(self, value: float) -> None:
        self.got.fill_(value)
        torch.cuda.synchronize()

    def write_part(self, value: float) -> Any:
        """Writes to one of two views of one message. Returns the values of the other view."""
        item = self.end.get(timeout=60)
        item["part"].fill_(value)
        return item["it"].tolist()

    def gradient(self) -> Any:
        (self.got * 2).sum().backward()
        return self.got.grad.tolist()

    def drop(self) -> None:
        self.got = None
        torch.cuda.synchronize()
        assert _received.settle() == 0

    def settle(self) -> int:
        return _received.settle()

    def lent(self) -> int:
        return shmtree.cuda.lent()

    def wait(self) -> None:
        shmtree.cuda.wait_until_released(timeout=60)

    def uuid(self) -> str:
        return _driver.format_uuid(_driver.driver().uuid(0))

    # --- streams

    def put_while_writing(self, value: float) -> dict[str, tuple[bool, float]]:
        """Writes and puts in a new stream. Returns for each step: was the stream busy after it, and milliseconds."""
        load_kernels()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self.made = whole()
            steps = {
                "sleep": lambda: torch.cuda._sleep(BUSY_CYCLES),
                "fill": lambda: self.made.fill_(value),
                "put": lambda: self.end.put({"it": self.made}, timeout=30),
            }
            found = {}
            for name, step in steps.items():
                began = time.perf_counter()
                step()
                found[name] = not stream.query(), round((time.perf_counter() - began) * 1e3, 3)
        return found

    def get_in_a_stream(self) -> Any:
        with torch.cuda.stream(torch.cuda.Stream()):
            self.got = self.end.get(timeout=60)["it"]
            return self.got.tolist()

    def read_late_and_drop(self) -> bool:
        """Queues a kernel that reads the tensor, and drops the last view.

        Returns True if the kernel had not run by then.
        """
        self.late = torch.empty_like(self.got)
        torch.cuda._sleep(BUSY_CYCLES)
        self.late.copy_(self.got)
        self.got = None
        return not torch.cuda.current_stream().query()

    def late_values(self) -> Any:
        return self.late.tolist()

    def wait_and_write(self, value: float) -> None:
        """Writes to the tensor as soon as no process uses it."""
        self.wait()
        self.write(value)


# --- pinned arenas ----------------------------------------------------------------------------------------------------


class Images(torch.utils.data.Dataset[Any]):
    """Images that have their number in every pixel."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return {"image": torch.full((3, 64, 64), float(index)), "number": index}


class PinningPeer:
    """One process with an arena, and a receiver in it."""

    def __init__(self, end: Any, arena: shmtree.Arena | None) -> None:
        self.end = end
        self.arena: Any = arena
        self.kept: Any = None

    def pin(self) -> None:
        torch.cuda.init()  # before that, is_pinned() is False for all memory
        self.arena.pin()

    def unpin(self) -> None:
        self.arena.unpin()

    def pinned_bytes(self) -> int:
        return int(self.arena.pinned_bytes)

    def get(self) -> bool:
        """Returns True if torch recognizes the view as pinned memory."""
        self.kept = self.end.get(timeout=60, copy=False)
        return bool(self.kept["a"].is_pinned())

    def is_pinned(self) -> bool:
        return bool(self.kept["a"].is_pinned())

    def get_to(self) -> Any:
        moved = self.end.get_to(DEVICE, timeout=60)
        assert all(each.is_cuda for each in moved.values())
        return {key: float(each.double().sum()) for key, each in moved.items()}

    def get_to_behind_work(self) -> tuple[bool, int]:
        """Returns True if the device was still busy when get_to() returned, and the number of copies in progress."""
        torch.cuda._sleep(BUSY_CYCLES)
        self.kept = self.end.get_to(DEVICE, timeout=60)
        return not torch.cuda.current_stream().query(), _pinned.settle()

    def copy_behind_work(self) -> bool:
        """Moves a view of get() to the device. Returns True if `to` returned before the copy could be done."""
        self.kept = self.end.get(timeout=60, copy=False)
        torch.cuda._sleep(BUSY_CYCLES)
        self.moved = self.kept["a"].to(DEVICE, non_blocking=True)
        return not torch.cuda.current_stream().query()

    def sum_of_moved(self) -> float:
        return float(self.moved.double().sum())

    def sum_of_kept(self) -> float:
        return float(self.kept["a"].double().sum())

    def copies_left(self) -> int:
        torch.cuda.synchronize()
        return _pinned.settle()

    def fork(self) -> tuple[float, int, str]:
        """Returns the observations of a forked child: the sum of the view, its pinned bytes, and the error when it
        pins.
        """
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                self.arena.pin()
                said = "it was pinned"
            except shmtree.DeviceError as error:
                said = str(error)
            seen = float(self.kept["a"].numpy().sum()), int(self.arena.pinned_bytes), said
            os.write(writing, json.dumps(seen).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            found = json.load(pipe)
        os.waitpid(child, 0)
        return tuple(found)

    def load(self) -> tuple[list[bool], list[bool], list[str]]:
        """Loads all batches. Returns for each: is it pinned, did its images arrive. Also returns all threads."""
        loader = self._loader()
        self.arena.pin()
        pinned, right = [], []
        for batch in loader:
            images = batch["image"].to(DEVICE, non_blocking=True)
            pinned.append(bool(batch["image"].is_pinned()))
            right.append(bool((images.cpu() == batch["number"].view(-1, 1, 1, 1)).all()))
            threads = [thread.name for thread in threading.enumerate()]
        return pinned, right, threads

    def _loader(self) -> Any:
        """The loader of docs/gpu.md."""
        context = copy.copy(multiprocessing.get_context("spawn"))
        context.Queue = self.arena.Queue
        return torch.utils.data.DataLoader(
            Images(), batch_size=8, num_workers=2, multiprocessing_context=context, collate_fn=shmtree.torch.collate
        )

    def draw(self) -> tuple[list[bool], list[bool]]:
        """Samples from a replay buffer in the arena. Returns for each batch: is it pinned, did it reach the device."""
        buffer = ReplayBuffer(256, example={"seen": np.zeros(1000, np.float32), "number": 0}, arena=self.arena)
        for number in range(256):
            buffer.add({"seen": np.full(1000, number, np.float32), "number": number})
        self.arena.pin()
        pinned, right = [], []
        for _ in range(8):
            batch = buffer.sample(64, out="arena")
            moved = batch.to(DEVICE).data
            pinned.append(torch.from_numpy(batch.data["seen"]).is_pinned())
            right.append(bool((moved["seen"] == moved["number"].view(-1, 1)).all()))
        return pinned, right


def message(number: int) -> dict[str, Any]:
    return {"a": torch.full((1_000_000,), float(number)), "b": np.full(50_000, number)}
