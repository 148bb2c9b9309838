"""Contexts with shmtree's queues and pipes. Start methods, and the default one, are the standard ones."""

from __future__ import annotations

import multiprocessing
from multiprocessing import context
from typing import Any, Literal, overload

from .._ipc import pipe, queue


class QueueContext(context.BaseContext):
    """Base of these contexts; the rest comes from the standard context that each one replaces."""

    def Queue(self, maxsize: int = 0) -> queue.Queue[Any]:  # type: ignore[override]
        """Returns a `shmtree.Queue`."""
        return queue.Queue(maxsize, ctx=self.get_context())

    def JoinableQueue(self, maxsize: int = 0) -> queue.JoinableQueue[Any]:  # type: ignore[override]
        """Returns a `shmtree.JoinableQueue`."""
        return queue.JoinableQueue(maxsize, ctx=self.get_context())

    def SimpleQueue(self) -> queue.SimpleQueue[Any]:  # type: ignore[override]
        """Returns a `shmtree.SimpleQueue`."""
        return queue.SimpleQueue(ctx=self.get_context())

    def Pipe(self, duplex: bool = True) -> tuple[pipe.Connection, pipe.Connection]:  # type: ignore[override]
        """Returns two connected `Connection` objects."""
        return pipe.Pipe(duplex)

    @overload  # type: ignore[override]
    def get_context(self, method: None = None) -> QueueContext: ...
    @overload
    def get_context(self, method: Literal["fork"]) -> ForkContext: ...
    @overload
    def get_context(self, method: Literal["spawn"]) -> SpawnContext: ...
    @overload
    def get_context(self, method: Literal["forkserver"]) -> ForkServerContext: ...
    @overload
    def get_context(self, method: str) -> QueueContext: ...
    def get_context(self, method: str | None = None) -> context.BaseContext:
        """Returns the context of a start method; None: the one of this context."""
        standard = multiprocessing.get_context(self.get_start_method() if method is None else method)
        return _contexts.get(standard.get_start_method(), standard)  # another library's context is returned unchanged


class ForkContext(QueueContext, context.ForkContext):
    pass


class SpawnContext(QueueContext, context.SpawnContext):
    pass


class ForkServerContext(QueueContext, context.ForkServerContext):
    pass


class DefaultContext(QueueContext, context.DefaultContext):
    """The context of the standard module's start method; its methods are the functions of the package."""

    def __init__(self) -> None:
        """Does not call the base class, because the start method is kept in the standard module."""

    def get_start_method(self, allow_none: bool = False) -> Any:
        return multiprocessing.get_start_method(allow_none)

    def set_start_method(self, method: str | None, force: bool = False) -> None:
        multiprocessing.set_start_method(method, force)

    def get_all_start_methods(self) -> list[str]:
        return multiprocessing.get_all_start_methods()


_contexts = {"fork": ForkContext(), "spawn": SpawnContext(), "forkserver": ForkServerContext()}
default_context = DefaultContext()
get_context = default_context.get_context
