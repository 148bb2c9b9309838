"""Reducers for tensors inside a message that goes through pickle."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from .._codec.reducers import beside, reduce_device_array
from .tensors import tensor_parts


def reducers(home: bytes | None, portable: bool) -> dict[type, Callable[[Any], Any]]:
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "Tensor"):
        return {}
    reduce = functools.partial(_reduce_tensor, home=home, portable=portable)
    return {torch.Tensor: reduce, torch.nn.Parameter: reduce}


def _reduce_tensor(tensor: Any, home: bytes | None, portable: bool) -> Any:
    if tensor_parts(tensor) is None:
        return reduce_device_array(tensor, home, portable)
    return beside(tensor)
