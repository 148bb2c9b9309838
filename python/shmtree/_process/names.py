"""Names, by which the processes of a user find arenas, channels, arrays and replay buffers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from .. import _core
from . import spawn

_T = TypeVar("_T")

# Kinds of objects that can have a name.
ARENA, CHANNEL, ARRAY, QUEUE, REPLAY, LATEST, BROADCAST = 1, 2, 3, 4, 5, 6, 7
#: Words for programs, as in JSON.
KINDS = {
    ARENA: "arena",
    CHANNEL: "channel",
    ARRAY: "array",
    QUEUE: "queue",
    REPLAY: "replay",
    LATEST: "latest",
    BROADCAST: "broadcast",
}
# The last process that has a name may exit between our attempt to open it and our attempt to make it.
_MAX_TURNS = 16


def create_name(name: str, kind: int, arena: _core.Arena, block: int = 0, note: str = "") -> _core.Name:
    check_name(name)
    _core.note_process_name()
    spawn.sweep()
    return _core.Name.create(name, kind, arena, block, note)


def check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(f"name is {name!r}; it must be a str")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"name is {name!r}; it has characters that cannot be in a file name") from None


def check_free(name: str) -> None:
    """Raises FileExistsError if an object has the name. Other processes can still take the name afterwards."""
    with contextlib.suppress(FileNotFoundError):
        known = open_name(name)
        raise FileExistsError(f'the name "{name}" belongs to {known.kind_in_sentence}; choose another name')


def open_name(name: str, kind: int | None = None, timeout: float | None = 0.0) -> _core.Name:
    """Opens a name.

    Raises FileNotFoundError if there is none, or TimeoutError after `timeout` seconds (None: never). Raises ValueError
    if the name belongs to another kind of object than `kind`.
    """
    check_name(name)
    _core.note_process_name()
    spawn.sweep()
    return _core.Name.open(name, timeout, kind)


def open_or_make(name: str | None, exist_ok: bool, known: Callable[[str], _T], make: Callable[[], _T]) -> _T:
    """Returns `known(name)` if `exist_ok` is set and the name exists; otherwise `make()`, which makes the name.

    If several processes do this at once, exactly one makes the name.
    """
    if not exist_ok:
        return make()
    if name is None:
        raise ValueError("exist_ok requires a name")
    for turn in range(_MAX_TURNS):
        with contextlib.suppress(FileNotFoundError):
            return known(name)
        try:
            return make()
        except FileExistsError:
            if turn == _MAX_TURNS - 1:
                raise
    raise AssertionError("not reached")


def check_known(name: str, arena: _core.Arena, asked: _core.Arena | None, check: Callable[[], None]) -> None:
    """Raises ValueError, with the difference, unless the object of that name has the given arena and options."""
    if asked is not None and asked.uuid != arena.uuid:
        raise ValueError(f'the name "{name}": it belongs to an object in another arena than the one given')
    try:
        check()
    except ValueError as error:
        raise ValueError(f'the name "{name}": {error}') from None
