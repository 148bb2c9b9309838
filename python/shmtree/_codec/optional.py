"""Optional packages that a message may need. The core imports them only here, and only for a message that needs one.

A receiver that refuses pickles imports none of these packages.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from .. import _core
from ..errors import CorruptMessage, IncompatibleMessage, PickleRefused


def of_other_package(name: str, may_import: bool) -> np.dtype[Any] | None:
    """Returns the dtype of ml_dtypes with that name, or None. Imports ml_dtypes if `may_import` is true."""
    ml_dtypes = _package("ml_dtypes", may_import)
    scalar = getattr(ml_dtypes, name, None)
    return None if scalar is None else np.dtype(scalar)


def has_torch(name: str, may_import: bool) -> bool:
    """Returns True if torch has a dtype of that name. Imports torch if `may_import` is true."""
    torch = _package("torch", may_import)
    return torch is not None and isinstance(getattr(torch, name, None), torch.dtype)


def _package(name: str, may_import: bool) -> Any:
    """Returns an optional package, or None if it is not installed. Waits if another thread is importing it."""
    if not may_import:
        return _core._imported_module(name)
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def imported_torch(may_import: bool) -> Any:
    """Returns torch.

    Raises PickleRefused if this process has not imported it and `may_import` is false, and IncompatibleMessage if torch
    is not installed.
    """
    if may_import:
        try:
            return importlib.import_module("torch")  # waits if another thread is importing it
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise IncompatibleMessage(
                "The message holds a tensor of torch, which is not installed here: install torch, or send "
                "tensor.numpy() instead"
            ) from error
    torch = _core._imported_module("torch")
    if torch is None:
        raise PickleRefused(
            "The message holds a tensor of torch, which is not imported here, and allow_pickle is False; import torch "
            "before you receive tensors"
        )
    return torch


def imported_jax() -> Any:
    """Returns jax, for a pickle with one of its arrays."""
    return importlib.import_module("jax")


def torch_dtype(torch: Any, name: str) -> Any:
    """Returns the dtype of torch with that name, without loading a module.

    Raises IncompatibleMessage if this version of torch lacks a dtype that messages can have, and CorruptMessage for any
    other name.
    """
    dtype = vars(torch).get(name)
    if isinstance(dtype, torch.dtype):
        return dtype
    if name in _core.DTYPES[1:]:
        version = vars(torch).get("__version__")
        raise IncompatibleMessage(
            f"The message has a tensor of {name}, which torch {version} does not have; update torch here"
        )
    raise CorruptMessage(f"The frame is corrupt: torch has no dtype {name[:100]!r}")
