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
from typing import Any

from .. import _core
from ..errors import ChannelClosed, PeerDied, RemoteError
from .arena import Arena
from .channel import Sender
from .pairs import open_sender
from .service import Header, deadline_after, left, loaded, refusals_of_the_value

_TICK_S = 0.2  # between looks whether there is still somebody who serves
_BATCH = 256


class _Line:
    """A channel of replies, and what is waited for by it; to the first death.

    With it goes what was asked by it: nobody who serves later opens it, and so nothing is done that a client was told
    nobody will do.

    Whoever has the turn receives, for all. That is a thread, once anybody needs one, since replies are to come to
    futures and coroutines or to several callers; until then it is the caller that waits, which is woken only once so.
    """

    def __init__(self, requests: Sender, arena: Arena) -> None:
        allow = requests.allow_pickle and requests._channel.allows_pickle
        sender, self._replies = arena.create_pair(None, allow_pickle=allow, on_peer_death="each", keep_open=True)
        self.handle = _core.make_handle(sender._channel.arena, sender._channel.block)
        sender.close()
        self.ended = False
        self._requests = requests
        self._pending: dict[int, futures.Future[Any]] = {}
        self._next = time.monotonic_ns()  # so that no other line of this process has the same numbers
        self._looked = time.monotonic()
        self._alone = False
        self._thread: threading.Thread | None = None
        self._receiving: int | None = None  # the thread that has the turn
        self._make_locks()

    def _make_locks(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.Lock()

    def add(self, future: futures.Future[Any]) -> int | None:
        """The number of a new request; None when this has ended."""
        with self._lock:
            if self.ended:
                return None
            self._next += 1
            self._pending[self._next] = future
            return self._next

    def forget(self, number: int) -> None:
        self._pending.pop(number, None)

    def end(self, why: Callable[[], Exception]) -> None:
        """Fails all that is waited for with what `why` gives."""
        with self._lock:
            self.ended = True
            pending, self._pending = self._pending, {}
        self._replies.close()
        for future in pending.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(why())

    def drop_in_child(self) -> None:
        """In a forked child, which has no thread of it: its parent's requests are its parent's."""
        self._make_locks()
        for future in self._pending.values():
            futures.Future.__init__(future)  # another thread may have had its lock
        self.end(lambda: ChannelClosed("the parent of this process asked, and has the reply"))

    def start(self) -> None:
        """Has a thread receive."""
        with self._lock:
            if self._thread is None and not self.ended:
                self._thread = threading.Thread(target=self._receive_all, name="shmtree-replies", daemon=True)
                self._thread.start()

    def check_may_wait(self) -> None:
        """RuntimeError where it is this thread that receives, now in a callback: what it waits for would never come."""
        if self._receiving == threading.get_ident() and not self.ended:
            raise RuntimeError(
                "this thread receives the replies of this client, and is in a callback: to wait there for a reply "
                "would be for ever; submit() and add_done_callback() go on from there"
            )

    def wait(self, future: futures.Future[Any], deadline: float | None) -> None:
        """Until it is done, the deadline has passed, or a thread receives."""
        turn = self._turn
        if self._thread is None and turn.acquire(blocking=False):
            try:
                self._receiving = threading.get_ident()
                while not (future.done() or self.ended or self._thread is not None or left(deadline) == 0):
                    self._receive(deadline)
            except BaseException:  # Ctrl-C, it may be after something was received for others
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
        finally:  # also what a callback of a future may raise
            self.end(lambda: ChannelClosed("the thread that received the replies has ended"))

    def _receive(self, deadline: float | None) -> None:
        """What comes within a tick."""
        rest = left(deadline)
        try:
            self._settle_all(self._replies.get_many(_BATCH, _TICK_S if rest is None else min(rest, _TICK_S)))
        except queue.Empty:
            pass
        except PeerDied as death:
            self.end(functools.partial(_lost, death.pids))
        except Exception as error:  # a reply that cannot be loaded, or it was closed
            self._settle(loaded.parts, error)
        if self._pending and time.monotonic() - self._looked >= _TICK_S:
            self._looked = time.monotonic()
            self._look_for_servers()

    def _look_for_servers(self) -> None:
        try:
            self._requests._check_receivers()
            stats = self._requests.stats()
        except (ChannelClosed, PeerDied) as gone:
            self.end(functools.partial(_lost, getattr(gone, "pids", ())))
            return
        # Whoever made the name may have been killed before it took part. Twice: it may be about to.
        alone = not stats["receivers"] and not stats["receivers_on_their_way"]
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
    """A reply that is waited for."""

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
    who = f"process {', '.join(map(str, pids))}, which served, was killed" if pids else "no process serves (any more)"
    error = PeerDied(f"{who}; one that has gone may have had this request")
    error.pids = pids
    return error


class Client:
    """Asks a `Service`; for any number of threads and coroutines, with any number of requests on the way.

    Args:
        service: its name, or its `sender`.
        timeout: seconds to wait for somebody to make the name (None waits indefinitely): TimeoutError, or
            FileNotFoundError
            where that is 0.
        arena: where replies lie; None is an arena of its own.
        allow_pickle: as of `open_sender`.

    When a process that serves is killed, and when none is left, all that is on the way fails with PeerDied within half
    a second: it may have been done, and if not, nobody will. What is asked after that is asked anew.

    A forked child has a client of its own in it. Calls of one thread receive their replies themselves; for all else a
    thread does, from when it is first needed to close().
    """

    def __init__(
        self,
        service: str | Sender,
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

    def call(self, obj: object, timeout: float | None = None) -> Any:
        """Asks, and waits for the answer; TimeoutError after `timeout` seconds.

        RemoteError when the service failed the request, PeerDied when it has gone. Else what `Sender.put` raises.
        RuntimeError in a callback of a future of this client, which runs where replies are received: `submit` there.
        So is waiting there for the result of a future.
        """
        self._check_thread()
        deadline = deadline_after(timeout)
        try:
            line, future = self._submit(obj, deadline, deadline)
        except queue.Full:
            raise TimeoutError(f"there was no room for the request within {timeout} s") from None
        try:
            line.wait(future, deadline)
            return future.result(left(deadline))
        except (TimeoutError, futures.TimeoutError):
            if not future.cancel():
                return future.result()  # it came just now
            raise TimeoutError(f"there was no reply within {timeout} s") from None
        except BaseException:
            future.cancel()  # Ctrl-C
            raise

    def submit(self, obj: object, timeout: float | None = None) -> futures.Future[Any]:
        """Asks. The answer is the future's result, and what `call` raises its exception.

        Waits up to `timeout` seconds where the service has no room: queue.Full.
        """
        line, future = self._submit(obj, deadline_after(timeout), None)
        line.start()
        return future

    async def call_async(self, obj: object, timeout: float | None = None) -> Any:
        """`call` for coroutines. A cancelled one takes no reply."""
        import asyncio  # slow to load, and not needed without coroutines

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
            raise TimeoutError(f"there was no reply within {timeout} s") from None
        except ChannelClosed as error:
            raise self._gone(error) from None
        finally:
            future.cancel()

    def stats(self) -> dict[str, Any]:
        """Counts of the service's requests, as of `Sender.stats`; `receivers` are the processes that have it."""
        return self._requests.stats()

    def close(self) -> None:
        """Fails what is on the way with ChannelClosed, and ends the thread. May be called again."""
        with self._lock:
            self._closed = True
            line, self._line = self._line, None
        if line is not None:
            line.end(lambda: ChannelClosed("this client was closed"))
        if self._own:
            self._requests.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return Client, (self._requests,)

    def _submit(self, obj: object, room_by: float | None, reply_by: float | None) -> tuple[_Line, futures.Future[Any]]:
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

    def _register(
        self, obj: object, reply_by: float | None
    ) -> tuple[_Line, futures.Future[Any], tuple[Header, object]]:
        """The future of a request, and the message that asks. After `reply_by` nobody waits, and nobody serves it."""
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
        line.forget(number)  # and the client is there as long as something is waited for

    def _open_line(self) -> _Line:
        with self._lock:
            if self._closed:
                raise ChannelClosed("this client was closed")
            if self._line is None or self._line.ended:
                self._arena = self._arena or Arena()
                self._line = _Line(self._requests, self._arena)
            return self._line

    def _gone(self, error: ChannelClosed) -> Exception:
        """Of a request that found no room."""
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
