"""Measures typed messages: Cap'n Proto, packed structs, dicts, and iceoryx2 with FlatBuffers.

    python -m bench.typed [--seconds 1] [--rounds 3]

Each message has a number, a name and bytes, and is built again for each put. The receiver reads the number, the name,
and the first and last byte. Prints microseconds per message for a stream through a channel of eight messages: the
median of the rounds. Needs pycapnp, and for the last column iceoryx2 and flatbuffers. `bench/cpp/typed.cpp` does the
same in C++.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import multiprocessing
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import shmtree
from bench import markdown

SIZES = {"100 B": 100, "10 KB": 10_000, "1 MB": 1_000_000}
NAME = "camera/left"
_CAPACITY = 8
_HEAD = struct.Struct("<QI12s")
_SCHEMA = """@0xc8f3b7a1d24e5f60;
struct Image @0xc8f3b7a1d24e5f61 { seq @0 :UInt64; name @1 :Text; data @2 :Data; }
"""

Put = Callable[[int, bytes], object]
Get = Callable[[], tuple[int, str, int, int]]


class _Pair:
    """A shmtree pair. Subclasses make and read the messages."""

    needs: tuple[str, ...] = ()

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.ends = shmtree.create_pair(capacity=_CAPACITY)

    def put(self) -> Put:
        sender, make = self.ends[0], self.maker()
        return lambda seq, data: sender.put(make(seq, data))

    def get(self) -> Get:
        receiver, read = self.ends[1], self.reader()
        return lambda: read(receiver.get(timeout=60))

    def maker(self) -> Callable[[int, bytes], Any]:
        raise NotImplementedError

    def reader(self) -> Callable[[Any], tuple[int, str, int, int]]:
        raise NotImplementedError


class Packed(_Pair):
    """A struct packed by hand, as bytes."""

    def maker(self) -> Callable[[int, bytes], Any]:
        return lambda seq, data: _HEAD.pack(seq, len(data), NAME.encode()) + data

    def reader(self) -> Callable[[Any], tuple[int, str, int, int]]:
        def read(message: bytes) -> tuple[int, str, int, int]:
            seq, size, name = _HEAD.unpack_from(message)
            return seq, name.rstrip(b"\0").decode(), message[_HEAD.size], message[_HEAD.size + size - 1]

        return read


class Native(_Pair):
    """A dict of shmtree's own kinds."""

    def maker(self) -> Callable[[int, bytes], Any]:
        return lambda seq, data: {"seq": seq, "name": NAME, "data": np.frombuffer(data, np.uint8)}

    def reader(self) -> Callable[[Any], tuple[int, str, int, int]]:
        return lambda message: (message["seq"], message["name"], int(message["data"][0]), int(message["data"][-1]))


class Capnp(_Pair):
    """A message of Cap'n Proto, by pycapnp."""

    needs = ("capnp",)

    @staticmethod
    @functools.cache  # pycapnp rejects the same schema from a second path
    def schema() -> Any:
        import capnp

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "image.capnp"
            path.write_text(_SCHEMA)
            return capnp.load(str(path)).Image

    def maker(self) -> Callable[[int, bytes], Any]:
        image = self.schema()
        return lambda seq, data: shmtree.CapnpMessage.from_builder(image.new_message(seq=seq, name=NAME, data=data))

    def reader(self) -> Callable[[Any], tuple[int, str, int, int]]:
        image = self.schema()

        def read(message: shmtree.CapnpMessage) -> tuple[int, str, int, int]:
            reader = message.reader(image)
            data = reader.data
            return reader.seq, reader.name, data[0], data[-1]

        return read


class FlatBuffers:
    """Sends FlatBuffers as byte slices through iceoryx2's publish-subscribe service."""

    needs = ("iceoryx2", "flatbuffers")

    def __init__(self, nbytes: int) -> None:
        from bench.competitors.iceoryx import Competitor

        self.channel = Competitor(_CAPACITY, nbytes, bytes)

    def put(self) -> Put:
        import flatbuffers

        send = self.channel.sender()

        def put(seq: int, data: bytes) -> None:
            builder = flatbuffers.Builder(len(data) + 256)
            name, image = builder.CreateString(NAME), builder.CreateByteVector(data)
            builder.StartObject(3)
            builder.PrependUint64Slot(0, seq, 0)
            builder.PrependUOffsetTRelativeSlot(1, name, 0)
            builder.PrependUOffsetTRelativeSlot(2, image, 0)
            builder.Finish(builder.EndObject())
            send(bytes(builder.Output()))

        return put

    def get(self) -> Get:
        import flatbuffers
        from flatbuffers import number_types as types

        receive = self.channel.receiver()

        def get() -> tuple[int, str, int, int]:
            message = receive()
            root = flatbuffers.encode.Get(flatbuffers.packer.uoffset, message, 0)
            table = flatbuffers.table.Table(message, root)
            place = table.Offset(4)  # FlatBuffers omits a field with the default value 0
            seq = table.Get(types.Uint64Flags, place + root) if place else 0
            name = table.String(table.Offset(6) + root).decode()
            first, count = table.Vector(table.Offset(8)), table.VectorLen(table.Offset(8))
            return seq, name, message[first], message[first + count - 1]

        return get


COLUMNS: dict[str, type[_Pair] | type[FlatBuffers]] = {
    "packed struct": Packed,
    "dict": Native,
    "Cap'n Proto": Capnp,
    "iceoryx2, FlatBuffers": FlatBuffers,
}


def _receive(channel: _Pair | FlatBuffers, orders: Any) -> None:
    get = channel.get()
    orders.send("ready")
    while count := orders.recv():
        for seq in range(count):
            got = get()
            if got != (seq, NAME, 1, 2):
                raise AssertionError(f"{got} is not message {seq}")
        orders.send("received")


def measure(kind: type[_Pair] | type[FlatBuffers], nbytes: int, seconds: float, rounds: int) -> float:
    """Returns microseconds per message: the median of `rounds` rounds of about `seconds` each."""
    context = multiprocessing.get_context("fork")
    channel = kind(nbytes)
    orders, theirs = context.Pipe()
    receiver = context.Process(target=_receive, args=(channel, theirs))
    receiver.start()
    theirs.close()  # so that recv() fails if the receiver dies
    put = channel.put()
    orders.recv()
    data = b"\1" + bytes(nbytes - 2) + b"\2"

    def stream(count: int) -> float:
        orders.send(count)
        began = time.perf_counter()
        for seq in range(count):
            put(seq, data)
        orders.recv()
        return time.perf_counter() - began

    count = 50
    stream(count)
    count = max(50, int(count * seconds / stream(count)))
    times = [stream(count) / count * 1e6 for _ in range(rounds)]
    orders.send(0)
    receiver.join(60)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds per round (default: 1)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds per figure (default: 3)")
    options = parser.parse_args()
    rows = []
    for label, nbytes in SIZES.items():
        cells = [label]
        for kind in COLUMNS.values():
            there = all(importlib.util.find_spec(name) is not None for name in kind.needs)
            cells.append(f"{measure(kind, nbytes, options.seconds, options.rounds):.1f}" if there else "not here")
        rows.append(cells)
    print(markdown.table(["microseconds per message", *COLUMNS], rows), end="")


if __name__ == "__main__":
    main()
