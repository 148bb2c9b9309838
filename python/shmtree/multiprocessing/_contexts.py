"""Contexts with shmtree's queues and pipes. Their start methods, and which is the default, are the standard ones."""

from __future__ import annotations

import multiprocessing
from multiprocessing import context
from typing import Any, Literal, overload

from .._ipc import pipe, queue


class QueueContext(context.BaseContext):
    """What these contexts have in common; the rest comes from the standard context that each stands for."""

    def Queue(self, maxsize: int = 0) -> queue.Queue[Any]:  # type: ignore[override]
        """A `shmtree.Queue`."""
        return queue.Queue(maxsize, ctx=self.get_context())

    def JoinableQueue(self, maxsize: int = 0) -> queue.JoinableQueue[Any]:  # type: ignore[override]
        """A `shmtree.JoinableQueue`."""
        return queue.JoinableQueue(maxsize, ctx=self.get_context())

    def SimpleQueue(self) -> queue.SimpleQueue[Any]:  # type: ignore[override]
        """A `shmtree.SimpleQueue`."""
        return queue.SimpleQueue(ctx=self.get_context())

    def Pipe(self, duplex: bool = True) -> tuple[pipe.Connection, pipe.Connection]:  # type: ignore[override]
        """Two connected `Connection` objects."""
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
        """The context of this start method, or of another."""
        standard = multiprocessing.get_context(self.get_start_method() if method is None else method)
        return _contexts.get(standard.get_start_method(), standard)  # what other libraries have added stays as it is


class ForkContext(QueueContext, context.ForkContext):
    pass


class SpawnContext(QueueContext, context.SpawnContext):
    pass


class ForkServerContext(QueueContext, context.ForkServerContext):
    pass


class DefaultContext(QueueContext, context.DefaultContext):
    """The context of whatever start method the standard module has; its methods are the functions of the package."""

    def __init__(self) -> None:
        """Leaves the state that the standard class would have to the standard module."""

    def get_start_method(self, allow_none: bool = False) -> Any:
        return multiprocessing.get_start_method(allow_none)

    def set_start_method(self, method: str | None, force: bool = False) -> None:
        multiprocessing.set_start_method(method, force)

    def get_all_start_methods(self) -> list[str]:
        return multiprocessing.get_all_start_methods()


_contexts = {"fork": ForkContext(), "spawn": SpawnContext(), "forkserver": ForkServerContext()}
default_context = DefaultContext()
get_context = default_context.get_context
