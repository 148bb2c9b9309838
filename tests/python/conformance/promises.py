"""Ends and their promises. A new kind of end is an adapter, and a row; a new promise is a column, and a test.

`docs/concepts.md` shows the table; `test_ends_and_promises.py` compares both.
"""

from __future__ import annotations

import multiprocessing as mp
import pickle
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import shmtree
from shmtree.multiprocessing import Pipe

#: Promises by column, with their titles on the page.
TITLES = {
    "get_timeout": "get with a timeout",
    "put_timeout": "put waits for readers",
    "loop": "`for`",
    "get_async": "`get_async`",
    "put_async": "`put_async`",
    "loop_async": "`async for`",
    "poll": "`fileno`, `wait`",
    "size": "`qsize`, `empty`",
    "stream_end": "the stream ends",
    "writer_death": "a writer is killed",
    "reader_death": "a reader is killed",
    "failure": "a writer's `with` block fails",
    "arrays": "large arrays arrive as",
    "message": "in messages without pickle",
    "name": "by name",
}

#: Each end's row: the cell of each promise, in the order of `TITLES`. An end does not promise what has a dash.
PROMISES = {
    "pair": "yes|yes|yes|yes|yes|yes|yes|yes|after all writers|PeerDied|PeerDied|WorkerFailed|writable views|yes|yes",
    "Queue": "yes|yes|yes|yes|yes|yes|yes|yes|after shutdown|option|option|-|writable views|yes|yes",
    "SimpleQueue": "yes|-|yes|yes|yes|yes|yes|yes|after shutdown|option|-|-|writable views|yes|yes",
    "Pipe": "-|-|-|-|-|-|yes|-|after all writers|ConnectionLost|ConnectionLost|ConnectionLost|writable views|yes|-",
    "Broadcast": "yes|yes|yes|yes|yes|yes|yes|yes|after all writers|PeerDied|no effect|WorkerFailed|read-only views|yes|yes",  # noqa: E501
    "Latest": "yes|-|-|yes|-|-|-|-|after all writers|PeerDied|no effect|WorkerFailed|read-only views|yes|yes",
    "Service": "yes|yes|yes|yes|-|yes|-|-|-|-|PeerDied|-|writable views|-|yes",
    "shmtree.ray": "yes|yes|yes|yes|yes|yes|yes|yes|after all writers|PeerDied|PeerDied|WorkerFailed|writable views|-|-",  # noqa: E501
}


def cells(row: str) -> dict[str, str]:
    return dict(zip(TITLES, PROMISES[row].split("|"), strict=True))


def page() -> str:
    """Returns the table of the page, with a row for each promise."""
    lines = [["", *(f"`{row}`" if row != "pair" else "pair" for row in PROMISES)], ["---"] * (1 + len(PROMISES))]
    lines += [[title, *(cells(row)[column] for row in PROMISES)] for column, title in TITLES.items()]
    return "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in lines)


class End:
    """A kind of end. The defaults are those of a pair."""

    row = "pair"
    capacity = "capacity"
    ended: type[Exception] = shmtree.ChannelClosed  # what `get` raises at the end of the stream
    dead: type[Exception] = shmtree.PeerDied
    ends_with_death = True  # reports the death of its last writer once, and then the end of the stream
    death_options: ClassVar[dict[str, Any]] = {}
    #: Calls that show that the end lacks a promise, and their errors
    lacks: ClassVar[dict[str, tuple[Callable[[Any, Any], Any], type[Exception]]]] = {}

    constructor: ClassVar[Callable[..., Any]] = shmtree.create_pair

    def make(self, **options: Any) -> tuple[Any, Any]:
        return shmtree.create_pair(**options)

    def put(self, writer: Any, value: Any, **wait: Any) -> Any:
        return writer.put(value, **wait)

    def get(self, reader: Any, **options: Any) -> Any:
        return reader.get(**options)

    async def get_async(self, reader: Any, **options: Any) -> Any:
        return await reader.get_async(**options)

    def end(self, writer: Any) -> None:
        writer.close()

    def pipe(self, method: str = "fork") -> tuple[Any, Any]:
        """Returns the two ends of a pipe between the test and the process that it starts."""
        return mp.get_context(method).Pipe()


class Queue(End):
    row = "Queue"
    capacity = "maxsize"
    ended = shmtree.ShutDown
    ends_with_death = False
    death_options: ClassVar[dict[str, Any]] = {"on_peer_death": "raise"}
    constructor: ClassVar[Callable[..., Any]] = shmtree.Queue
    lacks: ClassVar[dict[str, Any]] = {"failure": (lambda queue, _: queue.fail, AttributeError)}

    def make(self, **options: Any) -> tuple[Any, Any]:
        made = type(self).constructor(**options)
        return made, made

    def end(self, writer: Any) -> None:
        writer.shutdown()


class JoinableQueue(Queue):
    constructor = shmtree.JoinableQueue


class SimpleQueue(Queue):
    row = "SimpleQueue"
    constructor = shmtree.SimpleQueue
    no_limit = (lambda *_: shmtree.SimpleQueue(maxsize=1), TypeError)  # type: ignore[call-arg]
    lacks: ClassVar[dict[str, Any]] = {**Queue.lacks, "put_timeout": no_limit, "reader_death": no_limit}


class Connection(End):
    row = "Pipe"
    constructor = Pipe
    dead = shmtree.ConnectionLost
    lacks: ClassVar[dict[str, Any]] = {
        "get_timeout": (lambda _, reader: reader.recv(timeout=0), TypeError),
        "put_timeout": (lambda writer, _: writer.send(1, timeout=0), TypeError),
        "loop": (lambda _, reader: iter(reader), TypeError),
        "get_async": (lambda _, reader: reader.get_async, AttributeError),
        "put_async": (lambda writer, _: writer.put_async, AttributeError),
        "loop_async": (lambda _, reader: reader.__aiter__, AttributeError),
        "size": (lambda _, reader: reader.qsize, AttributeError),
        "name": (lambda *_: Pipe(name="x"), TypeError),  # type: ignore[call-arg]
    }

    def make(self, **options: Any) -> tuple[Any, Any]:
        there, here = Pipe(**options)
        return there, here

    def put(self, writer: Any, value: Any, **_: Any) -> Any:
        return writer.send(value)

    def get(self, reader: Any, timeout: float | None = None, **options: Any) -> Any:
        if timeout is not None:
            assert reader.poll(timeout)
        return reader.recv(**options)


class Broadcast(End):
    row = "Broadcast"
    ends_with_death = False
    constructor = shmtree.Broadcast

    def make(self, **options: Any) -> tuple[Any, Any]:
        made: Any = shmtree.Broadcast(**options)
        return made, made.subscribe()


class Latest(End):
    """Its reader is another object of the same Latest, so that each can be closed by itself."""

    row = "Latest"
    ends_with_death = False
    constructor = shmtree.Latest
    lacks: ClassVar[dict[str, Any]] = {
        "put_timeout": (lambda *_: shmtree.Latest(capacity=1), TypeError),  # type: ignore[call-arg]
        "loop": (lambda _, reader: iter(reader), TypeError),
        "put_async": (lambda writer, _: writer.put_async, AttributeError),
        "loop_async": (lambda _, reader: reader.__aiter__, AttributeError),
        "poll": (lambda _, reader: shmtree.wait([reader], timeout=0), TypeError),
        "size": (lambda _, reader: reader.qsize, AttributeError),
    }

    def __init__(self) -> None:
        self._seen: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # version by reader

    def make(self, **options: Any) -> tuple[Any, Any]:
        made: Any = shmtree.Latest(**options)
        return made, pickle.loads(pickle.dumps(made))

    def put(self, writer: Any, value: Any, **wait: Any) -> Any:
        return writer.publish(value, **wait)

    def get(self, reader: Any, **options: Any) -> Any:
        self._seen[reader], value = reader.get(self._seen.get(reader, 0), **options)
        return value

    async def get_async(self, reader: Any, **options: Any) -> Any:
        self._seen[reader], value = await reader.get_async(self._seen.get(reader, 0), **options)
        return value


class Service(End):
    """Its writer is a client, and its reader the service. A message is a request, which is answered at once."""

    row = "Service"
    constructor = shmtree.Service
    lacks: ClassVar[dict[str, Any]] = {
        "put_async": (lambda writer, _: writer.put_async, AttributeError),
        "poll": (lambda _, reader: shmtree.wait([reader], timeout=0), TypeError),
        "size": (lambda _, reader: reader.qsize, AttributeError),
        "stream_end": (lambda *_: shmtree.Service(keep_open=False), ValueError),
        "writer_death": (lambda *_: shmtree.Service(on_peer_death="raise"), TypeError),  # type: ignore[call-arg]
        "failure": (lambda writer, _: writer.fail, AttributeError),
        "message": (lambda writer, _: shmtree.pack(writer, allow_pickle=False), shmtree.PickleRefused),
    }

    def make(self, **options: Any) -> tuple[Any, Any]:
        made: Any = shmtree.Service(**options)
        return shmtree.Client(made), made

    def put(self, writer: Any, value: Any, **wait: Any) -> Any:
        return writer.submit(value, **wait)

    def get(self, reader: Any, **options: Any) -> Any:
        return self._answer(reader.get(**options))

    async def get_async(self, reader: Any, **options: Any) -> Any:
        return self._answer(await reader.get_async(**options))

    def _answer(self, request: Any) -> Any:
        request.reply(None)
        return request.value


ENDS: dict[str, End] = {
    "pair": End(),
    "queue": Queue(),
    "joinable queue": JoinableQueue(),
    "simple queue": SimpleQueue(),
    "pipe": Connection(),
    "broadcast": Broadcast(),
    "latest": Latest(),
    "service": Service(),
}


def promising(promise: str | None) -> list[str]:
    """Returns the names of the ends that make the promise; None: of all ends."""
    return [name for name, end in ENDS.items() if promise is None or cells(end.row)[promise] != "-"]


# Functions of other processes


def put_one(name: str, writer: Any) -> None:
    ENDS[name].put(writer, 1)


def pass_on(name: str, reader: Any, writer: Any, told: Any) -> None:
    """Passes one message on, and stays until the parent sends something."""
    ENDS[name].put(writer, ENDS[name].get(reader, timeout=60))
    told.send("passed on")
    told.recv()


def get_and_stay(name: str, reader: Any, told: Any) -> None:
    told.send(ENDS[name].get(reader, timeout=60))
    told.recv()
