"""Arrays that several processes read and write at the same time."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from . import _core, _handles, _process
from ._channel import ARRAY, open_known


class SharedArray:
    """One array in several processes: what one writes the others see. Made by `Arena.array`.

    It pickles as a reference, and its memory lives as long as any process has it, or a view of it. A process that is
    sent it through a pipe or queue has to get it before the last one that has it lets go. There is no locking.
    """

    _home: _core.Arena
    _name: _core.Name | None
    _array: np.ndarray[Any, Any]

    def __init__(self) -> None:
        raise TypeError("shared arrays are made by Arena.array()")

    @classmethod
    def _of(cls, core: _core.Arena, array: Any, name: _core.Name | None) -> SharedArray:
        self = cls.__new__(cls)
        self._home = core
        self._name = name
        self._array = array
        return self

    @classmethod
    def _make(cls, core: _core.Arena, shape: Any, dtype: Any, name: str | None) -> SharedArray:
        memory = core.new_array(shape, dtype, "C", True)
        if memory.nbytes == 0:
            raise ValueError(f"an array of shape {shape} has no memory to share")
        memory = core.open_array(_core.block_of(memory), memory.shape, memory.dtype, "C")
        known = None
        if name is not None:
            note = json.dumps({"shape": memory.shape, "dtype": np.lib.format.dtype_to_descr(memory.dtype)})
            known = _process.create_name(name, ARRAY, core, _core.block_of(memory), note)
        return cls._of(core, memory, known)

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The memory as a writable ndarray, the same one each time."""
        return self._array

    @array.setter
    def array(self, array: np.ndarray[Any, Any]) -> None:
        # ``shared.array += 1`` ends by assigning what is there already.
        if array is not self._array:
            raise AttributeError("the memory of a shared array stays; write into it with array[...] = values")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        wanted = self._array.dtype if dtype is None else np.dtype(dtype)
        if copy is False and wanted != self._array.dtype:
            raise ValueError(f"a shared array of {self._array.dtype} cannot be had as {wanted} without a copy")
        return self._array.astype(wanted, copy=bool(copy))

    @classmethod
    def open(cls, name: str) -> SharedArray:
        """The array of that name; FileNotFoundError when there is none."""
        known = open_known(name, ARRAY)
        note = json.loads(known.note)
        dtype = _dtype_of(note["dtype"])
        return cls._of(known.arena, known.arena.open_array(known.block, tuple(note["shape"]), dtype, "C"), known)

    def __reduce__(self) -> tuple[Any, ...]:
        handle = _handles.reduce_memory(self._home, _core.block_of(self.array), self._name)
        return _open_array, (type(self), *handle, self.array.shape, self.array.dtype)

    def __repr__(self) -> str:
        return f"<SharedArray of {self.array.dtype}, shape {self.array.shape}>"


def _dtype_of(text: Any) -> np.dtype[Any]:
    def rebuilt(part: Any) -> Any:
        if isinstance(part, list):
            return [tuple(tuple(item) if i == 2 else rebuilt(item) for i, item in enumerate(field)) for field in part]
        return part

    dtype: np.dtype[Any] = np.dtype(rebuilt(text))
    return dtype


def _open_array(cls: type[SharedArray], handle: bytes, inheritance: Any, shape: Any, dtype: Any) -> SharedArray:
    arena, block, name = _handles.open_memory(handle, inheritance)
    return cls._of(arena, arena.open_array(block, shape, dtype, "C"), name)
