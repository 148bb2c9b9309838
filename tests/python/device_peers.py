"""Processes that hand memory of a device to each other, on the driver of fake_cuda.c, which is loaded when used."""

from __future__ import annotations

import ctypes
import os
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import shmtree
import shmtree.cuda
from shmtree import _cuda_received


def fake() -> Any:
    library = ctypes.CDLL("libcuda.so.1")
    library.fake_allocate.restype = ctypes.c_uint64
    library.fake_allocate.argtypes = [ctypes.c_size_t, ctypes.c_int]
    library.fake_registered.restype = ctypes.c_size_t
    library.fake_registered.argtypes = [ctypes.c_uint64, ctypes.c_size_t]
    return library


class DeviceValues:
    """An array on a device: a part of a larger allocation, as those of caching allocators are."""

    def __init__(self, values: np.ndarray[Any, Any], stream: int = 1, exportable: bool = True) -> None:
        first = 256
        base = fake().fake_allocate(first + values.nbytes + 64, exportable)
        self.interface = {
            "typestr": values.dtype.str,
            "shape": values.shape,
            "strides": values.strides,
            "data": (base + first, False),
            "stream": stream,
            "version": 3,
        }
        view(self)[...] = values

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.interface

    def __reduce__(self) -> Any:
        return type(self).on_host, (view(self).tolist(),)

    @staticmethod
    def on_host(values: list[Any]) -> list[Any]:
        """What pickle makes of one, so that tests see when it was pickle."""
        return ["by pickle", *values]


def view(array: Any) -> np.ndarray[Any, Any]:
    """The memory of a device array, which a host can read when the device is a fake."""
    known = array.__cuda_array_interface__
    dtype, shape = np.dtype(known["typestr"]), known["shape"]
    strides = known["strides"] or np.empty(shape, dtype).strides
    reach = sum((count - 1) * step for count, step in zip(shape, strides, strict=True)) + dtype.itemsize
    memory = (ctypes.c_ubyte * reach).from_address(known["data"][0])
    return np.ndarray(shape, dtype, memory, 0, strides)


class Unnative:
    """Only pickle can send it."""

    def __eq__(self, other: object) -> bool:
        return type(other) is Unnative

    __hash__ = None  # type: ignore[assignment]


class Peer:
    """One process with an end of a channel, that does as it is told."""

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
        view(self.made[-1])[...] = values

    def read_made(self) -> Any:
        return view(self.made[-1]).copy()

    def get(self) -> tuple[str, Any]:
        item = self.end.get(timeout=30)
        assert item.get("other", Unnative()) == Unnative()
        self.got.append(item["it"])
        return type(item["it"]).__name__, None if type(item["it"]) is list else view(item["it"]).copy()

    def get_copied(self) -> Any:
        self.got.append(self.end.get(timeout=30, copy=True)["it"])
        return view(self.got[-1]).copy()

    def read(self) -> Any:
        return view(self.got[-1]).copy()

    def write_received(self, values: np.ndarray[Any, Any]) -> None:
        view(self.got[-1])[...] = values

    def strides(self) -> Any:
        return self.got[-1].__cuda_array_interface__["strides"]

    def drop(self) -> None:
        self.got.pop(0)

    def keep_busy(self, busy: bool) -> None:
        fake().fake_keep_busy(busy)

    def settle(self) -> int:
        return _cuda_received.settle()

    def opened(self) -> int:
        return int(fake().fake_open_count())

    def events(self) -> int:
        return int(fake().fake_event_count())

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
        return int(fake().fake_registered(0, 2**63))

    def get_array(self) -> tuple[int, float]:
        self.got.append(self.end.get(timeout=30, copy=False))
        return self.got[-1].nbytes, float(self.got[-1].sum())

    def make_array(self, nbytes: int) -> None:
        self.got.append(self.arena.new_zeros(nbytes, np.uint8))

    def trim(self) -> int:
        return int(self.arena.trim())


def serve(end: Any, told: Connection, arena: shmtree.Arena | None = None) -> None:
    """Does what comes through the pipe until that is "end"."""
    peer = Peer(end, arena)
    told.send(os.getpid())
    while (command := told.recv()) != "end":
        name, *arguments = command
        try:
            told.send((True, getattr(peer, name)(*arguments)))
        except Exception as error:
            told.send((False, (type(error).__name__, str(error), getattr(error, "pids", ()))))
        del arguments


def put_tensors(sender: shmtree.Sender, told: Connection) -> None:
    """On a real device: a strided tensor, one of a dtype that the interface lacks, a parameter."""
    import torch

    whole = torch.arange(4000.0, device="cuda").reshape(40, 100)
    sender.put([whole[1:, ::2], whole.to(torch.bfloat16), torch.nn.Parameter(whole.clone())])
    told.recv()
    told.send(float(whole[1, 0]))
    shmtree.cuda.wait_until_released(timeout=60)
    told.send(shmtree.cuda.lent())
