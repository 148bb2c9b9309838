"""Frames without a channel: pack, unpack, dump, load, describe, register."""

from __future__ import annotations

import mmap
import os
import re
import sys
from collections.abc import Callable
from typing import Any, TextIO, TypeVar

from .. import _core
from .._core import Frame, pack, unpack
from ..errors import CorruptMessage
from . import pickle_reasons, reducers, standard_library, whole_files

__all__ = ["Frame", "describe", "dump", "load", "pack", "register", "unpack"]

T = TypeVar("T")

_MAGIC = b"SHMT"


def dump(obj: object, path: whole_files.AnyPath, allow_pickle: bool = True) -> None:
    """Writes an object to a file as one frame, for `load`.

    The file appears complete or not at all, and keeps the mode of a file that it replaces. Processes that have mapped
    the old file keep their mapping. If `path` is a link, it stays a link. If it is a mount point, or its folder takes
    no new file, the complete bytes are copied into the old file.

    Args:
        obj: Any object that `pack` takes.
        path: File to write.
        allow_pickle: True if objects without a native kind may be pickled.

    Raises:
        OSError: The file cannot be written.

    Other errors are those of `pack`.

    Example::

        shmtree.dump({"obs": obs}, "episode.shm")
        episode = shmtree.load("episode.shm")  # maps the file
    """
    frame = pack(obj, allow_pickle)
    with whole_files.replacing(path) as file:
        file.write(frame)


def load(path: whole_files.AnyPath, *, allow_pickle: bool = False) -> Any:
    """Returns the object in a file that `dump` wrote.

    The file is mapped: arrays of 4 KiB and more are views that read the file when you use them. They are writable, and
    changes stay in this process. While views are in use, the file must not be shortened; it may be replaced.

    Args:
        path: File to read.
        allow_pickle: True if pickles may be loaded.

    Raises:
        CorruptMessage: The file is truncated or is not a frame.
        PickleRefused: As in `unpack`.
        OSError: The file cannot be read.
    """
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise CorruptMessage(f"{os.fspath(path)!r} is empty, so it is not a frame")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return unpack(mapped, allow_pickle=allow_pickle)


def describe(buffer_or_obj: Any, *, file: TextIO | None = None) -> None:
    """Prints the tree of a frame, or of an object as its message would be: kinds, shapes, bytes.

    For an object that needs a pickle, it also prints the reasons: the parts without a native kind, and the bytes that
    each takes. Such a part can also be a tuple, or another value that is built from its items, if it contains itself.
    Nothing in a frame is unpickled or built, so frames of any origin are safe to describe. A buffer that does not begin
    like a frame is described as an object.

    Args:
        buffer_or_obj: A frame, or any object that can be sent.
        file: Text file to print to; None is standard output.

    Raises:
        CorruptMessage: The frame is damaged.
    """
    if _is_frame(buffer_or_obj):
        print(_core._describe(buffer_or_obj), end="", file=file)
        return
    tree = _core._describe(_core._pack_aside(buffer_or_obj))
    print(tree, end="", file=file)
    if re.match(r"[^\n]*\n(long_)?pickle ", tree):
        print("needs a pickle:", *(pickle_reasons.lines(buffer_or_obj)), sep="\n  ", file=file)


def register(cls: type[T], flatten: Callable[[T], object], unflatten: Callable[[Any], T]) -> None:
    """Makes instances of exactly `cls` native: a message contains what `flatten` returns, without pickle.

    Both sides register the class, under the same module and name. Registering it again replaces the functions.

    Args:
        cls: The class. Its subclasses are not included.
        flatten: Takes an instance and returns any object that can be sent.
        unflatten: Takes an object that is equal to the result of `flatten`, and returns the instance.

    Raises:
        TypeError: `cls` is not a class, or a function is not callable.
        ValueError: The class has a native kind already.
    """
    _core._register(cls, flatten, unflatten)
    module = "__main__" if cls.__module__ == "__mp_main__" else cls.__module__  # its name after spawn
    reducers.add_registered(cls, flatten, f"{module}:{cls.__qualname__}")


def _is_frame(value: object) -> bool:
    try:
        view = memoryview(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return view.contiguous and view.nbytes >= len(_MAGIC) and bytes(view.cast("B")[: len(_MAGIC)]) == _MAGIC


standard_library.add()

if sys.byteorder != "little":
    raise ImportError(f"shmtree needs a little-endian machine; this one is {sys.byteorder}-endian")
