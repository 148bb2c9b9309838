"""The `Client` of a `Service`, for threads and coroutines."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent import futures
from typing import TYPE_CHECKING, Any, Generic

from .. import _core
from ..errors import ChannelClosed, PeerDied, RemoteError
from .arena import Arena
from .arguments import core_of, deadline_after, left
from .channel import Sender
from .item_type import ReplyT, T
from .pairs import open_sender
from .request import refusals_of_the_value
from .service import Service
from .stats import ChannelStats

if TYPE_CHECKING:
    from typing_extensions import Self

_TICK_S = 0.2  # interval between checks for live servers
_BATCH = 256
_PARTS = 16  # number of parts of a stream that wait for the client


class _Line:
    """A reply channel, and the requests that wait for its replies.

    Without `waits`, the line ends when the first server dies. It then fails all its requests and closes its channel. A
    server that starts later cannot open the channel, so no server processes a request that has already failed with
    PeerDied.

    With `waits`, requests wait for the next server. A death fails only those that a server has begun: the server has
    opened the channel before it acks the request, and works on it after that. If that server was killed, its death is
    reported at the channel; if it exited without a word, no server has the channel any more.

    One thread at a time, the one that holds `_turn`, receives the replies for all threads. A single caller receives its
    own reply, which avoids a second wake-up. A separate thread takes over as soon as futures, coroutines or several
    callers wait.
    """

    def __init__(self, requests: Sender, arena: Arena, waits: bool, capacity: int | None = None) -> None:
        allow = requests.allow_pickle and requests._channel.allows_pickle
        sender, self._replies = arena.create_pair(capacity, allow_pickle=allow, on_peer_death="each", keep_open=True)
        self.handle = _core.make_handle(sender._channel.arena, sender._channel.block)
        sender.close()
        self._waits = waits
        self._batch = _BATCH if capacity is None else 1  # a stream's parts wait in the channel, not here
        self._core = _core.ReplyLine(requests._channel, self._replies._channel, waits)
        self._pending: dict[int, _Reply] = {}
        self._settling: _Reply | None = None  # not pending any more, and not done yet
        self._last_check = time.monotonic()
        self._thread: threading.Thread | None = None
        self._receiving: int | None = None  # ident of the thread that has the turn
        self._make_locks()

    def _make_locks(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.Lock()

    @property
    def ended(self) -> bool:
        return self._core.ended

    @property
    def deaths(self) -> int:
        """Number of deaths of servers so far."""
        return self._core.deaths

    def add(self, future: _Reply) -> int | None:
        """Registers a request and returns its number, or None if this line has ended."""
        with self._lock:
            number = self._core.add(future.serve_by)
            if number is not None:
                self._pending[number] = future
            return number

    def count(self) -> int:
        """Returns the number of requests that wait for a reply."""
        return len(self._pending)

    def forget(self, number: int) -> None:
        self._core.remove(number)
        self._pending.pop(number, None)

    def end(self, why: str) -> None:
        """Fails every pending request with ChannelClosed."""
        self._fail([(number, ChannelClosed(why)) for number in self._core.end()])
        self._replies.close()

    def note_sent(self, number: int, ticket: int, deaths: int) -> None:
        """Notes the ticket of a request. `deaths`: `self.deaths` before the put, to detect a server's death since."""
        self._fail(self._core.note_sent(number, ticket, deaths))

    def _fail(self, lost: list[tuple[int, Exception]]) -> None:
        for number, error in lost:
            with self._lock:
                future = self._pending.pop(number, None)
            if future is not None and future.set_running_or_notify_cancel():
                future.set_exception(error)

    def drop_in_child(self) -> None:
        """Drops the line in a forked child, which does not have its thread. The requests belong to the parent."""
        self._make_locks()
        # The parent's thread may have been anywhere in settling a reply, so the core may not know all of these.
        lost = [*self._pending.values(), *([self._settling] if self._settling else [])]
        self._pending = {}
        self._core.end()
        self._replies.close()
        for future in lost:
            futures.Future.__init__(future)  # another thread may have held its lock
            future.set_exception(ChannelClosed("the parent of this process asked, and has the reply"))

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

    def wait(self, future: _Reply, deadline: float | None) -> None:
        """Blocks until the future is done or has a part, the deadline has passed, or a separate thread receives."""
        turn = self._turn
        if self._thread is None and turn.acquire(blocking=False):
            try:
                self._receiving = threading.get_ident()
                while not (future.done() or future.parts or self.ended or self._thread or left(deadline) == 0):
                    self._receive(deadline)
            except BaseException:  # Ctrl-C, possibly after replies for other threads were received
                self.end("a call that received the replies of all was interrupted")
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
            self.end("the thread that received the replies has ended")

    def _receive(self, deadline: float | None) -> None:
        """Receives the replies that arrive within a tick."""
        rest = left(deadline)
        with contextlib.suppress(ChannelClosed):  # another thread has ended the line
            self._take_replies(_TICK_S if rest is None else min(rest, _TICK_S))
            if self._pending and time.monotonic() - self._last_check >= _TICK_S:
                self._last_check = time.monotonic()
                is_over, lost, death = self._core.check()
                self._fail(lost)
                if is_over:
                    self._lose_servers(death)

    def _take_replies(self, timeout: float) -> None:
        try:
            self._settle_all(self._replies.get_many(self._batch, timeout))
        except queue.Empty:
            pass
        except PeerDied as death:
            if self._waits:
                self._core.count_death()
                for _ in range(self._replies.qsize() // self._batch + 1):  # replies from before the death
                    self._take_replies(0)
                self._fail(self._core.lose_begun(death))
            else:
                self._lose_servers(death)
        except Exception as error:  # a reply that cannot be loaded, or the channel was closed
            self._settle((self._replies._take_failed_reply(), False), error)

    def _lose_servers(self, death: Exception | None) -> None:
        """Fails the requests that have no reply. `death` is the error of the servers' channel, if any."""
        while True:
            try:
                self._settle_all(self._replies.get_many(_BATCH, 0))
            except PeerDied:
                continue
            except Exception:  # no reply is left
                break
        self._replies.close()  # a server that has not begun a request cannot begin it any more
        self._fail(self._core.lose_all(death))

    def _settle_all(self, replies: list[Any]) -> None:
        for reply in replies:
            if type(reply) is tuple and len(reply) == 2:
                self._settle(*reply)

    def _settle(self, header: Any, value: Any) -> None:
        if type(header) is not tuple or len(header) != 2 or type(header[0]) is not int:
            return
        if header[1] == "part":
            streaming = self._pending.get(header[0])
            if streaming is not None and self._batch == 1:
                streaming.parts.append(value)
            return
        self._core.remove(header[0])
        with self._lock:
            future = self._settling = self._pending.pop(header[0], None)
        try:
            self._complete(future, header, value)
        finally:
            self._settling = None

    def _complete(self, future: _Reply | None, header: Any, value: Any) -> None:
        if future is None or not future.set_running_or_notify_cancel():
            return
        if isinstance(value, Exception):
            future.set_exception(value)
        elif header[1] is True or header[1] == "end":
            future.has_value = header[1] is True
            future.set_result(value)
        else:
            failure = RemoteError(*(value if type(value) is tuple and len(value) == 2 else ("", value)))
            failure.dropped = header[1] is None
            future.set_exception(failure)


class _Reply(futures.Future[Any]):
    """The future of one reply."""

    line: _Line | None = None
    number = 0  # of its request
    serve_by = math.inf  # time until which it waits for a server, if its line waits
    has_value = True  # False: the results were parts of a stream

    def __init__(self) -> None:
        super().__init__()
        self.parts: deque[Any] = deque()

    def result(self, timeout: float | None = None) -> Any:
        self._check_may_wait()
        return super().result(left(deadline_after(timeout)))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._check_may_wait()
        return super().exception(left(deadline_after(timeout)))

    def _check_may_wait(self) -> None:
        if self.line is not None and not self.done():
            self.line.check_may_wait()


_NOT_DONE = "no server process is left; no server has handled this request"


def _serve_by(retry: float | None, deadline: float | None) -> float | None:
    """Returns the time until which a call retries; None for never."""
    by = deadline_after(retry, "retry")
    if left(by) == 0:
        return None
    return min(math.inf if each is None else each for each in (by, deadline))


def _pause_before_retry(error: PeerDied | RemoteError, serve_by: float | None) -> float | None:
    """Returns seconds to wait before the request is sent again, as a server may drop each; None if it is not sent."""
    may_repeat = isinstance(error, PeerDied) or error.dropped
    rest = 0.0 if serve_by is None else serve_by - time.monotonic()
    return min(_TICK_S, rest) if may_repeat and rest > 0 else None


class Client(Generic[T, ReplyT]):
    """Sends requests to a `Service`, from any number of threads and coroutines, with any number of requests in flight.

    If a server is killed, or if none is left, every request in flight fails with PeerDied within half a second. The
    server may have processed it; if not, no server will. Later requests are new requests. Requests to a service with
    ``keep_open="both"`` fail only if their server had begun them; the others wait for the next server.

    A forked child gets a client of its own. A call in a single thread receives its reply itself. In all other cases, a
    thread receives the replies; it starts when it is first needed and runs until close().

    Args:
        service: A `Service`, its name, or its `sender`. The client makes its own sender, so you may close the others.
        timeout: Seconds to wait for a process to create the name; None waits indefinitely.
        arena: Arena for the replies; None makes a new arena.
        allow_pickle: See `open_sender`.

    Raises:
        FileNotFoundError: The name does not exist and `timeout` is 0.
        TimeoutError: The name does not exist after `timeout` seconds.
        TypeError: `service` is neither a Service, nor a name, nor a Sender.
        ValueError: The channel is not that of a service.

    For a type checker, ``Client[Obs, Action]`` sends an ``Obs`` and gets an ``Action``.

    Example::

        client = shmtree.Client("policy", timeout=10)
        action = client.call({"obs": obs}, timeout=1)
    """

    def __init__(
        self,
        service: str | Service[T] | Sender[Any],
        *,
        timeout: float | None = 0.0,
        arena: Arena | None = None,
        allow_pickle: bool | None = None,
    ) -> None:
        self._requests: Sender
        if isinstance(service, str):
            self._requests = open_sender(service, allow_pickle=allow_pickle, timeout=timeout)
        elif isinstance(service, (Service, Sender)):
            sender = service.sender if isinstance(service, Service) else service
            self._requests = Sender._of(sender._channel, sender.allow_pickle)
            self._requests._name = sender._name
        else:
            raise TypeError(f"service is {service!r}; it must be a Service, the name of a Service, or its sender")
        if not self._requests._channel.takes_requests:
            raise ValueError(f"service is {service!r}, which is not the channel of a Service")
        self._requests._send_requests()
        core_of(arena)  # raises for anything else than an Arena
        self._arena = arena
        self._waits: bool = self._requests._channel.waits_for_receivers
        # By whether their requests wait for the next server, or for a stream, by handle.
        self._lines: dict[bool | bytes, _Line] = {}
        self._closed = False
        self._lock = threading.Lock()
        _clients.add(self)

    def call(self, obj: T, timeout: float | None = None, *, retry: float | None = 0.0) -> ReplyT:
        """Sends a request and waits for the reply.

        Do not call it in a callback of a future of this client, and do not wait there for the result of a future. That
        code runs in the thread that receives the replies. Use `submit` there.

        Args:
            obj: The request, any object that `Sender.put` takes.
            timeout: Seconds to wait for space and for the reply; None waits indefinitely.
            retry: For a request that does no harm if it is carried out twice. Seconds during which the call waits for
                the next server if there is none, and sends the request again if its server was killed, exited, or
                dropped the request; None does so until the timeout.

        Returns:
            The reply.

        Raises:
            TimeoutError: There was no reply within `timeout` seconds.
            RemoteError: The service failed the request.
            shmtree.PeerDied: The service is gone; with `keep_open="both"`, the server that had begun the request.
            RuntimeError: The call was made in a callback of a future of this client.

        Other errors are those of `Sender.put`.
        """
        self._check_thread()
        deadline = deadline_after(timeout)
        serve_by = _serve_by(retry, deadline)
        while True:
            try:
                return self._call(obj, timeout, deadline, serve_by)
            except (PeerDied, RemoteError) as error:
                pause = _pause_before_retry(error, serve_by)
                if pause is None:
                    raise
            time.sleep(pause)
            with contextlib.suppress(TimeoutError):
                self._requests.wait_for_receivers(1, left(None if serve_by == math.inf else serve_by))

    def _call(self, obj: T, timeout: float | None, deadline: float | None, serve_by: float | None) -> ReplyT:
        return self._result(*self._submit_by(obj, timeout, deadline, serve_by), timeout, deadline)

    def _submit_by(
        self,
        obj: T,
        timeout: float | None,
        deadline: float | None,
        serve_by: float | None = None,
        line: _Line | None = None,
    ) -> tuple[_Line, _Reply]:
        try:
            return self._submit(obj, deadline, None if line else deadline, serve_by, line)
        except queue.Full:
            raise TimeoutError(f"the service had no space for the request within {timeout} s") from None

    def _result(self, line: _Line, future: _Reply, timeout: float | None, deadline: float | None) -> ReplyT:
        try:
            line.wait(future, deadline)
            return future.result(left(deadline))  # type: ignore[no-any-return]
        except (TimeoutError, futures.TimeoutError):
            if not future.cancel():
                return future.result()  # type: ignore[no-any-return]  # the reply has just arrived
            raise TimeoutError(f"no reply within {timeout} s") from None
        except BaseException:
            future.cancel()  # Ctrl-C
            raise

    def call_many(self, iterable: Iterable[T], timeout: float | None = None) -> list[ReplyT]:
        """Sends several requests, which servers may answer at the same time.

        Args:
            iterable: The requests.
            timeout: Seconds to wait for all replies; None waits indefinitely.

        Returns:
            The replies in the order of the requests.

        Raises:
            TimeoutError: A reply did not arrive in time. This and the other errors are those of `call`. The first one
                ends the call.
        """
        self._check_thread()
        deadline = deadline_after(timeout)
        asked: list[tuple[_Line, _Reply]] = []
        try:
            asked.extend(self._submit_by(obj, timeout, deadline) for obj in iterable)
            return [self._result(line, future, timeout, deadline) for line, future in asked]
        finally:
            for _, future in asked:
                future.cancel()

    def stream(self, obj: T, timeout: float | None = None) -> Iterator[ReplyT]:
        """Sends a request, and iterates over the parts of its reply; see `Request.stream`.

        The server waits while 16 parts are not read. If you close the iterator early, or drop it, the server's
        `Request.cancelled` becomes True. The request is sent when you ask for the first part.

        Args:
            obj: The request.
            timeout: Seconds to wait for space in the service, and for each part; None waits indefinitely.

        Returns:
            An iterator over the parts.

        Raises:
            TimeoutError: The next part did not arrive in time. The other errors are those of `call`.
        """
        deadline_after(timeout)  # raises for a wrong one now
        return self._parts(obj, timeout)

    def _parts(self, obj: T, timeout: float | None) -> Iterator[ReplyT]:
        self._check_thread()
        line = self._open_line(self._waits, is_stream=True)
        try:
            deadline = deadline_after(timeout)
            _, future = self._submit_by(obj, timeout, deadline, line=line)
            while not future.done() or future.parts:
                line.wait(future, deadline)
                if future.parts:
                    yield future.parts.popleft()
                    deadline = deadline_after(timeout)
                elif not future.done() and left(deadline) == 0:
                    raise TimeoutError(f"no part of the reply within {timeout} s")
            last = future.result()
            if future.has_value:
                yield last
        finally:
            self._lines.pop(line.handle, None)
            line.end("the stream was closed")

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

    async def call_async(self, obj: T, timeout: float | None = None, *, retry: float | None = 0.0) -> ReplyT:
        """Does the same as `call` in a coroutine. If it is cancelled, the reply is discarded.

        Raises:
            TimeoutError: There was no reply within `timeout` seconds. The other errors are those of `call`.
        """
        import asyncio  # slow to import, and only coroutines need it

        self._check_thread()
        deadline = deadline_after(timeout)
        serve_by = _serve_by(retry, deadline)
        while True:
            try:
                return await self._call_async(obj, timeout, deadline, serve_by)
            except (PeerDied, RemoteError) as error:
                pause = _pause_before_retry(error, serve_by)
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    async def _call_async(
        self, obj: T, timeout: float | None, deadline: float | None, serve_by: float | None
    ) -> ReplyT:
        import asyncio

        line, future, message = self._register(obj, deadline, serve_by)
        deaths = line.deaths
        line.start()
        try:
            with refusals_of_the_value():
                ticket = await self._requests.put_async(message, left(deadline))
            line.note_sent(future.number, ticket, deaths)
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

    @property
    def closed(self) -> bool:
        """True if `close` was called on this object."""
        return self._closed

    def close(self) -> None:
        """Fails the requests in flight with ChannelClosed, and ends the thread. Idempotent."""
        with self._lock:
            self._closed = True
            lines, self._lines = self._lines, {}
        for line in lines.values():
            line.end("this client is closed")
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
        return f"<Client, {sum(line.count() for line in list(self._lines.values()))} in flight>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Client, (self._requests,)

    def _submit(
        self,
        obj: T,
        room_by: float | None,
        reply_by: float | None,
        serve_by: float | None = None,
        line: _Line | None = None,
    ) -> tuple[_Line, _Reply]:
        line, future, message = self._register(obj, reply_by, serve_by, line)
        deaths = line.deaths
        try:
            with refusals_of_the_value():
                ticket = self._requests.put(message, timeout=left(room_by))
        except BaseException as error:
            future.cancel()
            if isinstance(error, ChannelClosed):
                raise self._gone(error) from None
            raise
        line.note_sent(future.number, ticket, deaths)
        return line, future

    def _register(
        self, obj: T, reply_by: float | None, serve_by: float | None, stream: _Line | None = None
    ) -> tuple[_Line, _Reply, tuple[tuple[bytes, int, float | None], object]]:
        """Registers a request and returns its future and its message. Servers drop the request after `reply_by`.

        With `serve_by`, the request waits for a server until then.
        """
        future = _Reply()
        if serve_by is not None and not self._waits:
            future.serve_by = serve_by
        number = None
        while number is None:
            line = stream or self._open_line(self._waits or serve_by is not None)
            number = line.add(future)
            if number is None and stream is not None:
                raise ChannelClosed("this client is closed")
        future.line, future.number = line, number
        future.add_done_callback(functools.partial(self._done, line, number))
        return line, future, ((line.handle, number, reply_by), obj)

    def _check_thread(self) -> None:
        for line in list(self._lines.values()):
            line.check_may_wait()

    def _done(self, line: _Line, number: int, _: object) -> None:
        line.forget(number)  # the bound method keeps the client alive while a request is pending

    def _open_line(self, waits: bool, is_stream: bool = False) -> _Line:
        with self._lock:
            if self._closed:
                raise ChannelClosed("this client is closed")
            line = None if is_stream else self._lines.get(waits)
            if line is None or line.ended:
                self._arena = self._arena or Arena()
                line = _Line(self._requests, self._arena, waits, _PARTS if is_stream else None)
                self._lines[line.handle if is_stream else waits] = line
            return line

    def _gone(self, error: ChannelClosed) -> Exception:
        """Returns the error of a request that was not sent because the channel is closed."""
        return error if self._closed or self._requests.closed else PeerDied(_NOT_DONE)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        lines, self._lines = self._lines, {}
        self._arena = None
        for line in lines.values():
            line.drop_in_child()


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client._after_fork()


os.register_at_fork(after_in_child=_after_fork)
