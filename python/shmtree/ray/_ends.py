"""The ends of a pair, on any node."""

from __future__ import annotations

import contextlib
import queue
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from .. import errors
from .._ipc.channel import Receiver as LocalReceiver
from .._ipc.channel import Sender as LocalSender
from .._process import handles as _grants
from .._public import made_by
from . import _handles
from ._deaths import PeerDied, told_of_end
from ._gateways import Ended

_R = TypeVar("_R")


class Pair(NamedTuple):
    """Data of a pair that each of its ends has."""

    number: int
    home: str  # node id
    machine: str  # machine of the home
    terms: _handles.Terms
    handle: bytes  # handle of the ring

    def settle(self, given: list[tuple[str, int]], taken: list[tuple[str, int]]) -> None:
        from . import _actors

        with contextlib.suppress(Ended):
            _actors.call(self.home, "settle", self.number, given, taken)


def new_token() -> int:
    return random.getrandbits(62)


def make_pair(terms: _handles.Terms, home: Any) -> tuple[Pair, int, int]:
    """Makes a pair at that home, see `create_pair`. Returns it with the tokens of a sender and a receiver."""
    from . import _actors

    node = _actors.node_of(home)
    number, sending, receiving = new_token(), new_token(), new_token()
    with told_of_end("Ray was shut down in this process"):
        handle, machine = _actors.call(node, "host", number, terms, {"s": sending, "r": receiving})
    return Pair(number, node, machine, terms, handle), sending, receiving


@made_by("shmtree.ray.create_pair()")
class Sender(LocalSender[Any]):
    """An ordinary `shmtree.Sender` that can be passed to tasks and actors on any node."""

    __slots__ = ("_pair",)
    _pair: Pair

    def __reduce__(self) -> tuple[Any, ...]:
        return _give(self, "s")


@made_by("shmtree.ray.create_pair()")
class Receiver(LocalReceiver[Any]):
    """An ordinary `shmtree.Receiver` that can be passed to tasks and actors on any node."""

    __slots__ = ("_pair",)
    _pair: Pair

    def __reduce__(self) -> tuple[Any, ...]:
        return _give(self, "r")


class RemoteSender(Sender):
    """A Sender on another node than the home of its pair.

    A gateway moves what it puts to the home, and reports the processes that were killed there.
    """

    __slots__ = ()

    def put(self, obj: Any, block: bool = True, timeout: float | None = None, *, move: bool = False) -> int:
        with self._told():
            return super().put(obj, block, timeout, move=move)

    def put_nowait(self, obj: Any, *, move: bool = False) -> int:
        return self.put(obj, False, move=move)

    def put_many(self, iterable: Any, timeout: float | None = None) -> int:
        with self._told():
            return super().put_many(iterable, timeout)

    def wait_for_ack(self, ticket: int, timeout: float | None = None) -> None:
        with self._told():
            super().wait_for_ack(ticket, timeout)

    def wait_for_all_ack(self, timeout: float | None = None) -> None:
        with self._told():
            super().wait_for_all_ack(timeout)

    def flush(self, timeout: float | None = None) -> None:
        self.wait_for_all_ack(timeout)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except queue.Full as full:
            trouble = self._ask("trouble")
            raise queue.Full(f"{full}; {trouble}" if trouble else str(full)) from None
        except errors.ChannelClosed:
            peers = () if self.closed else self._ask("why")
            if peers:
                raise PeerDied(peers) from None
            raise

    def _ask(self, method: str) -> Any:
        """Calls the gateway of this node. Returns None if the job has ended in this process."""
        from . import _actors

        with contextlib.suppress(Ended):
            return _actors.call_own(method, self._pair.number)
        return None


class RemoteReceiver(Receiver):
    """A Receiver on another node than the home of its pair. Unsuccessful calls count as requests for messages, too."""

    __slots__ = ()

    def get(self, block: bool = True, timeout: float | None = None, *, copy: bool | None = None) -> Any:
        with self._asking():
            return super().get(block, timeout, copy=copy)

    def get_nowait(self, *, copy: bool | None = None) -> Any:
        return self.get(False, copy=copy)

    def get_many(
        self, n: int, timeout: float | None = None, *, copy: bool | None = None, within: float | None = 0.0
    ) -> list[Any]:
        with self._asking():
            return super().get_many(n, timeout, copy=copy, within=within)

    def take(self, block: bool = True, timeout: float | None = None, *, copy: bool | None = None) -> Any:
        with self._asking():
            return super().take(block, timeout, copy=copy)

    def take_frames(self, n: int, timeout: float | None = None) -> Any:
        with self._asking():
            return super().take_frames(n, timeout)

    def qsize(self) -> int:
        size = super().qsize()
        if size == 0:
            self._channel.note_asked()
        return size

    def empty(self) -> bool:
        return self.qsize() == 0

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except queue.Empty:
            self._channel.note_asked()
            raise


def _give(end: Any, letter: str) -> tuple[Any, ...]:
    if end.closed:
        raise errors.ChannelClosed("a closed end cannot be handed to another process")
    token = new_token()
    end._pair.settle([(letter, token)], [])
    return arrive, (end._pair, letter, token)


def arrive(pair: Pair, letter: str, token: int) -> Any:
    """Unpickles an end: opens it on this node."""
    from . import _actors

    pair = Pair(*pair)
    if pair.machine == _actors.machine():
        end = _at_home(pair, letter)
        end._pair = pair
        pair.settle([], [(letter, token)])
        return end
    method = "open_sender" if letter == "s" else "open_receiver"
    try:
        handle = _actors.call(_actors.here(), method, pair.number, pair.home, pair.terms, (letter, token))
    except Ended:
        raise errors.ChannelClosed("the pair was closed before this end of it was unpickled") from None
    with _grants.open_channel(handle, None, letter == "r") as (channel, _):
        end = RemoteSender._of(channel) if letter == "s" else RemoteReceiver._of(channel)
        end._pair = pair
        return end


def _at_home(pair: Pair, letter: str) -> Any:
    try:
        channel = _handles.open_channel(pair.handle)
    except FileNotFoundError:
        raise errors.ChannelClosed("the pair was closed before this end of it was unpickled") from None
    make: Callable[[Any], Any] = Sender._of if letter == "s" else Receiver._of
    return make(channel)
