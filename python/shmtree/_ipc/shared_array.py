"""Arrays that several processes read and write at the same time."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from .. import _core
from .._codec import tensors
from .._process import handles, names
from .._process.names import ARRAY, open_name
from .._public import made_by
from . import arrays


@made_by("Arena.array()", "SharedArray.open()")
class SharedArray:
    """One array that several processes read and write in place; made by `Arena.array`.

    It pickles as a reference. Its memory lives as long as any process has it or a view of it. An array in transit also
    keeps it, as long as its sender lives. If the memory is freed before a message with the array is received, the array
    still arrives, and each use of it raises FileNotFoundError.

    `array` and `tensor` are the memory itself, without any locking. `write` and `read` prevent readers from seeing a
    half-written array: they allow one writer at a time, and a copy is consistent. A program may mix both, but `read` is
    consistent only with data that was written inside `write`. A change outside of `write` that a kill ends half-way
    leaves no mark.
    """

    _home: _core.Arena
    _name: _core.Name | None
    _memory: np.ndarray[Any, Any] | None  # None: it was freed before this process got it
    _torch_dtype: str | None
    _versions: _core.Versions | None

    @classmethod
    def _of(cls, core: _core.Arena, array: Any, name: _core.Name | None, torch_dtype: str | None = None) -> SharedArray:
        self = cls.__new__(cls)
        self._home = core
        self._name = name
        self._memory = array
        self._torch_dtype = torch_dtype
        self._versions = None
        return self

    @classmethod
    def _gone(cls) -> SharedArray:
        """Returns an array that represents memory which no process has any more."""
        self = cls.__new__(cls)
        self._name = self._memory = self._torch_dtype = self._versions = None
        return self

    @classmethod
    def _make(cls, core: _core.Arena, shape: Any, dtype: Any, name: str | None, exist_ok: bool = False) -> SharedArray:
        def known(name: str) -> SharedArray:
            found = cls.open(name)
            names.check_known(name, found._home, core, lambda: found._check_options(shape, dtype))
            return found

        return names.open_or_make(name, exist_ok, known, lambda: cls._new(core, shape, dtype, name))

    def _check_options(self, shape: Any, dtype: Any) -> None:
        plain, torch_dtype = arrays.plain_dtype(dtype)
        asked = np.broadcast_to(np.empty((), plain), shape)
        is_dtype = f"torch.{self._torch_dtype}" if self._torch_dtype is not None else self._array.dtype
        asked_dtype = f"torch.{torch_dtype}" if torch_dtype is not None else asked.dtype
        both = (("shape", self._array.shape, asked.shape), ("dtype", is_dtype, asked_dtype))
        others = ", ".join(f"{option} {has}, not {wanted}" for option, has, wanted in both if has != wanted)
        if others:
            raise ValueError(f"it belongs to an array with other options: {others}")

    @classmethod
    def _new(cls, core: _core.Arena, shape: Any, dtype: Any, name: str | None) -> SharedArray:
        plain, torch_dtype = arrays.plain_dtype(dtype)
        memory = core.new_shared_array(shape, plain)
        if memory.nbytes == 0:
            raise ValueError(f"shape is {shape}: an array of 0 bytes cannot be shared")
        known = None
        if name is not None:
            note: dict[str, Any] = {"shape": memory.shape, "dtype": np.lib.format.dtype_to_descr(memory.dtype)}
            if torch_dtype is not None:
                note["torch"] = torch_dtype
            known = names.create_name(name, ARRAY, core, _core.block_of(memory), json.dumps(note))
        return cls._of(core, memory, known, torch_dtype)

    @property
    def _array(self) -> np.ndarray[Any, Any]:
        if self._memory is None:
            raise FileNotFoundError(
                "the shared array was freed before it was received; keep it in the sender until then"
            )
        return self._memory

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The memory as a writable ndarray; each access returns the same object.

        For a torch dtype that NumPy lacks (bfloat16, the float8 types), it has the bits as unsigned integers.
        """
        return self._array

    @array.setter
    def array(self, array: np.ndarray[Any, Any]) -> None:
        # ``shared.array += 1`` ends by assigning the same array.
        if array is not self._array:
            raise AttributeError("array cannot be replaced; write into it with array[...] = values")

    @property
    def tensor(self) -> Any:
        """The memory as a torch tensor.

        Raises:
            TypeError: Torch lacks the dtype.
        """
        return tensors.library.as_tensor(self._array, self._torch_dtype)

    @property
    def _value(self) -> Any:
        """The array, or the tensor if it was made with a torch dtype."""
        return self._array if self._torch_dtype is None else self.tensor

    def write(self, timeout: float | None = None, *, whole: bool = False) -> _core.Write[Any]:
        """Returns a context manager in which this thread alone writes: `array`, or `tensor` for a torch dtype.

        The end of the ``with`` block makes the next version. Meanwhile, other writers of any process wait. A thread
        must not nest it.

        The array is `torn` if an exception leaves the block, the object is dropped, or the process dies in the block.
        Some of its elements may be old then, and others new. `read` and `write` then raise PeerDied until a write with
        ``whole=True`` has ended, so that ``array += part`` never continues from such a mixture. A child that is forked
        in the block does not take over the write.

        Args:
            timeout: Seconds to wait for the current writer; None waits indefinitely.
            whole: True if the block writes every element without reading the array. Such a write also begins if the
                array is `torn`, and its end makes the array complete again.

        Raises:
            TimeoutError: Another write was still in progress; the error has the writer's pid.
            shmtree.PeerDied: On entering the block: the array is `torn`, and `whole` is False.

        Example::

            with shared.write(whole=True) as array:
                array[...] = values
            with shared.write() as array:
                array += part
        """
        return _Write(self._counted, self._value, timeout, whole)

    def read(self, out: Any = None, timeout: float | None = None) -> Any:
        """Returns a consistent copy: no write was in progress while it was made.

        Waits while a write is in progress, and copies again if one began meanwhile. Writers let a reader that was
        overtaken repeatedly go first.

        Args:
            out: Array or tensor to copy into; None makes a new one.
            timeout: Seconds to wait at most; None waits indefinitely.

        Raises:
            TimeoutError: No consistent copy was possible in time; the error has the writer's pid, and says if it is
                stopped.
            shmtree.PeerDied: The array is `torn`; raised at once.
        """
        if out is None:
            out = np.empty_like(self._array)
            self._counted.read(out.reshape(-1).view(np.uint8), timeout)
            return out if self._torch_dtype is None else tensors.library.as_tensor(out, self._torch_dtype)
        place = _plain_memory(out)
        like = place is not None and place.dtype == self._array.dtype and place.shape == self._array.shape
        if place is not None and like and place.flags.c_contiguous:
            self._counted.read(place.reshape(-1).view(np.uint8), timeout)
        else:
            out[...] = self.read(timeout=timeout)
        return out

    def wait(self, newer_than: int, timeout: float | None = None) -> int:
        """Blocks until `version` is more than `newer_than`.

        Args:
            newer_than: Number of a version that you know.
            timeout: Seconds to wait; None waits indefinitely.

        Returns:
            The number of the version.

        Raises:
            TimeoutError: There was no newer version within `timeout` seconds.
        """
        return self._counted.wait(newer_than, timeout)

    @property
    def version(self) -> int:
        """Number of writes that have ended; 0 if there was none."""
        return self._counted.version

    @property
    def torn(self) -> bool:
        """True if a write was abandoned, and no write of the whole array has ended since.

        Its process died in it, or an exception left it.
        """
        return self._counted.is_torn

    @property
    def _counted(self) -> _core.Versions:
        if self._versions is None:
            self._versions = _core.Versions(self._array)
        return self._versions

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        wanted = self._array.dtype if dtype is None else np.dtype(dtype)
        if copy is False and wanted != self._array.dtype:
            raise ValueError(
                f"a shared array of {self._array.dtype} cannot be converted to {wanted} without a copy; pass copy=None"
            )
        return self._array.astype(wanted, copy=bool(copy))

    @classmethod
    def open(cls, name: str, timeout: float | None = 0.0) -> SharedArray:
        """Opens the array of this name.

        Args:
            name: Name of the array.
            timeout: Seconds to wait for the name; None waits indefinitely.

        Raises:
            FileNotFoundError: There is no such name and `timeout` is 0.
            TimeoutError: There is still no such name after `timeout` seconds.
        """
        known = open_name(name, ARRAY, timeout)
        note = json.loads(known.note)
        array = known.arena.open_array(known.block, tuple(note["shape"]), _dtype_of(note["dtype"]), "C")
        return cls._of(known.arena, array, known, note.get("torch"))

    def __reduce__(self) -> tuple[Any, ...]:
        handle = handles.reduce_memory(self._home, _core.block_of(self.array), self._name)
        kind = () if self._torch_dtype is None else (self._torch_dtype,)
        return _open_array, (type(self), *handle, self.array.shape, self.array.dtype, *kind)

    def __repr__(self) -> str:
        if self._memory is None:
            return "<SharedArray, gone>"
        dtype = self._array.dtype if self._torch_dtype is None else f"torch.{self._torch_dtype}"
        return f"<SharedArray of {dtype}, shape {self.array.shape}>"


class _Write(_core.Write):
    """Ends a write that was begun and never ended, as an exception in its block would.

    Otherwise the array would stay locked.
    """

    __slots__ = ("_pid",)

    def __init__(self, versions: _core.Versions, value: Any, timeout: float | None, whole: bool) -> None:
        super().__init__(versions, value, timeout, whole)
        self._pid = os.getpid()

    def __del__(self) -> None:
        # The parent's write is not this child's; the child may be in a write of its own.
        try:
            if self._pid == os.getpid():
                self.__exit__(RuntimeError)
        except Exception:  # it was not begun, or the interpreter is exiting, which leaves the array torn
            pass


def _plain_memory(out: Any) -> np.ndarray[Any, Any] | None:
    """Returns the memory of an array, or of a tensor as an array of its bits; None for anything else."""
    if isinstance(out, np.ndarray):
        return out
    place: np.ndarray[Any, Any] | None = tensors.library.as_array(out) if tensors.library.is_tensor(out) else None
    return place


def _dtype_of(text: Any) -> np.dtype[Any]:
    def rebuilt(part: Any) -> Any:
        if isinstance(part, list):
            return [tuple(tuple(item) if i == 2 else rebuilt(item) for i, item in enumerate(field)) for field in part]
        return part

    dtype: np.dtype[Any] = np.dtype(rebuilt(text))
    return dtype


def _open_array(
    cls: type[SharedArray], handle: bytes, inheritance: Any, shape: Any, dtype: Any, torch_dtype: str | None = None
) -> SharedArray:
    def opens(arena: _core.Arena, block: int, name: _core.Name | None) -> SharedArray:
        return cls._of(arena, arena.open_array(block, shape, dtype, "C"), name, torch_dtype)

    return handles.open_memory(handle, inheritance, opens)
