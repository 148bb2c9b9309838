"""Cap'n Proto messages as values. This module imports no library of Cap'n Proto."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from .. import _core

_WORD = 8
_MAX_SEGMENTS = 512
_MAX_WORDS = 8 << 20  # Cap'n Proto's own traversal limit for one message


class CapnpMessage:
    """A message of Cap'n Proto: the id of its root's type, and its segments.

    It is sent like any other value, at the root of a message or inside of it, and C++ reads it with
    `item.capnp<T>()`. A received one refers to shared memory, as arrays do: `segments` are read-only views, and
    `reader()` reads them in place. Other processes may still change these bytes, and readers of Cap'n Proto are not
    made for that: pass ``copy=True`` to `get`, or to `unpack`, for messages of processes that you do not trust.

    Args:
        schema_id: The 64-bit id of the root's type, such as ``Pose.schema.node.id`` of pycapnp.
        segments: 1 to 512 buffers of bytes, each a multiple of 8 bytes. shmtree keeps references: do not change
            them until `put` returns. It copies a segment that is not contiguous, or not aligned to 8 bytes, and all of
            them if some overlap.

    Raises:
        ValueError: The number or size of segments is invalid, or `schema_id` is not in 0 ... 2**64 - 1.
        TypeError: A segment is not a buffer, or `schema_id` is not an int.

    Example:
        >>> sender.put({"seq": 7, "pose": shmtree.CapnpMessage.from_builder(pose)})
        >>> receiver.get()["pose"].reader(Pose).x
    """

    __slots__ = ("_schema_id", "_segments")

    _schema_id: int
    _segments: tuple[np.ndarray[Any, Any], ...]

    def __init__(self, schema_id: int, segments: Iterable[Any]) -> None:
        try:
            schema_id = operator.index(schema_id)
        except TypeError:
            raise TypeError(f"schema_id is {schema_id!r}; it must be an int") from None
        if not 0 <= schema_id < 1 << 64:
            raise ValueError(f"schema_id is {schema_id}; it must be in 0 ... 2**64 - 1")
        if isinstance(segments, (bytes, bytearray, memoryview)):
            raise TypeError("segments is a single buffer; it must be a sequence of buffers, such as [buffer]")
        self._schema_id = schema_id
        self._segments = _apart(tuple(map(_words, segments)))
        if not 1 <= len(self._segments) <= _MAX_SEGMENTS:
            raise ValueError(f"a Cap'n Proto message has 1 to {_MAX_SEGMENTS} segments, not {len(self._segments)}")

    @classmethod
    def from_builder(cls, builder: Any) -> CapnpMessage:
        """Copies a message of pycapnp into a CapnpMessage: ``CapnpMessage.from_builder(Pose.new_message(x=1))``.

        Args:
            builder: The root builder of a message. To send what a reader has, pass ``reader.as_builder()``.

        Raises:
            AttributeError: It is a reader.
            capnp.KjException: It is a builder inside a message, not its root.
        """
        return cls(builder.schema.node.id, builder.to_segments())

    @property
    def schema_id(self) -> int:
        """The 64-bit id of the root's type."""
        return self._schema_id

    @property
    def segments(self) -> tuple[np.ndarray[Any, Any], ...]:
        """The segments, as one-dimensional arrays of uint8. ``Pose.from_segments(message.segments)`` copies nothing."""
        return self._segments

    @property
    def nbytes(self) -> int:
        """Number of bytes in all segments."""
        return sum(segment.nbytes for segment in self._segments)

    def reader(self, cls: Any, **options: Any) -> Any:
        """Returns a reader of pycapnp for the root, which reads the segments in place and keeps them.

        Args:
            cls: The type, as ``capnp.load("pose.capnp").Pose``.
            **options: Passed to ``cls.from_segments``. `traversal_limit_in_words` is 8 Mi words, or eight times the
                message if that is more, unless you pass another.

        Raises:
            TypeError: The message is of another type.
        """
        wanted = cls.schema.node.id
        if wanted != self._schema_id:
            raise TypeError(
                f"expected a Cap'n Proto message of type @{wanted:#018x}, found type @{self._schema_id:#018x}"
            )
        options.setdefault("traversal_limit_in_words", max(_MAX_WORDS, self.nbytes))
        return cls.from_segments(self._segments, **options)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CapnpMessage):
            return NotImplemented
        return (
            self._schema_id == other._schema_id
            and len(self._segments) == len(other._segments)
            and all(map(np.array_equal, self._segments, other._segments))
        )

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return CapnpMessage, (self._schema_id, self._segments)

    def __repr__(self) -> str:
        count = len(self._segments)
        return (
            f"<CapnpMessage @{self._schema_id:#018x}, {count} segment{'s' if count != 1 else ''}, {self.nbytes} bytes>"
        )


def _words(segment: Any) -> np.ndarray[Any, Any]:
    with memoryview(segment) as view:
        size = view.nbytes
        if size % _WORD:
            raise ValueError(f"a segment of a Cap'n Proto message has {size} bytes, which is not a multiple of {_WORD}")
        if size == 0:
            array = np.empty(0, np.uint8)
        elif view.c_contiguous:
            array = np.frombuffer(segment, np.uint8)
        else:
            array = np.frombuffer(view.tobytes(), np.uint8)
    if array.ctypes.data % _WORD:
        array = array.copy()
    array.flags.writeable = False
    return array


def _apart(segments: tuple[np.ndarray[Any, Any], ...]) -> tuple[np.ndarray[Any, Any], ...]:
    """Returns the segments, or copies of them if some overlap, since receivers refuse overlapping segments."""
    places = sorted((each.ctypes.data, each.nbytes) for each in segments if each.nbytes) if len(segments) > 1 else []
    if all(begin + nbytes <= after for (begin, nbytes), (after, _) in itertools.pairwise(places)):
        return segments
    copies = tuple(each.copy() for each in segments)
    for copy in copies:
        copy.flags.writeable = False
    return copies


# Expressions that convert an object of pycapnp, by the name of its class in the module `capnp.lib.capnp`.
_FROM_PYCAPNP = {
    "_DynamicStructBuilder": "shmtree.CapnpMessage.from_builder(builder)",
    "_DynamicStructReader": "shmtree.CapnpMessage.from_builder(reader.as_builder())",
}


def remedy_for(refused: object) -> str:
    """Returns the end of a refusal that says how to send `refused` without pickle; "" if no way is known."""
    cls = type(refused)
    name = _FROM_PYCAPNP.get(cls.__name__) if cls.__module__ == "capnp.lib.capnp" else None
    return "" if name is None else f". Send {name} instead: it needs no pickle"


def _parts(message: CapnpMessage) -> tuple[int, tuple[np.ndarray[Any, Any], ...]]:
    """Returns the id as a signed 64-bit int with the same bits, and the segments."""
    return message._schema_id - (message._schema_id >> 63 << 64), message._segments


def _build(schema_id: int, segments: tuple[np.ndarray[Any, Any], ...], _trusted: bool) -> CapnpMessage:
    """Builds a CapnpMessage from segments that the core has validated."""
    message = CapnpMessage.__new__(CapnpMessage)
    message._schema_id = schema_id & (1 << 64) - 1
    message._segments = segments
    return message


_core._add_kind("capnp", CapnpMessage, _parts, _build)
