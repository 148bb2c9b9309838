"""The calls of the CUDA driver that transfer device memory and register host memory.

Nothing is loaded before the first call, and nothing is linked: on a machine without a driver, that call raises one
clear error. Calls run in the device's primary context, which torch, CuPy and Numba use as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from ctypes import byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

from ..errors import DeviceError

NOT_INITIALIZED = 3
NOT_READY = 600

_EVENT_DISABLE_TIMING, _EVENT_INTERPROCESS = 2, 4
_REGISTER_PORTABLE = 1
_LAZY_PEER_ACCESS = 1
_POINTER_BUFFER_ID = 7
_POINTER_DEVICE_ORDINAL = 9

_HANDLE_BYTES = 64


class _Handle(ctypes.Structure):
    """The driver's handle of memory, or of an event, for another process. It is passed by value."""

    _fields_ = [("bytes", c_ubyte * _HANDLE_BYTES)]


#: Names of the library's functions, with their arguments; all return a code.
_SIGNATURES: dict[str, list[Any]] = {
    "cuInit": [c_uint],
    "cuGetErrorName": [c_int, ctypes.POINTER(c_char_p)],
    "cuDeviceGetCount": [ctypes.POINTER(c_int)],
    "cuDeviceGet": [ctypes.POINTER(c_int), c_int],
    "cuDeviceGetUuid_v2": [c_void_p, c_int],
    "cuDevicePrimaryCtxRetain": [ctypes.POINTER(c_void_p), c_int],
    "cuCtxGetCurrent": [ctypes.POINTER(c_void_p)],
    "cuCtxPushCurrent_v2": [c_void_p],
    "cuCtxPopCurrent_v2": [ctypes.POINTER(c_void_p)],
    "cuPointerGetAttribute": [c_void_p, c_int, c_uint64],
    "cuMemGetAddressRange_v2": [ctypes.POINTER(c_uint64), ctypes.POINTER(c_size_t), c_uint64],
    "cuIpcGetMemHandle": [ctypes.POINTER(_Handle), c_uint64],
    "cuIpcOpenMemHandle_v2": [ctypes.POINTER(c_uint64), _Handle, c_uint],
    "cuIpcCloseMemHandle": [c_uint64],
    "cuIpcGetEventHandle": [ctypes.POINTER(_Handle), c_void_p],
    "cuIpcOpenEventHandle": [ctypes.POINTER(c_void_p), _Handle],
    "cuEventCreate": [ctypes.POINTER(c_void_p), c_uint],
    "cuEventRecord": [c_void_p, c_void_p],
    "cuEventQuery": [c_void_p],
    "cuEventSynchronize": [c_void_p],
    "cuEventDestroy_v2": [c_void_p],
    "cuStreamWaitEvent": [c_void_p, c_void_p, c_uint],
    "cuMemHostRegister_v2": [c_void_p, c_size_t, c_uint],
    "cuMemHostUnregister": [c_void_p],
}


class Driver:
    """The functions of the CUDA driver, loaded in this process. Get it from `driver()`."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DeviceError(f"no CUDA driver can be loaded: {error}") from None
        try:
            for name, arguments in _SIGNATURES.items():
                getattr(self._library, name).argtypes = arguments
        except AttributeError as error:
            raise DeviceError(f"the CUDA driver is older than 11.4: {error}") from None
        self._contexts: dict[int, c_void_p] = {}
        self._call("cuInit", 0)
        count = c_int()
        self._call("cuDeviceGetCount", byref(count))
        self._uuids = [self._read_uuid(device) for device in range(count.value)]

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            raise DeviceError(self._explain(name, code), code=code)

    def _explain(self, name: str, code: int) -> str:
        text = c_char_p()
        self._library.cuGetErrorName(code, byref(text))
        said = f"{name} said {(text.value or b'an unknown error').decode()} ({code})"
        if code == NOT_INITIALIZED:
            said += "; a process forked from one that used CUDA cannot use it: start it with spawn"
        return said

    def _read_uuid(self, device: int) -> bytes:
        found, uuid = c_int(), (c_ubyte * 16)()
        self._call("cuDeviceGet", byref(found), device)
        self._call("cuDeviceGetUuid_v2", uuid, found)
        return bytes(uuid)

    # --- devices ------------------------------------------------------------------------------------------------------

    def uuid(self, device: int) -> bytes:
        """Returns the uuid of a device. Two processes may number the devices differently."""
        return self._uuids[device]

    def device_with(self, uuid: bytes) -> int:
        if uuid not in self._uuids:
            raise DeviceError(
                f"the memory is on the CUDA device {format_uuid(uuid)}, which is not visible to this process; visible: "
                f"{', '.join(map(format_uuid, self._uuids)) or 'none'} (see CUDA_VISIBLE_DEVICES)"
            )
        return self._uuids.index(uuid)

    def on(self, device: int) -> contextlib.AbstractContextManager[None]:
        """Makes the device's primary context current in this thread. Pushes it only if another one is current."""
        context = self._contexts.get(device) or self._retain(device)
        current = c_void_p()
        self._call("cuCtxGetCurrent", byref(current))
        return _NOTHING if current.value == context.value else _Pushed(self, context)

    def _retain(self, device: int) -> c_void_p:
        found, context = c_int(), c_void_p()
        self._call("cuDeviceGet", byref(found), device)
        self._call("cuDevicePrimaryCtxRetain", byref(context), found)
        self._contexts[device] = context
        return context

    def push(self, context: c_void_p) -> None:
        self._call("cuCtxPushCurrent_v2", context)

    def pop(self) -> None:
        self._library.cuCtxPopCurrent_v2(byref(c_void_p()))

    # --- memory -------------------------------------------------------------------------------------------------------

    def device_of(self, pointer: int) -> int:
        device = c_int(-1)
        self._call("cuPointerGetAttribute", byref(device), _POINTER_DEVICE_ORDINAL, pointer)
        return device.value

    def buffer_of(self, pointer: int) -> int:
        """Returns the number of the allocation that contains this address. No other allocation ever has that number."""
        number = c_uint64()
        self._call("cuPointerGetAttribute", byref(number), _POINTER_BUFFER_ID, pointer)
        return number.value

    def allocation_of(self, pointer: int) -> tuple[int, int]:
        """Returns the start and the size of the allocation that contains this address."""
        base, size = c_uint64(), c_size_t()
        self._call("cuMemGetAddressRange_v2", byref(base), byref(size), pointer)
        return base.value, size.value

    def memory_handle(self, base: int) -> bytes:
        handle = _Handle()
        self._call("cuIpcGetMemHandle", byref(handle), base)
        return bytes(handle.bytes)

    def open_memory(self, handle: bytes) -> int:
        base = c_uint64()
        self._call("cuIpcOpenMemHandle_v2", byref(base), _Handle.from_buffer_copy(handle), _LAZY_PEER_ACCESS)
        return base.value

    def close_memory(self, base: int) -> None:
        self._call("cuIpcCloseMemHandle", base)

    # --- events and streams; a stream is a handle of the driver, 0 is the default stream ------------------------------

    def create_event(self, is_shared: bool) -> int:
        """Returns a new event, which other processes can open if `is_shared` is true."""
        event = c_void_p()
        flags = _EVENT_DISABLE_TIMING | (_EVENT_INTERPROCESS if is_shared else 0)
        self._call("cuEventCreate", byref(event), flags)
        return event.value or 0

    def record(self, event: int, stream: int) -> None:
        """Makes the event complete when the work that is in the stream now is done."""
        self._call("cuEventRecord", event, stream)

    def event_handle(self, event: int) -> bytes:
        handle = _Handle()
        self._call("cuIpcGetEventHandle", byref(handle), event)
        return bytes(handle.bytes)

    def open_event(self, handle: bytes) -> int:
        event = c_void_p()
        self._call("cuIpcOpenEventHandle", byref(event), _Handle.from_buffer_copy(handle))
        return event.value or 0

    def wait_in_stream(self, stream: int, event: int) -> None:
        """Makes later work in the stream wait for the event. Does not block the caller."""
        self._call("cuStreamWaitEvent", stream, event, 0)

    def has_passed(self, event: int) -> bool:
        code = self._library.cuEventQuery(event)
        if code == NOT_READY:
            return False
        if code != 0:
            raise DeviceError(self._explain("cuEventQuery", code), code=code)
        return True

    def wait_for(self, event: int) -> None:
        self._call("cuEventSynchronize", event)

    def destroy_event(self, event: int) -> None:
        self._call("cuEventDestroy_v2", event)

    # --- host memory --------------------------------------------------------------------------------------------------

    def register_host(self, address: int, nbytes: int) -> None:
        """Pins these pages for all contexts of the process."""
        self._call("cuMemHostRegister_v2", address, nbytes, _REGISTER_PORTABLE)

    def unregister_host(self, address: int) -> None:
        self._call("cuMemHostUnregister", address)


_NOTHING = contextlib.nullcontext()


class _Pushed:
    """Context manager that pushes a context and pops it again."""

    def __init__(self, driver: Driver, context: c_void_p) -> None:
        self._driver = driver
        self._context = context

    def __enter__(self) -> None:
        self._driver.push(self._context)

    def __exit__(self, *exception: object) -> None:
        self._driver.pop()


_driver: tuple[int, Driver] | None = None
_lock = threading.Lock()


def driver() -> Driver:
    """Returns the driver, which the first call loads.

    Raises DeviceError if there is none, or if this process was forked from one that uses CUDA.
    """
    global _driver
    if (loaded := _driver) is not None and loaded[0] == os.getpid():
        return loaded[1]
    with _lock:
        if _driver is None:
            _driver = (os.getpid(), Driver())
        pid, found = _driver
    if pid != os.getpid():
        raise DeviceError(f"this process was forked from process {pid} after that had used CUDA; start it with spawn")
    return found


def is_in_use() -> bool:
    """Returns True if this process itself has loaded the driver; a driver that a forked child inherits does not
    count."""
    return _driver is not None and _driver[0] == os.getpid()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def format_uuid(uuid: bytes) -> str:
    text = uuid.hex()
    return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
