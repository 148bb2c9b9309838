"""cloudtoid-interprocess: a ring of byte messages in a mapped file. A full ring refuses, so the sender tries again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cloudtoid_interprocess

from bench.competitors import InFolder
from bench.competitors.raw import codec


class Competitor(InFolder):
    requires = ("cloudtoid-interprocess",)
    is_bounded = True

    def __init__(self, capacity: int, nbytes: int, kind: type) -> None:
        self.name = self.new_name()
        self.encode, self.decode = codec(kind)
        # Messages have a header, and pickles are longer than their payload.
        self.ring_bytes = 1 << (capacity * (nbytes + 1024)).bit_length()
        self.kept = self.end(cloudtoid_interprocess.Publisher)  # a queue without ends is deleted

    def end(self, kind: Any) -> Any:
        return kind(self.name, self.ring_bytes, path=str(self.folder()))

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
