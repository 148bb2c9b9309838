"""Interface between the core and a tensor library. `shmtree._torch` implements it for torch. The core itself depends on
no library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from .. import _core


class TensorLibrary(Protocol):
    """Interface of a tensor library.

    No function imports the library only to find that a value does not belong to it.
    """

    # Called by the encoder and the decoder.

    def tensor_parts(self, tensor: Any) -> tuple[Any, ...] | None:
        """Returns the parts of a dense tensor, or None if only pickle, or another leaf, can send it."""

    def tensor_build(
        self,
        memory: Any,
        number: int,
        flags: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
        first: int,
        may_import: bool = True,
    ) -> Any:
        """Returns a tensor on memory of a message."""

    def device_leaf(self, thing: Any, home: bytes | None, portable: bool) -> Any:
        """Returns the object to send in place of a sparse tensor, or of device memory."""

    def has_torch(self, name: str, may_import: bool) -> bool:
        """Returns True if torch has a dtype of that name."""

    # Called by the rest of the package.

    def is_on_device(self, thing: Any) -> bool:
        """Returns True for a tensor in device memory."""

    def reducers(self, home: bytes | None, portable: bool) -> dict[type, Callable[[Any], Any]]:
        """Returns the reducers of tensor classes for a message that goes through pickle."""

    def is_tensor(self, thing: Any) -> bool:
        """Returns True for a tensor."""

    def is_dtype(self, dtype: Any) -> bool:
        """Returns True for a dtype of the library."""

    def plain_dtype(self, dtype: Any) -> tuple[Any, str]:
        """Returns the NumPy dtype for a dtype of the library, and the library's name for it."""

    def new_tensor(self, arena: _core.Arena, shape: Any, dtype: Any, order: str, zeroed: bool, gift: bool) -> Any:
        """Returns a new tensor in an arena."""

    def as_tensor(self, array: Any, dtype: str | None) -> Any:
        """Returns a tensor on the memory of an array; `dtype` is the name of a dtype that NumPy lacks."""

    def as_array(self, tensor: Any) -> Any:
        """Returns the memory of a tensor as an array of its bits, or None if it is not contiguous host memory."""

    def check_device(self, device: Any) -> None:
        """Raises DeviceError if there is no such device."""

    def receive_to(self, arena: _core.Arena, item: Any, device: Any) -> Any:
        """Returns an item received in an arena, with its tensors and numeric arrays copied to a device."""


#: Set when the package is imported.
library: TensorLibrary
