"""Values that are sent in place of sparse tensors, and of tensors and arrays in device memory.

The modules for CUDA are imported when the first such value is sent or received.
"""

from __future__ import annotations

import sys
from typing import Any

from .. import _core
from .._codec import checks, optional, reducers
from .._codec import portable as _portable
from .._codec.device_leaf import DeviceLeaf, device_flat
from . import sparse


def is_on_device(obj: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.Tensor) and bool(obj.device.type not in ("cpu", "meta"))


def receive_device(flat: Any, may_import: bool) -> Any:
    """Returns the tensor or array of a `DeviceLeaf`. Imports torch if it is needed and `may_import` is true."""
    about, sender, location = checks.device(flat)
    if about[0] == "torch":
        optional.imported_torch(may_import)
    from ..cuda import _received

    return _received.receive(about, sender, location)


def device_leaf(obj: Any, home: bytes | None, portable: bool) -> Any:
    """Returns the object to send in place of a sparse tensor, or of a tensor or array on a device.

    `home` is the uuid of the channel's arena, or None without a channel. Returns None if only pickle can send `obj`,
    such as device memory without a channel, since there is no arena to track its users. Raises NotPortable for device
    memory if `portable` is true.
    """
    if portable and _portable.is_on_device(obj):
        _portable.refuse(obj)
    torch = sys.modules.get("torch")
    on_host = torch is not None and isinstance(obj, torch.Tensor) and not obj.is_cuda
    if on_host and (leaf := sparse.leaf_of(obj)) is not None:
        return leaf
    arena = None if home is None or on_host else _core.find_arena(home)
    if arena is None:
        return None
    from ..cuda import _sent

    return _sent.leaf_of(obj, arena)


_core._register(DeviceLeaf, device_flat, receive_device, True)
reducers.add_registered(DeviceLeaf, device_flat, f"{DeviceLeaf.__module__}:{DeviceLeaf.__qualname__}")
