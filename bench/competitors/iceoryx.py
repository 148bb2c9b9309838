"""iceoryx2's Python binding: slices of bytes in shared memory, and an event that wakes the receiver."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import iceoryx2 as iox2
import numpy as np

from bench.competitors import Base
from bench.competitors.raw import codec

_PREFIX = f"bench{os.getpid()}_"  # pid of the main process, to find leftover files
_ROOT = Path(tempfile.gettempdir()) / f"{_PREFIX}iceoryx2"
_BYTES = iox2.Slice[ctypes.c_uint8]
_WAIT = iox2.Duration.from_millis(100)


class Competitor(Base):
    requires = ("iceoryx2",)
    copies = 3
    _made = 0

    @classmethod
    def sweep(cls) -> None:
        shutil.rmtree(_ROOT, ignore_errors=True)
        for path in Path("/dev/shm").glob(f"{_PREFIX}*"):
            path.unlink(missing_ok=True)

    def __init__(self, capacity: int, nbytes: int, kind: type) -> None:
        Competitor._made += 1
        self.name = f"shmtree-bench-{os.getpid()}-{Competitor._made}"
        self.capacity, self.nbytes = capacity, nbytes + 4096
        self.encode, self.decode = codec(kind)
        self.is_array = kind is np.ndarray

    def services(self) -> tuple[Any, Any]:
        iox2.set_log_level(iox2.LogLevel.Fatal)
        config = iox2.config.default()
        config.global_cfg.prefix = iox2.FileName.new(_PREFIX)
        config.global_cfg.root_path = iox2.Path.new(str(_ROOT))
        builder = iox2.NodeBuilder.new().config(config).signal_handling_mode(iox2.SignalHandlingMode.Disabled)
        self.node = builder.create(iox2.ServiceType.Ipc)
        data = (
            self.node.service_builder(iox2.ServiceName.new(self.name))
            .publish_subscribe(_BYTES)
            .enable_safe_overflow(False)
            .subscriber_max_buffer_size(self.capacity)
            .subscriber_max_borrowed_samples(4)
            .open_or_create()
        )
        return data, self.node.service_builder(iox2.ServiceName.new(self.name)).event().open_or_create()

    def sender(self) -> Callable[[Any], Any]:
        data, event = self.services()
        publisher = (
            data.publisher_builder()
            .initial_max_slice_len(self.nbytes)
            .allocation_strategy(iox2.AllocationStrategy.PowerOfTwo)
            .backpressure_strategy(iox2.BackpressureStrategy.RetryUntilDelivered)
            .create()
        )
        notifier = event.notifier_builder().create()
        encode, self.publisher = self.encode, publisher
        self.lent: tuple[Any, Any] = (None, None)

        def put(message: Any) -> None:
            if message is self.lent[0]:
                sample, self.lent = self.lent[1], (None, None)
            else:
                source = np.frombuffer(encode(message), np.uint8)
                sample = publisher.loan_slice_uninit(source.nbytes)
                ctypes.memmove(sample.payload_ptr, source.ctypes.data, source.nbytes)
            sample.assume_init().send()
            notifier.notify()

        return put

    def loan(self) -> Callable[[tuple[int, ...]], Any]:
        def lend(shape: tuple[int, ...]) -> Any:
            sample = self.publisher.loan_slice_uninit(4 * shape[0])
            array = np.ctypeslib.as_array((ctypes.c_float * shape[0]).from_address(sample.payload_ptr))
            self.lent = array, sample
            return array

        return lend

    def receiver(self) -> Callable[[], Any]:
        data, event = self.services()
        subscriber = data.subscriber_builder().create()
        listener = event.listener_builder().create()
        decode = self.decode

        def get() -> Any:
            while (sample := subscriber.receive()) is None:
                listener.timed_wait(_WAIT)
            payload = sample.payload()
            if not self.is_array:  # a copy: dropping the sample returns its memory to the publisher
                return decode(ctypes.string_at(payload.data_ptr, payload.number_of_elements))
            array = np.frombuffer(payload.as_memory_view(), np.float32)
            weakref.finalize(array, id, sample)  # keeps the sample as long as the view
            return array

        return get
