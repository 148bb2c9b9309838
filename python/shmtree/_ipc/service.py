"""Requests, and the `Service` by which any number of processes answer them.

A request is a header and an object. The header names the client's reply channel and the number of the request there. A
server opens that channel when it first sees it. So a reply finds its client even if another server answered the
previous request, and servers keep no state of their clients.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any, Generic, TypeVar

from .. import _core
from .._process import handles, lifetime
from .._public import made_by
from ..errors import ChannelClosed, Error, PickleRefused
from .arena import Arena
from .arguments import deadline_after, left
from .channel import KeepOpen, Receiver, Sender, ends_of, home_of
from .ends import shown
from .stats import ChannelStats
from .waiting import receive_async

_T = TypeVar("_T")

_REPLY_S = 10.0  # time to wait for a client that has no space for its replies
_VALUE = "[1]"  # path of the value in a message


@contextlib.contextmanager
def refusals_of_the_value() -> Iterator[None]:
    """Makes errors give the path within the value: the message also has a header, which users do not see."""
    try:
        yield
    except (TypeError, AttributeError, ValueError, RuntimeError, pickle.PicklingError, NotImplementedError) as error:
        if isinstance(error, PickleRefused):
            _name_in_value(error)
        elif len(error.args) == 1 and isinstance(error.args[0], str):
            error.args = (error.args[0].replace(f"; it is at {_VALUE} of the message", ""),)
            error.args = (error.args[0].replace(f"; it is at {_VALUE}", "; it is at "),)
        raise


def _name_in_value(refusal: PickleRefused) -> None:
    if refusal.path is not None and refusal.path.startswith(_VALUE):
        path = refusal.path.removeprefix(_VALUE)
        place = f"It is at {path} of the message" if path else "It is the message itself"
        refusal.args = (str(refusal).replace(f"It is at {refusal.path} of the message", place),)
        refusal.path = path


def _open_replies(handle: bytes, allow_pickle: bool) -> Sender | None:
    """Opens a client's reply channel. Returns None if the client is gone, or the handle is not one of a pair."""
    with (
        contextlib.suppress(FileNotFoundError, ChannelClosed),
        handles.open_channel(handle, None, False) as (channel, _),
    ):
        if not channel.is_queue:
            sender = Sender._of(channel, allow_pickle)
            _reply_senders[sender] = handle
            return sender
    return None


#: Reply channels that this process has opened, and their handles.
_reply_senders: weakref.WeakKeyDictionary[Any, bytes] = weakref.WeakKeyDictionary()


@made_by("Service.get()")
class Request(Generic[_T]):
    """One request of a `Service`. Any thread answers it, once, by `reply` or `fail`.

    A request fails at the client if it is dropped without an answer, or not answered when its process exits. A request
    has one result: once the client has been told of a failure, `reply` and `fail` return without sending anything.
    """

    __slots__ = ("__weakref__", "_cause", "_failed", "_number", "_pid", "_replies", "value")

    value: _T  #: the object that the client sent
    _replies: _core.ServiceClient | None  # None: a call is answering, or has answered
    _number: int
    _pid: int
    _cause: tuple[str, str] | None  # name and text of a failure that could not be sent yet
    _failed: bool | None  # True: the client got a failure; False: the reply was not sent

    @classmethod
    def _of(cls, replies: _core.ServiceClient, number: int, value: _T) -> Request[_T]:
        self = cls.__new__(cls)
        self.value = value
        self._replies = replies
        self._number = number
        self._pid = os.getpid()
        self._cause = self._failed = None
        _unanswered.add(self)
        return self

    def reply(self, value: object, timeout: float | None = _REPLY_S, *, move: bool = False) -> bool:
        """Sends the reply.

        If a reply timed out because the client had no space, a later reply to that client does not wait if its timeout
        is not longer. This holds until one reply succeeds.

        Args:
            value: The reply, any object that `Sender.put` takes.
            timeout: Seconds to wait for space at the client; None waits indefinitely.
            move: See `Sender.put`.

        Returns:
            True if it was sent. False if the client is gone, had no memory for the reply for `timeout` seconds, or has
            got a failure before.

        Raises:
            ValueError: The request was answered before.

        A value that cannot be sent raises as in `Sender.put`, and fails the request: the client's call raises
        RemoteError with the name and text of that error.
        """
        deadline_after(timeout)  # raises for a wrong one, before anything is sent
        replies = self._take_replies()
        if replies is None:
            return False
        try:
            message = ((self._number, True), value)
            with refusals_of_the_value():
                sent = replies.send(message, timeout, move)
        except BaseException as error:
            self._tell(replies, _name_of(error), 0)
            raise
        self._failed = None if sent else False
        return sent

    def fail(self, error: BaseException | str, timeout: float | None = _REPLY_S) -> bool:
        """Answers the request with a failure: the client's call raises RemoteError with the name and text of `error`.

        If an earlier `reply` raised, the client gets the error of that `reply` and not `error`, so a server can pass to
        `fail` whatever its handler or `reply` raised. If there is no memory for the text, the client gets it shortened.

        Args:
            error: The error, or its text.
            timeout: Seconds to wait for space at the client; None waits indefinitely.

        Returns:
            True if the client has got a failure, by this call or an earlier one. False if the client is gone, or had no
            space for the message for `timeout` seconds: then the next `fail`, or the end of this object, tries again.

        Raises:
            ValueError: A reply was sent.
        """
        deadline_after(timeout)  # raises for a wrong one, before anything is sent
        cause = self._cause or _name_of(error)
        replies = self._take_replies()
        if replies is None:
            return self._failed is True
        return self._tell(replies, cause, timeout)

    def _drop(self, why: str) -> None:
        """Fails the request without an answer, so that the client may send it again."""
        replies = self._take_replies()
        if replies is not None:
            self._tell(replies, self._cause or ("", why), 0, succeeded=False if self._cause else None)

    def _take_replies(self) -> _core.ServiceClient | None:
        """Takes the right to answer. Returns None if the request has failed. Raises ValueError if it was answered."""
        replies, self._replies = self._replies, None
        if replies is None:
            if self._failed is None:
                raise ValueError("this request has been answered already; each request has one reply")
            return None
        _unanswered.discard(self)
        if self._pid != os.getpid():  # a forked child, which answers for its parent
            with contextlib.suppress(OSError, ValueError):
                sender = _open_replies(_reply_senders[replies.sender], replies.sender.allow_pickle)
                return replies if sender is None else _core.ServiceClient(sender)
        return replies

    def _tell(
        self,
        replies: _core.ServiceClient,
        error: tuple[str, str],
        timeout: float | None,
        succeeded: bool | None = False,
    ) -> bool:
        """Sends the failure, and returns True if the client got it. If not, keeps it for the next call of `fail`.

        Raises no Exception, because that would end the server.
        """
        told = False
        try:
            for parts in (error, (_shortened(error[0]), _shortened(error[1]))):
                with contextlib.suppress(Exception):
                    told = replies.send(((self._number, succeeded), parts), timeout)
                    break
        finally:
            if told:
                self._failed = True
            else:
                self._cause, self._replies = error, replies
                _unanswered.add(self)
        return told

    def __repr__(self) -> str:
        if self._replies is not None:
            return "<Request, unanswered>"
        return "<Request, failed>" if self._failed else "<Request, answered>"

    def __del__(self) -> None:
        if getattr(self, "_replies", None) is not None and self._pid == os.getpid():
            with contextlib.suppress(Exception):
                self._drop("the server dropped the request without an answer")


_unanswered: weakref.WeakSet[Request[Any]] = weakref.WeakSet()


def _fail_unanswered() -> None:
    for request in list(_unanswered):
        if request._pid == os.getpid():
            with contextlib.suppress(Exception):
                request._drop("the server exited without an answer")


lifetime.before_leaving(_fail_unanswered)


def _name_of(error: BaseException | str) -> tuple[str, str]:
    """Returns the class name and the text of an error."""
    if isinstance(error, str):
        return "", str.__str__(error)
    try:
        text = str(error)
    except Exception as another:
        text = f"(its __str__ raised {type(another).__qualname__})"
    return str.__str__(type(error).__qualname__), str.__str__(text)


def _shortened(text: str) -> str:
    """Returns at most 160 ASCII characters. A message with two such texts fits in a slot, so it needs no block."""
    ascii_text = text.encode("ascii", "backslashreplace").decode("ascii")
    return ascii_text if len(ascii_text) <= 160 else ascii_text[:157] + "..."


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
        deadline = deadline_after(timeout)
        while True:
            request = self._request(self._receiver._take_unloaded(timeout=left(deadline)))
            if request is not None:
                return request

    async def get_async(self, timeout: float | None = None) -> Request[_T]:
        """Does the same as `get` in a coroutine."""
        deadline = deadline_after(timeout)
        while True:
            request = self._request(await receive_async(self._receiver, self._take_now, left(deadline)))
            if request is not None:
                return request

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
        return _open_replies(handle, self._receiver.allow_pickle)


_services: weakref.WeakSet[Service[Any]] = weakref.WeakSet()


def _after_fork() -> None:
    """Closes the reply channels in a forked child. Clients must not take the death of a child for that of a server."""
    for sender in list(_reply_senders):
        sender.close()
    for service in list(_services):
        service._clients.clear()


os.register_at_fork(after_in_child=_after_fork)
