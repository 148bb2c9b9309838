"""The `Client` of a `Service`, for threads and coroutines."""

from __future__ import annotations

import functools
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent import futures
from typing import TYPE_CHECKING, Any, Generic

from .. import _core
from ..errors import ChannelClosed, PeerDied, RemoteError
from .arena import Arena
from .channel import Sender
from .item_type import ReplyT, T
from .pairs import open_sender
from .service import Header, deadline_after, left, loaded, refusals_of_the_value
from .stats import ChannelStats

if TYPE_CHECKING:
    from typing_extensions import Self

_TICK_S = 0.2  # interval between checks for live servers
_BATCH = 256


class _Line:
    """A reply channel, and the requests that wait for its replies. The line ends when the first server dies.

    When the line ends, it fails all its requests and closes its channel. A server that starts later cannot open the
    channel, so no server processes a request that has already failed with PeerDied.

    One thread at a time, the one that holds `_turn`, receives the replies for all threads. A single caller receives its
    own reply, which avoids a second wake-up. A separate thread takes over as soon as futures, coroutines or several
    callers wait.
    """

    def __init__(self, requests: Sender, arena: Arena) -> None:
        allow = requests.allow_pickle and requests._channel.allows_pickle
        sender, self._replies = arena.create_pair(None, allow_pickle=allow, on_peer_death="each", keep_open=True)
        self.handle = _core.make_handle(sender._channel.arena, sender._channel.block)
        sender.close()
        self.ended = False
        self._requests = requests
        self._pending: dict[int, futures.Future[Any]] = {}
        self._next = time.monotonic_ns()  # start at the clock: no other line of this process uses the same numbers
        self._last_check = time.monotonic()
        self._alone = False
        self._thread: threading.Thread | None = None
        self._receiving: int | None = None  # ident of the thread that has the turn
        self._make_locks()

    def _make_locks(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.Lock()

    def add(self, future: futures.Future[Any]) -> int | None:
        """Registers a request and returns its number, or None if this line has ended."""
        with self._lock:
            if self.ended:
                return None
            self._next += 1
            self._pending[self._next] = future
            return self._next

    def count(self) -> int:
        """Returns the number of requests that wait for a reply."""
        return len(self._pending)

    def forget(self, number: int) -> None:
        self._pending.pop(number, None)

    def end(self, why: Callable[[], Exception]) -> None:
        """Fails every pending request with the exception that `why` returns."""
        with self._lock:
            self.ended = True
            pending, self._pending = self._pending, {}
        self._replies.close()
        for future in pending.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(why())

    def drop_in_child(self) -> None:
        """Drops the line in a forked child, which does not have its thread. The requests belong to the parent."""
        self._make_locks()
        for future in self._pending.values():
            futures.Future.__init__(future)  # another thread may have held its lock
        self.end(lambda: ChannelClosed("the parent of this process asked, and has the reply"))

    def start(self) -> None:
        """Starts the receiving thread, unless it runs already."""
        with self._lock:
            if self._thread is None and not self.ended:
                self._thread = threading.Thread(target=self._receive_all, name="shmtree-replies", daemon=True)
                self._thread.start()

    def check_may_wait(self) -> None:
        """Raises RuntimeError in a callback of the receiving thread, because a reply could never arrive there."""
        if self._receiving == threading.get_ident() and not self.ended:
            raise RuntimeError(
                "a callback cannot wait for a reply: this thread receives all replies of the client, so the wait would "
                "never end; use submit() and add_done_callback() instead"
            )

    def wait(self, future: futures.Future[Any], deadline: float | None) -> None:
        """Blocks until the future is done, the deadline has passed, or a separate thread receives."""
        turn = self._turn
        if self._thread is None and turn.acquire(blocking=False):
            try:
                self._receiving = threading.get_ident()
                while not (future.done() or self.ended or self._thread is not None or left(deadline) == 0):
                    self._receive(deadline)
            except BaseException:  # Ctrl-C, possibly after replies for other threads were received
                self.end(lambda: ChannelClosed("a call that received the replies of all was interrupted"))
                raise
            finally:
                self._receiving = None
                turn.release()
        elif self._thread is None:
            self.start()

    def _receive_all(self) -> None:
        try:
            with self._turn:
                self._receiving = threading.get_ident()
                while not self.ended:
                    self._receive(None)
        finally:  # also after an exception from a future's callback
            self.end(lambda: ChannelClosed("the thread that received the replies has ended"))

    def _receive(self, deadline: float | None) -> None:
        """Receives the replies that arrive within a tick."""
        rest = left(deadline)
        try:
            self._settle_all(self._replies.get_many(_BATCH, _TICK_S if rest is None else min(rest, _TICK_S)))
        except queue.Empty:
            pass
        except PeerDied as death:
            self.end(functools.partial(_lost, death.pids))
        except Exception as error:  # a reply that cannot be loaded, or the channel was closed
            self._settle(loaded.parts, error)
        if self._pending and time.monotonic() - self._last_check >= _TICK_S:
            self._last_check = time.monotonic()
            self._check_for_servers()

    def _check_for_servers(self) -> None:
        try:
            self._requests._check_receivers()
            stats = self._requests.stats()
        except (ChannelClosed, PeerDied) as gone:
            self.end(functools.partial(_lost, getattr(gone, "pids", ())))
            return
        # The process that made the name may have died before it attached. Check twice, because it may be about to
        # attach.
        alone = not stats["receivers"] and not stats["receivers_in_transit"]
        if alone and self._alone:
            self.end(functools.partial(_lost, ()))
        self._alone = alone

    def _settle_all(self, replies: list[Any]) -> None:
        for reply in replies:
            if type(reply) is tuple and len(reply) == 2:
                self._settle(*reply)

    def _settle(self, header: Any, value: Any) -> None:
        if type(header) is not tuple or len(header) != 2 or type(header[0]) is not int:
            return
        future = self._pending.pop(header[0], None)
        if future is None or not future.set_running_or_notify_cancel():
            return
        if isinstance(value, Exception):
            future.set_exception(value)
        elif header[1] is True:
            future.set_result(value)
        else:
            future.set_exception(RemoteError(*(value if type(value) is tuple and len(value) == 2 else ("", value))))


class _Reply(futures.Future[Any]):
    """The future of one reply."""

    line: _Line | None = None

    def result(self, timeout: float | None = None) -> Any:
        self._check_may_wait()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._check_may_wait()
        return super().exception(timeout)

    def _check_may_wait(self) -> None:
        if self.line is not None and not self.done():
            self.line.check_may_wait()


def _lost(pids: tuple[int, ...]) -> PeerDied:
    served = f"server process {', '.join(map(str, pids))} was killed" if pids else "no server process is left"
    error = PeerDied(f"{served}; a server may have handled this request before it exited")
    error.pids = pids
    return error


class Client(Generic[T, ReplyT]):
    """Sends requests to a `Service`, from any number of threads and coroutines, with any number of requests in flight.

    If a server is killed, or if none is left, every request in flight fails with PeerDied within half a second. The
    server may have processed it; if not, no server will. Later requests are new requests.

    A forked child gets a client of its own. A call in a single thread receives its reply itself. In all other cases, a
    thread receives the replies; it starts when it is first needed and runs until close().

    Args:
        service: Name of the service, or its `sender`.
        timeout: Seconds to wait for a process to create the name; None waits indefinitely.
        arena: Arena for the replies; None makes a new arena.
        allow_pickle: See `open_sender`.

    Raises:
        FileNotFoundError: The name does not exist and `timeout` is 0.
        TimeoutError: The name does not exist after `timeout` seconds.
        TypeError: `service` is neither a name nor a Sender.

    For a type checker, ``Client[Obs, Action]`` sends an ``Obs`` and gets an ``Action``.

    Example::

        client = shmtree.Client("policy", timeout=10)
        action = client.call({"obs": obs}, timeout=1)
    """

    def __init__(
        self,
        service: str | Sender[Any],
        *,
        timeout: float | None = 0.0,
        arena: Arena | None = None,
        allow_pickle: bool | None = None,
    ) -> None:
        self._requests: Sender
        self._own = isinstance(service, str)
        if isinstance(service, str):
            self._requests = open_sender(service, allow_pickle=allow_pickle, timeout=timeout)
        elif isinstance(service, Sender):
            self._requests = service
        else:
            raise TypeError(f"service is {service!r}; it must be the name of a Service, or its sender")
        self._arena = arena
        self._line: _Line | None = None
        self._closed = False
        self._lock = threading.Lock()
        _clients.add(self)

    def call(self, obj: T, timeout: float | None = None) -> ReplyT:
        """Sends a request and waits for the reply.

        Do not call it in a callback of a future of this client, and do not wait there for the result of a future. That
        code runs in the thread that receives the replies. Use `submit` there.

        Args:
            obj: The request, any object that `Sender.put` takes.
            timeout: Seconds to wait for space and for the reply; None waits indefinitely.

        Returns:
            The reply.

        Raises:
            TimeoutError: There was no reply within `timeout` seconds.
            RemoteError: The service failed the request.
            shmtree.PeerDied: The service is gone.
            RuntimeError: The call was made in a callback of a future of this client.

        Other errors are those of `Sender.put`.
        """
        self._check_thread()
        deadline = deadline_after(timeout)
        try:
            line, future = self._submit(obj, deadline, deadline)
        except queue.Full:
            raise TimeoutError(f"the service had no space for the request within {timeout} s") from None
        try:
            line.wait(future, deadline)
            return future.result(left(deadline))
        except (TimeoutError, futures.TimeoutError):
            if not future.cancel():
                return future.result()  # the reply has just arrived
            raise TimeoutError(f"no reply within {timeout} s") from None
        except BaseException:
            future.cancel()  # Ctrl-C
            raise

    def submit(self, obj: T, timeout: float | None = None) -> futures.Future[ReplyT]:
        """Sends a request and returns a future for its reply. The future fails with the errors of `call`.

        Args:
            obj: The request.
            timeout: Seconds to wait for space in the service; None waits indefinitely.

        Returns:
            A `concurrent.futures.Future` of the reply.

        Raises:
            queue.Full: The service had no space for `timeout` seconds.
        """
        line, future = self._submit(obj, deadline_after(timeout), None)
        line.start()
        return future

    async def call_async(self, obj: T, timeout: float | None = None) -> ReplyT:
        """Does the same as `call` in a coroutine. If it is cancelled, the reply is discarded.

        Raises:
            TimeoutError: There was no reply within `timeout` seconds. The other errors are those of `call`.
        """
        import asyncio  # slow to import, and only coroutines need it

        self._check_thread()
        deadline = deadline_after(timeout)
        line, future, message = self._register(obj, deadline)
        line.start()
        try:
            with refusals_of_the_value():
                try:
                    self._requests.put_nowait(message)
                except queue.Full:
                    await self._requests.put_async(message, left(deadline))
            return await asyncio.wait_for(asyncio.wrap_future(future), left(deadline))
        except (asyncio.TimeoutError, queue.Full):
            raise TimeoutError(f"no reply within {timeout} s") from None
        except ChannelClosed as error:
            raise self._gone(error) from None
        finally:
            future.cancel()

    def stats(self) -> ChannelStats:
        """Returns counts of the service's requests, as `Sender.stats`; `receivers` is the number of servers."""
        return self._requests.stats()

    def close(self) -> None:
        """Fails the requests in flight with ChannelClosed, and ends the thread. Idempotent."""
        with self._lock:
            self._closed = True
            line, self._line = self._line, None
        if line is not None:
            line.end(lambda: ChannelClosed("this client is closed"))
        if self._own:
            self._requests.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self.close()

    def __repr__(self) -> str:
        if self._closed:
            return "<Client, closed>"
        line = self._line
        return f"<Client, {0 if line is None else line.count()} in flight>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Client, (self._requests,)

    def _submit(self, obj: T, room_by: float | None, reply_by: float | None) -> tuple[_Line, futures.Future[ReplyT]]:
        line, future, message = self._register(obj, reply_by)
        try:
            with refusals_of_the_value():
                self._requests.put(message, timeout=left(room_by))
        except BaseException as error:
            future.cancel()
            if isinstance(error, ChannelClosed):
                raise self._gone(error) from None
            raise
        return line, future

    def _register(self, obj: T, reply_by: float | None) -> tuple[_Line, futures.Future[ReplyT], tuple[Header, object]]:
        """Registers a request and returns its future and its message. Servers drop the request after `reply_by`."""
        future = _Reply()
        number = None
        while number is None:
            line = self._open_line()
            number = line.add(future)
        future.line = line
        future.add_done_callback(functools.partial(self._done, line, number))
        return line, future, (Header(line.handle, number, reply_by), obj)

    def _check_thread(self) -> None:
        if self._line is not None:
            self._line.check_may_wait()

    def _done(self, line: _Line, number: int, _: object) -> None:
        line.forget(number)  # the bound method keeps the client alive while a request is pending

    def _open_line(self) -> _Line:
        with self._lock:
            if self._closed:
                raise ChannelClosed("this client is closed")
            if self._line is None or self._line.ended:
                self._arena = self._arena or Arena()
                self._line = _Line(self._requests, self._arena)
            return self._line

    def _gone(self, error: ChannelClosed) -> Exception:
        """Returns the error of a request that was not sent because the channel is closed."""
        return error if self._closed or self._requests.closed else _lost(())

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        line, self._line = self._line, None
        self._arena = None
        if line is not None:
            line.drop_in_child()


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client._after_fork()


os.register_at_fork(after_in_child=_after_fork)
