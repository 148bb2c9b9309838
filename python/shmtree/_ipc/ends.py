"""Python methods that ends share: context management and coroutines. Other methods of all ends are in the core."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic

from .. import _core
from .._process import lifetime
from ..errors import ChannelClosed
from . import arrays, waiting
from .item_type import T

if TYPE_CHECKING:
    from typing_extensions import Self


def shown(end: Any, state: Callable[[], str]) -> str:
    """Returns the repr of an end: its class, and `state` or "closed"."""
    text = "closed"
    with contextlib.suppress(ChannelClosed):  # another thread may close it meanwhile
        text = "closed" if end.closed else state()
    return f"<{type(end).__name__}, {text}>"


class End:
    """Base of all ends. Adds the context manager."""

    __slots__ = ()

    if TYPE_CHECKING:  # provided by the base class of the core

        @property
        def closed(self) -> bool: ...
        @property
        def allow_pickle(self) -> bool: ...
        @property
        def _arena(self) -> _core.Arena: ...
        def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class PublishingEnd(End):
    """Base of ends that put or publish, except queues."""

    __slots__ = ()

    if TYPE_CHECKING:

        def _fail(self, exit_code: int, /) -> None: ...

    def __exit__(self, *exception: object) -> None:
        """Closes the end. Calls `fail` if an exception leaves the block, except Ctrl-C and the end of a stream."""
        code = lifetime.failure_of(exception[1])
        self.close() if code is None else self._fail(code)

    def _new_tensor(self, shape: Any, dtype: Any, order: str, zeroed: bool) -> Any:
        return arrays.new_array(self._arena, shape, dtype, order, zeroed)

    def new_empty_like(self, prototype: Any, dtype: Any = None, order: str = "K") -> Any:
        """Returns an array like `new_empty`, with the shape, dtype and order of another array or tensor."""
        return arrays.new_like(self._arena, prototype, dtype, order)


class ReceivingEnd(End, Generic[T]):
    """Base of ends that receive. Adds coroutines."""

    __slots__ = ()

    #: `x in receiver` raises TypeError. By iteration, it would receive every message.
    __contains__ = None

    async def get_async(self, timeout: float | None = None, *, copy: bool | None = None) -> T:
        """Does the same as `get` in a coroutine. It can be cancelled at any time without losing a message."""
        got: T = await waiting.get_async(self, timeout, copy)
        return got

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        return await waiting.next_async(self.get_async)
