"""Batches that a thread samples ahead."""

from __future__ import annotations

import contextlib
import inspect
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from .._process import lifetime
from .._public import made_by
from ._batch import Batch, TensorBatch
from ._numbers import not_negative, seed_of
from ._rows import map_nest

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._buffer import ReplayBuffer

_Move = Callable[[Batch], tuple[Any, Any]]

_loaders: weakref.WeakSet[Loader] = weakref.WeakSet()  # the loaders of this process


class _Ahead:
    """The batches that are ready, shared by a loader and its thread. The thread has no reference to the loader."""

    def __init__(self, reader: ReplayBuffer, prefetch: int) -> None:
        self.reader, self.prefetch = reader, prefetch
        self.pid = os.getpid()
        self.changed = threading.Condition()
        self.batches: deque[Any] = deque()
        self.error: BaseException | None = None  # what `next` raises after the last batch
        self.has_ended = False

    def end(self, error: BaseException | None = None) -> None:
        """Ends the thread, without waiting for it."""
        if self.pid != os.getpid():  # of the parent process
            return
        with self.changed:
            if not self.has_ended:
                self.has_ended, self.error = True, error
            self.changed.notify_all()
        self.reader.close()

    def fill(self, method: str, front: tuple[int, ...], options: dict[str, Any], move: _Move) -> None:
        """Runs in the thread."""
        try:
            draw = getattr(self.reader, method)
            while True:
                with self.changed:
                    self.changed.wait_for(lambda: self.has_ended or len(self.batches) < self.prefetch)
                    if self.has_ended:
                        return
                batch = move(draw(*front, **options))
                with self.changed:
                    self.batches.append(batch)
                    self.changed.notify_all()
                del batch
        except BaseException as error:
            self.end(error)


@made_by("ReplayBuffer.loader()")
class Loader:
    """Iterates over batches that a thread samples ahead; made by `ReplayBuffer.loader`.

    Errors of the thread, such as PeerDied, are raised by ``next`` after the batches that were sampled before, and end
    the loader. Any thread may call ``next``, and each batch goes to one of them. A forked child cannot use its parent's
    loader.

    Attributes:
        buffer: The object of the buffer that samples: `ReplayBuffer.stats` of this object counts its rows.
    """

    buffer: ReplayBuffer
    _ahead: _Ahead
    _thread: threading.Thread
    _timeout: float | None

    @classmethod
    def _of(
        cls,
        buffer: ReplayBuffer,
        method: str,
        front: tuple[int, ...],
        options: dict[str, Any],
        device: Any,
        prefetch: int,
        seed: int | None,
        timeout: float | None,
    ) -> Self:
        inspect.signature(getattr(buffer, method)).bind(*front, **options)
        out = options.get("out")
        if out is not None and not (isinstance(out, str) and out == "arena"):
            raise TypeError("out is an array or a pytree, which every batch would overwrite; pass out='arena', or None")
        core, move = buffer._replay, _mover(device)
        self = cls.__new__(cls)
        self.buffer = type(buffer)._opened(core.arena, core.block, None)
        number = buffer._loaders_made = buffer._loaders_made + 1
        own = np.random.SeedSequence([core.seed, number]).generate_state(1, np.uint64)[0]
        self.buffer._replay.seed = int(own) if seed is None else seed_of(seed)
        self._timeout = None if timeout is None else not_negative("timeout", timeout)
        self._ahead = _Ahead(self.buffer, prefetch)
        self._thread = threading.Thread(
            target=self._ahead.fill, args=(method, front, options, move), name="shmtree-loader", daemon=True
        )
        weakref.finalize(self, self._ahead.end).atexit = False
        buffer._loaders.add(self)
        _loaders.add(self)
        self._thread.start()
        if buffer.closed:  # closed meanwhile by another thread
            self.close()
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Returns the next batch.

        Raises:
            StopIteration: The loader was closed.
            queue.Empty: There was no batch for `timeout` seconds. A later call may get one.
            shmtree.ChannelClosed: The buffer was closed.
            RuntimeError: Another process made the loader.
        """
        ahead = self._ahead
        if ahead.pid != os.getpid():
            raise RuntimeError(
                f"the loader belongs to process {ahead.pid}, and this is process {os.getpid()}; call loader() here"
            )
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        with ahead.changed:
            while not ahead.batches and not ahead.has_ended:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise queue.Empty(f"no batch within {self._timeout} s")
                ahead.changed.wait(left)
            if not ahead.batches:
                error, ahead.error = ahead.error, None
                raise StopIteration if error is None else error
            batch, wait = ahead.batches.popleft()
            ahead.changed.notify_all()
        if wait is not None:
            wait(batch)
        return batch

    def close(self) -> None:
        """Ends the thread and drops the batches that it sampled ahead. Idempotent."""
        self._ahead.end()
        if self._ahead.pid == os.getpid():
            with self._ahead.changed:
                self._ahead.batches.clear()
            if self._thread is not threading.current_thread():
                self._thread.join()

    def _fail(self, error: BaseException) -> None:
        """Ends the loader; `next` raises the error."""
        self._ahead.end(error)

    @property
    def closed(self) -> bool:
        """True if `close` was called, if an error has ended the loader, or if its buffer was closed."""
        return self._ahead.has_ended

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'Loader' object: its thread belongs to one process; pass the buffer instead")

    def __repr__(self) -> str:
        return f"<Loader, {'closed' if self.closed else f'{len(self._ahead.batches)} batches sampled ahead'}>"


def _mover(device: Any) -> _Move:
    """Returns a function that moves a batch, and returns the moved one with a function for the thread that uses it."""
    if device is None:
        return lambda batch: (batch, None)
    import torch

    where = torch.device(device)
    if where.type != "cuda":
        return lambda batch: (batch.to(where), None)
    if where.index is None:  # the current device of this thread, not of the loader's
        where = torch.device("cuda", torch.cuda.current_device())
    stream = torch.cuda.Stream(where)

    def move(batch: Batch) -> tuple[TensorBatch, Any]:
        with torch.cuda.stream(stream):
            moved = TensorBatch._of(batch, where, True, pins=True)
            copied = stream.record_event()

        def wait(batch: TensorBatch) -> None:
            """Makes the stream of the calling thread wait for the copies, and keeps their memory for its work."""
            current = torch.cuda.current_stream(where)
            current.wait_event(copied)
            map_nest("", batch.data, lambda _, tensor: tensor.record_stream(current))

        return moved, wait

    return move


def _close_all() -> None:
    for loader in tuple(_loaders):
        with contextlib.suppress(Exception):
            loader.close()


lifetime.before_leaving(_close_all)
