"""Substitute for a message that cannot be sent: its receiver gets an error, and later messages are not affected."""

from __future__ import annotations

import operator
from typing import Any

from .._codec.frames import pack, register
from ..errors import CorruptMessage


class Unread:
    """The receiver of this message gets CorruptMessage with the reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class Substitute(bytes):
    """The frame of an Unread in the form of a taken message; acking it does nothing."""

    def __new__(cls, reason: str) -> Substitute:
        return super().__new__(cls, pack(Unread(reason)))

    ticket = None
    portable = True

    @property
    def nbytes(self) -> int:
        return len(self)

    def ack(self) -> None:
        pass

    def nack(self) -> None:
        pass


def _raise(reason: Any) -> Any:
    raise CorruptMessage(str(reason))


register(Unread, operator.attrgetter("reason"), _raise)
