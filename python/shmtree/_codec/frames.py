"""Frames without a channel: pack, unpack, dump, load, describe, register."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import sys
import tempfile
from collections.abc import Callable
from typing import Any, TextIO, TypeVar

from .. import _core
from .._core import Frame, pack, unpack
from ..errors import CorruptMessage
from . import pickle_reasons, reducers, standard_library

__all__ = ["Frame", "describe", "dump", "load", "pack", "register", "unpack"]

T = TypeVar("T")

_MAGIC = b"SHMT"


def dump(obj: object, path: str | os.PathLike[str], allow_pickle: bool = True) -> None:
    """Writes an object to a file as one frame, for `load`.

    The file appears whole or not at all: it is written under another name next to `path`, which then replaces it.
    Readers that have the old one mapped keep it. Raises as `pack` does, and OSError.
    """
    frame = pack(obj, allow_pickle)
    path = os.fspath(path)
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=os.path.basename(path) + ".", dir=os.path.dirname(path) or ".")
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None  # its own names the temporary file
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o666 & ~_umask())
            file.write(frame)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def load(path: str | os.PathLike[str], *, allow_pickle: bool = False) -> Any:
    """The object in a file that `dump` wrote.

    The file is mapped: arrays of 4 KiB and more are views that read it when they are used. They are writable, and what
    is written to them stays in this process. Raises CorruptMessage for a file that is truncated or something else, and
    PickleRefused as `unpack` does. The file must not be shortened while views are in use; replacing it is fine.
    """
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise CorruptMessage(f"{os.fspath(path)!r} is empty, so it is no frame")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return unpack(mapped, allow_pickle=allow_pickle)


def describe(buffer_or_obj: Any, *, file: TextIO | None = None) -> None:
    """Prints the tree of a frame, or of an object as a message of it would be: kinds, shapes, bytes.

    Goes to standard output, or to `file`. Of an object that needs a pickle, it also tells why: which parts have no
    native kind, and what each takes, and which tuples, or other things made of their items, are in themselves. Nothing
    of a frame is unpickled or otherwise made, so frames of any origin may be looked at. Raises CorruptMessage for a
    frame that is damaged; a buffer that does not begin like a frame is described as an object.
    """
    if _is_frame(buffer_or_obj):
        print(_core._describe(buffer_or_obj), end="", file=file)
        return
    tree = _core._describe(_core._pack_aside(buffer_or_obj))
    print(tree, end="", file=file)
    if re.match(r"[^\n]*\n(long_)?pickle ", tree):
        print("needs a pickle:", *(pickle_reasons.lines(buffer_or_obj)), sep="\n  ", file=file)


def register(cls: type[T], flatten: Callable[[T], object], unflatten: Callable[[Any], T]) -> None:
    """Makes instances of exactly `cls` native: they travel as what `flatten` returns, without pickle.

    `flatten(instance)` returns any object that can be sent; `unflatten` gets its equal and returns the instance. Both
    sides register the class, under the same module and name. Registering it again replaces the functions. Raises
    TypeError when `cls` is no class or a function cannot be called, ValueError when it has a native kind already.
    """
    _core._register(cls, flatten, unflatten)
    module = "__main__" if cls.__module__ == "__mp_main__" else cls.__module__  # in a child of spawn they are one
    reducers.add_registered(cls, flatten, f"{module}:{cls.__qualname__}")


def _is_frame(value: object) -> bool:
    try:
        view = memoryview(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return view.contiguous and view.nbytes >= len(_MAGIC) and bytes(view.cast("B")[: len(_MAGIC)]) == _MAGIC


def _umask() -> int:
    """The process's umask, which can only be read by setting it; so from /proc where that is there."""
    with contextlib.suppress(OSError), open("/proc/self/status") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o077


standard_library.add()

if sys.byteorder != "little":
    raise ImportError("shmtree needs a little-endian machine")
