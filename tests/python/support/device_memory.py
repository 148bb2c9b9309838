"""Device memory for tests: of fake_cuda.c if $FAKE_CUDA_DIR is set, else of the driver."""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

import numpy as np

from shmtree.cuda import _driver, _pinned, _received


class Fake:
    """Memory of the fake driver: a file in $FAKE_CUDA_DIR, which the host can read."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.library.fake_allocate.restype = c_uint64
        self.library.fake_allocate.argtypes = [c_size_t, c_int]
        self.library.fake_registered.restype = c_size_t
        self.library.fake_registered.argtypes = [c_uint64, c_size_t]

    def allocate(self, nbytes: int, exportable: bool) -> int:
        return int(self.library.fake_allocate(nbytes, exportable))

    def read(self, pointer: int, nbytes: int) -> bytes:
        return ctypes.string_at(pointer, nbytes)

    def write(self, pointer: int, data: bytes) -> None:
        ctypes.memmove(pointer, data, len(data))

    def opened(self) -> int:
        """Returns the number of allocations of other processes that the driver has open in this process."""
        return int(self.library.fake_open_count())

    def registered(self) -> int:
        """Returns the number of bytes of host memory that are registered."""
        return int(self.library.fake_registered(0, 2**63))

    def settle(self) -> None:
        pass


class Real:
    """Memory of the real driver, on the first device."""

    _HOST = 1
    _MEMORY_TYPE = 2
    _UNIT = 2 << 20  # the driver packs smaller allocations into one unit, and exports that whole unit

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.driver = _driver.driver()

    def call(self, name: str, *arguments: Any) -> None:
        with self.driver.on(0):
            code = getattr(self.library, name)(*arguments)
        assert code == 0, f"{name} said {code}"

    def allocate(self, nbytes: int, exportable: bool) -> int:
        pointer, nbytes = c_uint64(), -(-nbytes // self._UNIT) * self._UNIT
        if exportable:
            self.call("cuMemAlloc_v2", byref(pointer), c_size_t(nbytes))
        else:  # memory of a pool, which has no handle to export
            self.call("cuMemAllocAsync", byref(pointer), c_size_t(nbytes), c_void_p(0))
        return pointer.value

    def read(self, pointer: int, nbytes: int) -> bytes:
        data = ctypes.create_string_buffer(nbytes)
        self.call("cuMemcpyDtoH_v2", data, c_uint64(pointer), c_size_t(nbytes))
        return data.raw

    def write(self, pointer: int, data: bytes) -> None:
        self.call("cuMemcpyHtoD_v2", c_uint64(pointer), data, c_size_t(len(data)))
        # The copy from pageable memory returns once the driver has staged the data, before the device has it.
        self.call("cuCtxSynchronize")

    def opened(self) -> int:
        return len(_received._opened)

    def registered(self) -> int:
        blocks = [block for pinned in _pinned._pinned.values() for block in pinned.blocks.items()]
        return sum(nbytes for address, nbytes in blocks if self._is_registered(address))

    def _is_registered(self, address: int) -> bool:
        kind = c_int()
        with self.driver.on(0):
            code = self.library.cuPointerGetAttribute(byref(kind), self._MEMORY_TYPE, c_uint64(address))
        return code == 0 and kind.value == self._HOST

    def settle(self) -> None:
        """Waits until the events of dropped memory have passed."""
        self.call("cuCtxSynchronize")
        assert _received.settle() == 0


@functools.cache
def memory() -> Fake | Real:
    return Fake() if "FAKE_CUDA_DIR" in os.environ else Real()


class DeviceValues:
    """An array on a device. Like arrays of caching allocators, it is a part of a larger allocation."""

    def __init__(self, values: np.ndarray[Any, Any], stream: int = 1, exportable: bool = True) -> None:
        first = 256
        base = memory().allocate(first + values.nbytes + 64, exportable)
        self.interface = {
            "typestr": values.dtype.str,
            "shape": values.shape,
            "strides": values.strides,
            "data": (base + first, False),
            "stream": stream,
            "version": 3,
        }
        write(self, values)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.interface

    def __reduce__(self) -> Any:
        return type(self).on_host, (read(self).tolist(),)

    @staticmethod
    def on_host(values: list[Any]) -> list[Any]:
        """Marks an array that was pickled, so that tests detect it."""
        return ["by pickle", *values]


def _host_copy(array: Any) -> tuple[np.ndarray[Any, Any], int, bytearray]:
    """Copies the bytes that the array spans. Returns a view of the copy, the address of the original, and the copy."""
    known = array.__cuda_array_interface__
    dtype, shape = np.dtype(known["typestr"]), known["shape"]
    pointer = known["data"][0]
    strides = known["strides"] or np.empty(shape, dtype).strides
    reach = 0
    if 0 not in shape:
        reach = sum((count - 1) * step for count, step in zip(shape, strides, strict=True)) + dtype.itemsize
    copied = bytearray(memory().read(pointer, reach) if reach else b"")
    return np.ndarray(shape, dtype, copied, 0, strides), pointer, copied


def read(array: Any) -> np.ndarray[Any, Any]:
    """Returns the current values of an array on a device."""
    return _host_copy(array)[0].copy()


def write(array: Any, values: np.ndarray[Any, Any]) -> None:
    """Writes values to an array on a device. Returns when they are written."""
    view, pointer, copied = _host_copy(array)
    view[...] = values
    if copied:
        memory().write(pointer, bytes(copied))
