"""cloudtoid-interprocess: a ring of byte messages in a mapped file. A full ring refuses, so the sender tries again."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudtoid_interprocess
import numpy as np

from bench.competitors import Base
from bench.competitors.raw import codec

_ROOT = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
_FOLDER = f"shmtree-bench-{os.getpid()}-cloudtoid"


class Competitor(Base):
    requires = ("cloudtoid-interprocess",)
    is_bounded = True
    _made = 0

    @classmethod
    def sweep(cls) -> None:
        shutil.rmtree(_ROOT / _FOLDER, ignore_errors=True)

    def __init__(self, capacity: int, nbytes: int, kind: type) -> None:
        Competitor._made += 1
        self.name = f"channel-{Competitor._made}"
        (_ROOT / _FOLDER).mkdir(exist_ok=True)
        self.encode, self.decode = codec(kind)
        if kind is np.ndarray:  # it accepts contiguous buffers of any type
            self.encode = np.ndarray.tobytes
        # Messages have a header, and pickles are longer than their payload.
        self.ring_bytes = 1 << (capacity * (nbytes + 1024)).bit_length()
        self.kept = self.end(cloudtoid_interprocess.Publisher)  # a queue without ends is deleted

    def end(self, kind: Any) -> Any:
        return kind(self.name, self.ring_bytes, path=str(_ROOT / _FOLDER))

    def sender(self) -> Callable[[Any], Any]:
        try_send, encode = self.end(cloudtoid_interprocess.Publisher).try_send, self.encode

        def put(message: Any) -> None:
            data = encode(message)
            while not try_send(data):
                pass

        return put

    def receiver(self) -> Callable[[], Any]:
        receive, decode = self.end(cloudtoid_interprocess.Subscriber).receive, self.decode
        return lambda: decode(receive())

    def close(self) -> None:
        self.kept.close()
