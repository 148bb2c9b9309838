"""A `Service`, by which any number of processes answer requests.

A request is a header and an object. The header names the client's reply channel and the number of the request there. A
server opens that channel when it first sees it. So a reply finds its client even if another server answered the
previous request, and servers keep no state of their clients.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from types import GeneratorType
from typing import Any, Generic, TypeVar

from .. import _core
from ..errors import ChannelClosed, Error
from .arena import Arena
from .arguments import deadline_after, left, natural
from .channel import KeepOpen, Receiver, Sender, ends_of, home_of
from .ends import shown
from .request import Request, open_replies, reply_senders
from .request_batch import RequestBatch
from .stats import ChannelStats
from .waiting import receive_async

_T = TypeVar("_T")

_STOP_S = 0.2  # interval in which `serve` checks if it has to stop


class Service(Generic[_T]):
    """A channel of requests that any number of threads and processes answer.

    Each request goes to one server. A process gets the service by its name, by fork, or as an argument. Requests wait
    in the service while no server runs, as long as any process has it.

    Args:
        name: Name under which the user's other processes find it with `Client`.
        capacity: Number of waiting requests at which a client blocks; None means no limit.
        max_bytes: Number of bytes of waiting requests at which a client blocks; None means no limit.
        arena: Arena for the requests. None makes an arena for a named service, and takes the process's arena otherwise.
        allow_pickle: See `create_pair`; it applies to requests and replies.
        exist_ok: If True (default), joins a service that has the name already, as a restarted server does.
        keep_open: Servers always wait for new clients. With "both", clients wait for the next server, too: a request
            that no server has begun waits until its timeout, whether the last server was killed or exited.

    Raises:
        FileExistsError: The name is in use and `exist_ok` is False.
        ValueError: The service of that name was made with other arguments (the error lists the differences), or
            `keep_open` is False.

    Example::

        for request in service:
            request.reply(answer(request.value))
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        capacity: int | None = 1024,
        max_bytes: int | None = None,
        arena: Arena | None = None,
        allow_pickle: bool | None = None,
        exist_ok: bool = True,
        keep_open: KeepOpen = True,
    ) -> None:
        joins = bool(exist_ok) and name is not None
        options = max_bytes, name, home_of(arena, name), allow_pickle
        made = _core.make_channel("service", capacity, *options, exist_ok=joins, keep_open=keep_open)
        self.__setstate__(ends_of(*made))

    def __getstate__(self) -> tuple[Sender, Receiver]:
        return self._sender, self._receiver

    def __setstate__(self, ends: tuple[Sender, Receiver]) -> None:
        self._sender, self._receiver = ends
        self._clients = _core.ServiceClients()
        self._received: deque[Request[_T]] = deque()  # by a call that raised before it returned them
        self._stops = False
        _services.add(self)

    @property
    def sender(self) -> Sender:
        """The sending end. Pass it to processes that ask a service without a name, as the argument of `Client`.

        Only clients can put into it: `put` raises ValueError.
        """
        return self._sender

    def get(self, timeout: float | None = None) -> Request[_T]:
        """Returns the next request.

        Args:
            timeout: Seconds to wait; None waits indefinitely.

        Raises:
            queue.Empty: There was no request within `timeout` seconds.
            ChannelClosed: `close` was called in this process.
        """
        return self._get(deadline_after(timeout), None)

    def _get(self, deadline: float | None, copy: bool | None) -> Request[_T]:
        request = self._kept()
        while request is None:
            request = self._request(self._receiver._take_unloaded(timeout=left(deadline), copy=copy))
        return request

    def get_many(self, n: int, timeout: float | None = None, *, within: float | None = 0.0) -> list[Request[_T]]:
        """Returns up to `n` requests: waits for the first one, and then for more.

        Args:
            n: Maximum number of requests, at least 1.
            timeout: Seconds to wait for the first one; None waits indefinitely.
            within: Seconds to wait for more after the first one; None waits until there are `n`.

        Returns:
            A list of 1 to `n` requests.

        Raises:
            queue.Empty: There was no request within `timeout` seconds. The other errors are those of `get`.
        """
        return self._get_many(n, timeout, within, None)

    def _get_many(
        self, n: int, timeout: float | None, within: float | None, copy: bool | None, serves: bool = False
    ) -> list[Request[_T]]:
        if natural("n", n) == 0:
            raise ValueError("n is 0; it must be at least 1")
        deadline_after(within, "within")
        requests = [self._get(deadline_after(timeout), copy)]
        deadline = deadline_after(within)
        try:
            while len(requests) < n and not (serves and self._stops):
                try:
                    requests.append(self._get(_within_tick(deadline), copy))
                except queue.Empty:
                    if left(deadline) == 0:
                        break
        except ChannelClosed:
            pass
        except BaseException:  # of a signal handler
            self._received.extend(requests)
            raise
        return requests

    def get_batch(self, n: int, timeout: float | None = None, *, within: float | None = 0.0) -> RequestBatch[_T]:
        """Does the same as `get_many`, and stacks the arrays of the requests.

        The requests must be arrays or tensors of one shape, or dicts or tuples of these. Each row is copied once, from
        the shared memory of its client.

        Returns:
            The requests as a `RequestBatch`.

        Raises:
            ValueError: The requests differ in their keys, dtypes or shapes, which the error lists. The next calls
                return them. The other errors are those of `get_many`.

        Example::

            batch = service.get_batch(64, within=0.002)
            batch.reply(model(batch.value))
        """
        requests = self._get_many(n, timeout, within, False)
        try:
            return RequestBatch._of(requests)
        except BaseException:
            self._received.extend(requests)
            raise

    def serve(
        self, function: Callable[[Any], Any], *, batch: int | None = None, within: float | None = 0.0, workers: int = 1
    ) -> None:
        """Answers requests with the results of a function, until SIGTERM arrives or `close` is called.

        The call then finishes the requests that it has begun. Others remain in the service, for other servers. It
        handles SIGTERM only if the main thread calls it.

        If the function raises, its request fails, and the server continues. If the function is a generator, its items
        are the parts of a stream (`Request.stream`).

        Args:
            function: Gets the value of a request and returns the reply. With `batch`, it gets and returns stacked
                arrays, as `get_batch` and `RequestBatch.reply` do. Requests with other shapes get a call of their own.
            batch: Maximum number of requests for one call of the function; None: one request, not stacked.
            within: Seconds to wait for more requests after the first one of a batch.
            workers: Number of threads that call the function.
        """
        self._stops = False
        in_main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGTERM, lambda *_: self._stop()) if in_main else None
        work = [function, batch, within]
        threads = [threading.Thread(target=self._serve, args=work, name="shmtree-serve") for _ in range(workers - 1)]
        try:
            for thread in threads:
                thread.start()
            self._serve(function, batch, within)
        finally:
            self._stop()
            for thread in threads:
                if thread.ident is not None:  # it was started
                    thread.join()
            if in_main:
                signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)

    def _stop(self) -> None:
        self._stops = True

    def _serve(self, function: Callable[[Any], Any], batch: int | None, within: float | None) -> None:
        while not self._stops:
            try:
                requests = self._get_many(batch or 1, _STOP_S, within, None if batch is None else False, True)
            except queue.Empty:
                continue
            except ChannelClosed:
                return
            for each in requests if batch is None else _batches(requests):
                _answer(each, function)

    async def get_async(self, timeout: float | None = None) -> Request[_T]:
        """Does the same as `get` in a coroutine."""
        deadline = deadline_after(timeout)
        request = self._kept()
        while request is None:
            request = self._request(await receive_async(self._receiver, self._take_now, left(deadline)))
        return request

    def _kept(self) -> Request[_T] | None:
        """Returns a request that an earlier call received and did not return."""
        with contextlib.suppress(IndexError):
            return self._received.popleft() if self._received else None
        return None

    #: `x in service` raises TypeError. Otherwise, Python would iterate over the service and so receive every request.
    __contains__ = None

    def __iter__(self) -> Iterator[Request[_T]]:
        with contextlib.suppress(ChannelClosed):
            while True:
                yield self.get()

    async def __aiter__(self) -> AsyncIterator[Request[_T]]:
        with contextlib.suppress(ChannelClosed):
            while True:
                yield await self.get_async()

    def __repr__(self) -> str:
        return shown(self, lambda: f"{self._receiver.qsize()} queued")

    def stats(self) -> ChannelStats:
        """Returns counts of its requests, as `Receiver.stats`; `receivers` is the number of server processes."""
        return self._receiver.stats()

    @property
    def closed(self) -> bool:
        """True if `close` was called on this object."""
        return self._receiver.closed

    def close(self) -> None:
        """Stops serving in this process. It can still answer the requests that it has. Idempotent."""
        self._receiver.close()
        self._sender.close()
        self._clients.clear()

    def __enter__(self) -> Service[_T]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _take_now(self) -> _core.Delivery:
        return self._receiver._take_unloaded(block=False)

    def _request(self, delivery: _core.Delivery) -> Request[_T] | None:
        """Returns the request, or None if the message is not a request or its client waits no longer.

        The request is acked only once its client would detect the death of this process. Until then, another server
        gets it if this one dies. If loading raises, that is the client's fault, and does not end the server: the
        message is dropped, and the request fails at the client that its header names.

        Some errors of loading are not the client's fault. If a signal handler raises, the call raises its exception and
        the request returns to the service. If this process has no memory, the request also returns, and a server tries
        it again. After the eighth failure in a row, the request fails at the client as above. SystemExit and
        GeneratorExit may come from a signal handler or from the message. The call raises them, and they count as
        failures too.
        """
        with delivery:
            try:
                message: Any = delivery.item
            except BaseException as error:
                lacks_memory = isinstance(error, (MemoryError, Error))
                if delivery._may_retry and not lacks_memory:
                    raise
                if delivery._may_retry:
                    delivery.nack()
                else:
                    found = self._clients.find(delivery, self._open_replies)
                    delivery.ack()
                    if found is not None:
                        Request._of(*found, None).fail(error, timeout=0)
                if not isinstance(error, Exception):
                    raise
                return None
            found = self._clients.find(delivery, self._open_replies)
            return None if found is None else Request._of(*found, message[1])

    def _open_replies(self, handle: bytes) -> Sender | None:
        return open_replies(handle, self._receiver.allow_pickle)


def _within_tick(deadline: float | None) -> float:
    """Returns the deadline, or an earlier one at which `serve` checks if it has to stop."""
    tick = time.monotonic() + _STOP_S
    return tick if deadline is None else min(deadline, tick)


def _batches(requests: list[Request[Any]]) -> list[Any]:
    """Returns the requests as one batch if they can be stacked, or else as batches of one."""
    with contextlib.suppress(Exception):
        return [RequestBatch._of(requests)]
    batches: list[Any] = []
    for request in requests:
        try:
            batches.append(RequestBatch._of([request]))
        except Exception as error:  # its arrays cannot be stacked
            request.fail(error)
    return batches


def _answer(work: Request[Any] | RequestBatch[Any], function: Callable[[Any], Any]) -> None:
    """Answers a request or a batch with function(value). If it raises, they fail."""
    try:
        result = function(work.value)
        if isinstance(work, Request) and isinstance(result, GeneratorType):
            with contextlib.closing(result):
                if not all(work.stream(part) for part in result):
                    raise TimeoutError("the client has not read the parts of the reply in time, or is gone")
            work.end()
        else:
            work.reply(result)
    except Exception as error:
        work.fail(error)


_services: weakref.WeakSet[Service[Any]] = weakref.WeakSet()


def _after_fork() -> None:
    """Closes the reply channels in a forked child. Clients must not take the death of a child for that of a server."""
    for sender in list(reply_senders):
        sender.close()
    for service in list(_services):
        service._clients.clear()
        service._received.clear()  # the parent answers them


os.register_at_fork(after_in_child=_after_fork)
