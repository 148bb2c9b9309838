"""The requests of a `Service`, as a server gets and answers them."""

from __future__ import annotations

import contextlib
import os
import pickle
import time
import weakref
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from .. import _core
from .._process import handles, lifetime
from .._public import made_by
from ..errors import ChannelClosed, PickleRefused
from .arguments import deadline_after
from .channel import Sender

_T = TypeVar("_T")

REPLY_S = 10.0  # time to wait for a client that has no space for its replies
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


def open_replies(handle: bytes, allow_pickle: bool) -> Sender | None:
    """Opens a client's reply channel. Returns None if the client is gone, or the handle is not one of a pair."""
    with (
        contextlib.suppress(FileNotFoundError, ChannelClosed),
        handles.open_channel(handle, None, False) as (channel, _),
    ):
        if not channel.is_queue:
            sender = Sender._of(channel, allow_pickle)
            reply_senders[sender] = handle
            return sender
    return None


#: Reply channels that this process has opened, and their handles.
reply_senders: weakref.WeakKeyDictionary[Any, bytes] = weakref.WeakKeyDictionary()


@made_by("Service.get()")
class Request(Generic[_T]):
    """One request of a `Service`. Any thread answers it, once, by `reply` or `fail`.

    A request fails at the client if it is dropped without an answer, or not answered when its process exits. A request
    has one result: once the client has been told of a failure, `reply` and `fail` return without sending anything.
    """

    __slots__ = ("__weakref__", "_cause", "_deadline", "_failed", "_number", "_pid", "_replies", "value")

    value: _T  #: the object that the client sent
    _replies: _core.ServiceClient | None  # None: a call is answering, or has answered
    _number: int
    _deadline: float | None
    _pid: int
    _cause: tuple[str, str] | None  # name and text of a failure that could not be sent yet
    _failed: bool | None  # True: the client got a failure; False: the reply was not sent

    @classmethod
    def _of(cls, replies: _core.ServiceClient, number: int, deadline: float | None, value: _T) -> Request[_T]:
        self = cls.__new__(cls)
        self.value = value
        self._replies = replies
        self._number = number
        self._deadline = deadline
        self._pid = os.getpid()
        self._cause = self._failed = None
        _unanswered.add(self)
        return self

    def reply(self, value: object, timeout: float | None = REPLY_S, *, move: bool = False) -> bool:
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
        return self._answer(True, value, timeout, move)

    def stream(self, part: object, timeout: float | None = REPLY_S, *, move: bool = False) -> bool:
        """Sends one of several results. Send the last one with `reply`, or call `end` after it.

        `Client.stream` returns each part. Other calls of clients return only the last result.

        Args:
            part: The result, any object that `Sender.put` takes.
            timeout: Seconds to wait while the client has not read the parts before it; None waits indefinitely.
            move: See `Sender.put`.

        Returns:
            True if it was sent. False if the client is gone, or has not read the earlier parts for `timeout` seconds.

        Raises:
            ValueError: The request was answered before. The other errors are those of `Sender.put`.
        """
        deadline_after(timeout)
        replies = self._take_replies()
        if replies is None:
            return False
        try:
            with refusals_of_the_value():
                return replies.send(((self._number, "part"), part), timeout, move)
        finally:
            self._replies = replies
            _unanswered.add(self)

    def end(self, timeout: float | None = REPLY_S) -> bool:
        """Answers a request of which all results were sent with `stream`.

        Args:
            timeout: Seconds to wait for space at the client; None waits indefinitely.

        Returns:
            The same as `reply`.
        """
        return self._answer("end", None, timeout, False)

    @property
    def cancelled(self) -> bool:
        """True if the client does not wait for the answer any more.

        Its timeout has passed, it has closed its `Client` or the iterator of `Client.stream`, or it has exited. A
        future that was cancelled does not count. False after the answer.
        """
        replies = self._replies
        if replies is None:
            return False
        if self._deadline is not None and time.monotonic() > self._deadline:
            return True
        self._replies = self._of_this_process(replies)
        return not self._replies.is_there

    def _answer(self, outcome: bool | str, value: object, timeout: float | None, move: bool) -> bool:
        deadline_after(timeout)  # raises for a wrong one, before anything is sent
        replies = self._take_replies()
        if replies is None:
            return False
        try:
            with refusals_of_the_value():
                sent = replies.send(((self._number, outcome), value), timeout, move)
        except BaseException as error:
            self._tell(replies, _name_of(error), 0)
            raise
        self._failed = None if sent else False
        return sent

    def fail(self, error: BaseException | str, timeout: float | None = REPLY_S) -> bool:
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
        return self._of_this_process(replies)

    def _of_this_process(self, replies: _core.ServiceClient) -> _core.ServiceClient:
        """Returns the client. A forked child, which may answer for its parent, opens the reply channel again."""
        if self._pid != os.getpid() and replies.sender.closed:
            with contextlib.suppress(OSError, ValueError):
                sender = open_replies(reply_senders[replies.sender], replies.sender.allow_pickle)
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
