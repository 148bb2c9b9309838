"""Processes that send device memory to each other, with the driver of fake_cuda.c or a real one."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from typing import Any

import device_memory
import numpy as np
from device_memory import DeviceValues

import shmtree
import shmtree.cuda
from shmtree.cuda import _received


class Unnative:
    """An object that needs a pickle."""

    def __eq__(self, other: object) -> bool:
        return type(other) is Unnative

    __hash__ = None  # type: ignore[assignment]


class Peer:
    """One process with an end of a channel, which runs the commands of the test."""

    def __init__(self, end: Any, arena: shmtree.Arena | None) -> None:
        self.end = end
        self.arena: Any = arena
        self.made: list[Any] = []
        self.got: list[Any] = []

    def put(self, values: np.ndarray[Any, Any], stream: int = 1, exportable: bool = True) -> None:
        self.made.append(DeviceValues(values, stream, exportable))
        self.end.put({"it": self.made[-1]}, timeout=30)

    def put_again(self, timeout: float = 30) -> None:
        self.end.put({"it": self.made[-1]}, timeout=timeout)

    def put_with_unnative(self) -> None:
        import sys
        import types

        stand_in: Any = types.ModuleType("cupy")
        stand_in.ndarray = DeviceValues
        sys.modules["cupy"] = stand_in
        self.end.put({"it": self.made[-1], "other": Unnative()}, timeout=30)

    def put_received(self) -> None:
        sender, _ = shmtree.create_pair()
        sender.put(self.got[-1])

    def put_forked(self) -> str:
        reading, writing = os.pipe()
        if os.fork() == 0:
            try:
                self.put_again()
                said = "it went"
            except shmtree.DeviceError as error:
                said = str(error)
            os.write(writing, said.encode())
            os._exit(0)
        os.wait()
        return os.read(reading, 10_000).decode()

    def through_itself(self, values: np.ndarray[Any, Any]) -> bool:
        sender, receiver = shmtree.create_pair(allow_pickle=False)
        made = DeviceValues(values)
        sender.put([made])
        return receiver.get()[0] is made

    def put_to_itself(self, values: np.ndarray[Any, Any]) -> None:
        self.own = shmtree.create_pair()
        self.own[0].put(DeviceValues(values))

    def write(self, values: np.ndarray[Any, Any]) -> None:
        device_memory.write(self.made[-1], values)

    def read_made(self) -> Any:
        return device_memory.read(self.made[-1])

    def get(self) -> tuple[str, Any]:
        item = self.end.get(timeout=30)
        assert item.get("other", Unnative()) == Unnative()
        self.got.append(item["it"])
        return type(item["it"]).__name__, None if type(item["it"]) is list else device_memory.read(item["it"])

    def get_copied(self) -> Any:
        self.got.append(self.end.get(timeout=30, copy=True)["it"])
        return device_memory.read(self.got[-1])

    def read(self) -> Any:
        return device_memory.read(self.got[-1])

    def write_received(self, values: np.ndarray[Any, Any]) -> None:
        device_memory.write(self.got[-1], values)

    def strides(self) -> Any:
        return self.got[-1].__cuda_array_interface__["strides"]

    def drop(self) -> None:
        self.got.pop(0)
        device_memory.memory().settle()

    def keep_busy(self, busy: bool) -> None:
        device_memory.Fake().library.fake_keep_busy(busy)

    def settle(self) -> int:
        return _received.settle()

    def opened(self) -> int:
        return device_memory.memory().opened()

    def events(self) -> int:
        return int(device_memory.Fake().library.fake_event_count())

    def lent(self) -> int:
        return shmtree.cuda.lent()

    def wait(self) -> None:
        shmtree.cuda.wait_until_released(timeout=60)

    def wait_no_time(self) -> None:
        shmtree.cuda.wait_until_released(timeout=0)

    def exit_timeout(self, seconds: float) -> None:
        shmtree.cuda.set_exit_timeout(seconds)

    # --- pinned arenas

    def pin(self) -> None:
        self.arena.pin()

    def unpin(self) -> None:
        self.arena.unpin()

    def close_arena(self) -> None:
        self.arena.close()

    def pinned_bytes(self) -> int:
        return int(self.arena.pinned_bytes)

    def registered(self) -> int:
        return device_memory.memory().registered()

    def get_array(self) -> tuple[int, float]:
        self.got.append(self.end.get(timeout=30, copy=False))
        return self.got[-1].nbytes, float(self.got[-1].sum())

    def make_array(self, nbytes: int) -> None:
        self.got.append(self.arena.new_zeros(nbytes, np.uint8))

    def trim(self) -> int:
        return int(self.arena.trim())


def serve(end: Any, told: Connection, arena: shmtree.Arena | None = None, make_peer: Any = Peer) -> None:
    """Runs the commands that arrive through the pipe, until "end"."""
    peer = make_peer(end, arena)
    while (command := told.recv()) != "end":
        name, *arguments = command
        try:
            told.send((True, getattr(peer, name)(*arguments)))
        except Exception as error:
            told.send((False, (type(error).__name__, str(error), getattr(error, "pids", ()))))
        del arguments
