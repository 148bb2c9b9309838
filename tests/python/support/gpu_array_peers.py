"""Processes with CuPy or Numba on a real device that send arrays to each other, and import torch only if told to."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np

import shmtree
import shmtree.cuda
from shmtree.cuda import _received


class CuPy:
    def __init__(self) -> None:
        self.cupy = importlib.import_module("cupy")

    def in_a_stream(self) -> Any:
        """Runs the block's device work in a new stream."""
        return self.cupy.cuda.Stream(non_blocking=True)

    def make(self, values: np.ndarray[Any, Any]) -> Any:
        return self.cupy.asarray(values) * 1

    def view(self, received: Any) -> Any:
        return self.cupy.asarray(received)

    def values(self, array: Any) -> np.ndarray[Any, Any]:
        return np.asarray(self.cupy.asnumpy(array))

    def write(self, array: Any, value: float) -> None:
        array[...] = value
        self.cupy.cuda.get_current_stream().synchronize()

    def synchronize(self) -> None:
        self.cupy.cuda.Device().synchronize()


class Numba:
    def __init__(self) -> None:
        self.cuda = importlib.import_module("numba.cuda")
        self.stream: Any = 0

    @contextlib.contextmanager
    def in_a_stream(self) -> Iterator[None]:
        self.stream = self.cuda.stream()
        yield
        self.stream = 0

    def make(self, values: np.ndarray[Any, Any]) -> Any:
        return self.cuda.to_device(values, stream=self.stream)

    def view(self, received: Any) -> Any:
        return self.cuda.as_cuda_array(received)

    def values(self, array: Any) -> np.ndarray[Any, Any]:
        return np.asarray(array.copy_to_host())

    def write(self, array: Any, value: float) -> None:
        array.copy_to_device(np.full(array.shape, value, array.dtype))
        self.synchronize()

    def synchronize(self) -> None:
        self.cuda.synchronize()


class Peer:
    """One process with an end of a channel, which runs the commands of the test."""

    def __init__(self, end: Any, arena: shmtree.Arena | None) -> None:
        self.end = end
        self.library: Any = None
        self.made: Any = None
        self.got: Any = None

    def use(self, name: str) -> None:
        self.library = {"cupy": CuPy, "numba": Numba}[name]()

    def put(self, values: np.ndarray[Any, Any], in_a_stream: bool = False) -> None:
        with self.library.in_a_stream() if in_a_stream else contextlib.nullcontext():
            self.made = self.library.make(values)
            self.end.put({"it": self.made}, timeout=30)

    def put_part(self, values: np.ndarray[Any, Any]) -> Any:
        self.made = self.library.make(values)
        self.end.put({"it": self.made[1:, ::2]}, timeout=30)

    def put_several(self, values: np.ndarray[Any, Any], count: int) -> None:
        self.made = [self.library.make(values + number) for number in range(count)]
        self.end.put({"it": self.made}, timeout=30)

    def get_several(self) -> Any:
        self.got = [self.library.view(each) for each in self.end.get(timeout=60)["it"]]
        return [self.library.values(each) for each in self.got]

    def get(self) -> str:
        received = self.end.get(timeout=60)["it"]
        self.got = self.library.view(received)
        return type(received).__name__

    def get_as_tensor(self) -> Any:
        import torch

        torch.cuda.init()
        self.got = self.end.get(timeout=60)["it"]
        assert type(self.got) is torch.Tensor and self.got.is_cuda
        return self.got.cpu().numpy()

    def received(self) -> Any:
        return self.library.values(self.got)

    def values(self) -> Any:
        return self.library.values(self.made)

    def write_received(self, value: float) -> None:
        self.library.write(self.got, value)

    def through_itself(self, values: np.ndarray[Any, Any]) -> bool:
        sender, receiver = shmtree.create_pair(allow_pickle=False)
        made = self.library.make(values)
        sender.put([made])
        return receiver.get()[0] is made

    def drop(self) -> None:
        self.got = None
        self.library.synchronize()
        assert _received.settle() == 0

    def wait(self) -> None:
        shmtree.cuda.wait_until_released(timeout=60)
