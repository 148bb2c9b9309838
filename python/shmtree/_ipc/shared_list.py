"""SharedList: one immutable copy of a data set in shared memory, for any number of processes."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, SupportsIndex, TypeVar, overload

from .. import _core
from .._codec import whole_files
from ..errors import Error
from . import list_handles, list_memory
from .list_memory import ListMemory
from .list_writer import Writer

T = TypeVar("T", covariant=True)


class SharedList(Sequence[T]):
    """An immutable list with its items stored once, in shared memory, for any number of processes.

    A worker decodes an item when it asks for the item. The item's arrays are read-only views of shared memory, so the
    memory of a worker does not grow with the data set. Tensors are copies, since torch has no read-only tensors. Items
    are anything that `pack` takes.

    A SharedList passes to another process as a reference: as an argument of Process with fork, spawn and forkserver,
    through a pipe or queue, and in messages. A list in transit keeps the memory, as long as its sender lives. A slice
    is a SharedList of the same memory. The kernel frees the memory when no process has the list, a slice, or a view of
    an item any more, also if processes were killed. No process can write to it.

    It has what torch's ``DataLoader`` expects of a map-style ``Dataset``.

    Args:
        items: Items of the list. A generator is read once, and each item is dropped after it was encoded.
        path: Builds the list in this file and maps the file, for a list that is larger than the memory. The file
            appears complete or not at all. None builds the list in memory.
        allow_pickle: True if objects without a native kind may be pickled, and loaded by the processes that get the
            list.

    Raises:
        PickleRefused: An item needs pickle, and `allow_pickle` is False.
        NotPortable: An item has ends, shared arrays, other shared lists or device memory.
        OutOfSharedMemory: The machine has no memory left for the list.
        OSError: The file cannot be written.

    Other errors of an item are those of `pack`.

    Example::

        samples = shmtree.SharedList({"path": path, "boxes": read_boxes(path)} for path in paths)
        loader = torch.utils.data.DataLoader(samples, batch_size=64, shuffle=True, num_workers=8)
    """

    _memory: ListMemory | None  # None: it was freed before this process got it
    _places: range
    _allow_pickle: bool

    def __init__(
        self, items: Iterable[T] = (), *, path: whole_files.AnyPath | None = None, allow_pickle: bool = True
    ) -> None:
        list_handles.sweep()
        frames = _frames_of(items, allow_pickle)

        def fill(writer: Writer) -> None:
            for frame in frames:
                writer.add(frame)

        if path is None:
            memory = list_memory.new_memory(fill)
        else:
            _write_file(path, fill)
            memory = list_memory.open_file(os.fsdecode(path))
        self._become(memory, range(len(memory.mapped)), allow_pickle)

    def _become(self, memory: ListMemory | None, places: range, allow_pickle: bool) -> None:
        self._memory, self._places, self._allow_pickle = memory, places, bool(allow_pickle)

    @classmethod
    def _of(cls, memory: ListMemory | None, places: range, allow_pickle: bool) -> SharedList[Any]:
        shared = cls.__new__(cls)
        shared._become(memory, places, allow_pickle)
        return shared

    @classmethod
    def load(cls, path: whole_files.AnyPath, *, allow_pickle: bool = False) -> SharedList[Any]:
        """Returns the list in a file that `dump` wrote, or that was built with `path`.

        The file is mapped, and only the items that you use are read. It may be larger than the memory. While the list
        is in use, you may replace the file by another one, but must not shorten it: a process that then accesses the
        missing part is killed by SIGBUS. Other changes of the file change the items.

        Args:
            path: File to map.
            allow_pickle: True if pickles in the items may be loaded. Such a file can run any code.

        Raises:
            CorruptMessage: The file is truncated or is not a list.
            IncompatibleMessage: The file has a version that this library does not read.
            OSError: The file cannot be read.
        """
        memory = list_memory.open_file(os.fsdecode(path))
        return cls._of(memory, range(len(memory.mapped)), allow_pickle)

    def dump(self, path: whole_files.AnyPath) -> None:
        """Writes the items to a file, for `load`.

        The file appears complete or not at all, and replaces an old one as `shmtree.dump` does.

        Args:
            path: File to write.

        Raises:
            OSError: The file cannot be written.
        """
        memory = self._open()
        if self._places == range(len(memory.mapped)):
            with whole_files.replacing(path) as file:
                list_memory.copy_whole(memory, file.fileno())
            return

        def fill(writer: Writer) -> None:
            for frame in self._frames():
                writer.add(frame)

        _write_file(path, fill)

    def _open(self) -> ListMemory:
        if self._memory is None:
            raise FileNotFoundError(
                "the shared list was freed before it was received; keep it in the sender until then"
            )
        return self._memory

    def _frames(self) -> Iterator[memoryview]:
        return map(self._open().mapped.frame, self._places)

    @property
    def nbytes(self) -> int:
        """Number of bytes of shared memory, or of the file. A slice has those of the whole list."""
        return self._open().mapped.nbytes

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> SharedList[T]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> T | SharedList[T]:
        if isinstance(index, slice):
            return type(self)._of(self._memory, self._places[index], self._allow_pickle)
        try:
            place = self._places[index]
        except IndexError:
            where = "" if self._memory is None else self._memory.mapped.where
            text = f"index {operator.index(index)} is out of range for a SharedList of {len(self)} items{where}"
            raise IndexError(text) from None
        item: T = self._open().mapped.item(place, self._allow_pickle)
        return item

    def __getitems__(self, indices: Iterable[SupportsIndex]) -> list[T]:
        """Returns the items of these indices. Torch's DataLoader calls it once per batch."""
        return [self[index] for index in indices]

    def __iter__(self) -> Iterator[T]:
        item, allow_pickle = self._open().mapped.item, self._allow_pickle
        return (item(place, allow_pickle) for place in self._places)

    def __copy__(self) -> SharedList[T]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedList[T]:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        reference, inheritance = list_handles.reduce_list(self._open())
        return _open_list, (type(self), reference, inheritance, self._places, self._allow_pickle)

    def __repr__(self) -> str:
        if self._memory is None:
            return "<SharedList, gone>"
        return f"<SharedList of {len(self)} items in {self.nbytes} bytes>"


def _frames_of(items: Iterable[Any], allow_pickle: bool) -> Iterable[Any]:
    if isinstance(items, SharedList) and items._allow_pickle == bool(allow_pickle):  # else pickles would become trusted
        return items._frames()
    return (_pack(number, item, allow_pickle) for number, item in enumerate(items))


def _pack(number: int, item: Any, allow_pickle: bool) -> _core.Frame:
    try:
        return _core.pack(item, allow_pickle, portable=True)  # references to objects of a process would not stay valid
    except Exception as error:
        if isinstance(error, Error):
            error.args = (f"item {number}: {error}", *error.args[1:])
        elif len(error.args) == 1 and isinstance(error.args[0], str):
            error.args = (f"item {number}: {error.args[0]}",)
        elif hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"item {number} of the SharedList")
        raise


def _write_file(path: whole_files.AnyPath, fill: Any) -> None:
    with whole_files.replacing(path) as file:
        writer = Writer(file.fileno())
        fill(writer)
        writer.finish()


def _open_list(
    cls: type[SharedList[Any]], reference: bytes, inheritance: Any, places: range, allow_pickle: bool
) -> SharedList[Any]:
    return cls._of(list_handles.open_reference(reference, inheritance), places, allow_pickle)
