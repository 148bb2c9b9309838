"""Torch's implementation of `shmtree._codec.tensors`. Functions that need torch import it when they are called."""

from __future__ import annotations

from typing import Any

from .. import _core
from .._codec.optional import has_torch
from .arrays import as_array, as_tensor, is_dtype, is_tensor, new_tensor, plain_dtype
from .leaves import device_leaf, is_on_device
from .reducers import reducers
from .tensors import tensor_build, tensor_parts

__all__ = [
    "as_array",
    "as_tensor",
    "check_device",
    "device_leaf",
    "has_torch",
    "is_dtype",
    "is_on_device",
    "is_tensor",
    "new_tensor",
    "plain_dtype",
    "receive_to",
    "reducers",
    "tensor_build",
    "tensor_parts",
]


def check_device(device: Any) -> None:
    from . import devices

    devices.check_device(device)


def receive_to(arena: _core.Arena, item: Any, device: Any) -> Any:
    from . import devices

    return devices.receive_to(arena, item, device)
