"""Common base of Latest and Broadcast: names and pickling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .. import _core
from .._process import handles
from .._process.names import open_name
from .arena import Arena
from .ends import PublishingEnd

if TYPE_CHECKING:
    from typing_extensions import Self


class Published(PublishingEnd):
    """Base class of a shared object that processes publish to.

    Subclasses derive from a class of the core after this one; that class owns the shared object.
    """

    _KIND: ClassVar[int]  # kind of its names
    _SHARED: ClassVar[Any]  # core class of the shared object

    if TYPE_CHECKING:

        @property
        def _name(self) -> _core.Name | None: ...
        @property
        def _shared(self) -> Any: ...  # ChannelClosed once this object was closed
        def _attach(self, shared: Any, allow_pickle: bool, name: _core.Name | None, /) -> None: ...

    @classmethod
    def _of(cls, shared: Any, allow_pickle: bool, name: _core.Name | None) -> Self:
        self = cls.__new__(cls)
        self._attach(shared, allow_pickle, name)
        return self

    @classmethod
    def _opened(cls, arena: _core.Arena, block: int, name: _core.Name | None, allow_pickle: bool) -> Self:
        return cls._of(cls._SHARED.open(arena, block), allow_pickle, name)

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
        known = open_name(name, cls._KIND, timeout)
        return cls._opened(known.arena, known.block, known, allow_pickle)

    @property
    def arena(self) -> Arena:
        """The arena that contains the object."""
        return Arena._of(self._arena, None)

    def _flatten(self) -> tuple[bytes, bool]:
        """Returns what a message contains in place of this object: its memory handle, and `allow_pickle`."""
        shared = self._shared
        return handles.memory_handle(shared.arena, shared.block, self._name), self.allow_pickle

    def __reduce__(self) -> tuple[Any, ...]:
        shared = self._shared
        handle = handles.reduce_memory(shared.arena, shared.block, self._name)
        return _open, (type(self), *handle, self.allow_pickle)


def _open(cls: type[Published], handle: bytes, inheritance: Any, allow_pickle: bool) -> Published:
    return handles.open_memory(
        handle, inheritance, lambda arena, block, name: cls._opened(arena, block, name, allow_pickle)
    )
