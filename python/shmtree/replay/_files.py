"""Buffers in files."""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _core
from .._codec.whole_files import AnyPath
from .._public import made_by
from ..errors import Error, IncompatibleArena
from ._numbers import positive
from ._options import Limits
from ._spec import Spec

if TYPE_CHECKING:
    from ._buffer import ReplayBuffer


#: Gets the bytes done and the bytes in total.
Progress = Callable[[int, int], object]


@made_by("ReplayBuffer.save()")
class Saved(NamedTuple):
    """The result of a save."""

    save: int  #: number of the save, from 1
    rows: int  #: rows in the files that can be sampled
    written: int  #: bytes written by this save
    nbytes: int  #: bytes of all files


def save(core: _core.Replay, path: AnyPath, progress: Progress | None) -> Saved:
    check_progress(progress)
    return Saved._make(_core.save_replay(core, _name_of(path), progress))


def check_progress(progress: Any) -> None:
    if progress is not None and not callable(progress):
        raise TypeError(
            f"progress is {progress!r}; it must be a callable with two ints (bytes done and total), or None"
        )


def open_files(path: AnyPath) -> _core.ReplayFiles:
    return _core.ReplayFiles(_name_of(path))


def spec_of(files: _core.ReplayFiles, path: AnyPath) -> Spec:
    """Returns the spec of the saved buffer. Raises ValueError with the path of the manifest if it cannot be read."""
    with naming(os.path.join(os.fsdecode(path), "manifest")):
        return Spec(files.spec)


@contextlib.contextmanager
def naming(path: AnyPath) -> Iterator[None]:
    """Adds the path to errors that the files may cause: a ValueError or IncompatibleArena becomes a ValueError."""
    text = os.fsdecode(path)
    try:
        yield
    except (ValueError, IncompatibleArena) as error:
        is_of_caller = isinstance(error, Error) and not isinstance(error, IncompatibleArena)  # such as MessageTooLarge
        if is_of_caller or (type(error) is ValueError and text in str(error)):
            raise
        raise ValueError(f"{text}: {error}") from error


def _name_of(path: Any) -> bytes:
    try:
        name = os.fsencode(path)
    except TypeError:
        raise TypeError(f"path is {path!r}; it must be a str or an os.PathLike, the path of a folder") from None
    if b"\0" in name:
        raise ValueError("embedded null byte")  # as in open()
    return name


def to_bytes(buffer: ReplayBuffer) -> dict[str, bytes]:
    """Returns the files of `save`, by name."""
    with tempfile.TemporaryDirectory() as folder:
        buffer.save(folder)
        return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}


def from_bytes(cls: type[ReplayBuffer], files: dict[str, bytes]) -> ReplayBuffer:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (pathlib.Path(folder) / name).write_bytes(content)
        return cls.load(folder)


def size_of(capacity: int | None, limits: Limits | None) -> tuple[int, int, int]:
    """Returns the capacity, the chunk and the streams that a load asks for; 0 for None."""
    limits = limits or Limits()
    return 0 if capacity is None else positive("capacity", capacity), limits.chunk or 0, limits.streams
