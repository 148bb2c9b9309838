"""Common base of Latest and Broadcast: names, pickling, closing, and new arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .. import _core
from .._process import handles, lifetime, names
from .._process.names import open_known
from ..errors import ChannelClosed
from . import arrays
from .arena import Arena, home_for
from .arguments import core_of
from .wake_hub import wake_waiting

if TYPE_CHECKING:
    from typing_extensions import Self


class Published:
    """Base class of a shared object that processes publish to.

    Subclasses derive from a class of the core after this one; that class owns the shared object.
    """

    _WHAT: ClassVar[str]  # name of the class, for errors
    _KIND: ClassVar[int]  # kind of its names
    _THING: ClassVar[Any]  # core class of the shared object
    _BASE: ClassVar[Any]  # core class that is the other base
    _name: _core.Name | None = None

    if TYPE_CHECKING:

        @property
        def closed(self) -> bool: ...
        @property
        def allow_pickle(self) -> bool: ...

    @property
    def _thing(self) -> Any:
        raise NotImplementedError

    def _become(self, thing: Any, allow_pickle: bool, name: _core.Name | None) -> None:
        self._BASE.__init__(self, thing, allow_pickle)
        self._name = name

    @classmethod
    def _of(cls, thing: Any, allow_pickle: bool, name: _core.Name | None) -> Self:
        self = cls.__new__(cls)
        self._become(thing, allow_pickle, name)
        return self

    @classmethod
    def _opened(cls, arena: _core.Arena, block: int, name: _core.Name | None, allow_pickle: bool) -> Self:
        return cls._of(cls._THING.open(arena, block), allow_pickle, name)

    @classmethod
    def open(cls, name: str, timeout: float | None = 0.0, *, allow_pickle: bool = False) -> Self:
        """Opens the object of this name.

        Args:
            name: Name that another process of this user gave it.
            timeout: Seconds to wait for the name; None waits indefinitely.
            allow_pickle: True allows pickles, if the process that made the object allowed them as well.

        Raises:
            FileNotFoundError: There is no such name and `timeout` is 0.
            TimeoutError: There is still no such name after `timeout` seconds.
            ValueError: The name belongs to something else.
        """
        known = open_known(name, cls._KIND, timeout)
        return cls._opened(known.arena, known.block, known, allow_pickle)

    def _create(self, name: str | None, arena: Arena | None, exist_ok: bool, allow: bool, *terms: Any) -> None:
        """Makes a shared object with `terms`, or opens the one of that name if `exist_ok` allows it."""
        given = core_of(arena)

        def make() -> tuple[Any, _core.Name | None]:
            thing = self._THING.create(given or home_for(name), *terms)
            if name is None:
                return thing, None
            return thing, names.create_name(name, self._KIND, thing.arena, thing.block)

        def known(name: str) -> tuple[Any, _core.Name | None]:
            found = open_known(name, self._KIND)
            thing = self._THING.open(found.arena, found.block)
            names.check_known(name, found.arena, given, lambda: thing.check_options(*terms))
            return thing, found

        if name is not None:
            names.check_name(name)
        thing, made = names.open_or_make(name, exist_ok, known, make)
        self._become(thing, allow, made)

    def new_empty(self, shape: Any, dtype: Any = float, order: str = "C") -> Any:
        """Returns an uninitialised array (torch dtype: tensor) that is published uncopied; see `Sender.new_empty`."""
        return arrays.new_array(self._thing.arena, shape, dtype, order, False)

    def new_zeros(self, shape: Any, dtype: Any = float, order: str = "C") -> Any:
        """Returns an array like `new_empty`, filled with zeros."""
        return arrays.new_array(self._thing.arena, shape, dtype, order, True)

    def new_empty_like(self, prototype: Any, dtype: Any = None, order: str = "K") -> Any:
        """Returns an array like `new_empty`, with the shape, dtype and order of another array or tensor."""
        return arrays.new_like(self._thing.arena, prototype, dtype, order)

    @property
    def arena(self) -> Arena:
        """The arena that contains the object."""
        return Arena._of(self._thing.arena, None)

    def close(self) -> None:
        """Closes this object.

        If it is the last one of this process, the process stops being a publisher. Idempotent.

        If no other publisher is left, readers reach the end of the stream. Published data stays for other processes,
        and views stay valid.
        """
        self._BASE.close(self)
        self._release()

    def fail(self) -> None:
        """Closes this object as `close` does, and reports a failure of this process.

        Once no publisher is left, readers get all messages, and then WorkerFailed instead of the end of the stream.
        Does nothing if this object is closed.
        """
        self._fail(0)

    def _fail(self, code: int) -> None:
        self._BASE._fail(self, code)
        self._release()

    def _release(self) -> None:
        self._name = None
        wake_waiting(self)
        _core.sweep_transfers()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes the object. Calls `fail` after an exception, except Ctrl-C and errors at the end of a stream."""
        code = lifetime.failure_of(exception[1])
        self.close() if code is None else self._fail(code)

    def _check_open(self) -> None:
        if self.closed:
            raise ChannelClosed(f"a closed {self._WHAT} cannot be handed to another process")

    def _flatten(self) -> tuple[bytes, bool]:
        """Returns what a message contains in place of this object: its memory handle, and `allow_pickle`."""
        self._check_open()
        thing = self._thing
        return handles.memory_handle(thing.arena, thing.block, self._name), self.allow_pickle

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_open()
        thing = self._thing
        handle = handles.reduce_memory(thing.arena, thing.block, self._name)
        return _open, (type(self), *handle, self.allow_pickle)


def _open(cls: type[Published], handle: bytes, inheritance: Any, allow_pickle: bool) -> Published:
    return handles.open_memory(
        handle, inheritance, lambda arena, block, name: cls._opened(arena, block, name, allow_pickle)
    )
