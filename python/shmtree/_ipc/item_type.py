"""The type of the objects that an end carries, for type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # An end without a type in brackets carries any type.
    T = TypeVar("T", default=Any)
    ReplyT = TypeVar("ReplyT", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")
    ReplyT = TypeVar("ReplyT")
