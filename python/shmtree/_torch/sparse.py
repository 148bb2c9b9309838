"""Sparse tensors of torch. A node has the layout, flags, shape, and the dense tensors of the indices and values."""

from __future__ import annotations

import sys
from typing import Any

from .. import _core
from .._codec import checks, optional
from ..errors import CorruptMessage

#: The layouts by number, with the names of the methods that return the dense tensors.
_LAYOUTS = (
    ("sparse_coo", ("_indices", "_values")),
    ("sparse_csr", ("crow_indices", "col_indices", "values")),
    ("sparse_csc", ("ccol_indices", "row_indices", "values")),
    ("sparse_bsr", ("crow_indices", "col_indices", "values")),
    ("sparse_bsc", ("ccol_indices", "row_indices", "values")),
)
_IS_COALESCED = 1
_REQUIRES_GRAD = 2


class SparseTensor:
    """Wraps a sparse tensor for the core, because sparse and dense tensors have the same class."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


def leaf_of(tensor: Any) -> SparseTensor | None:
    """Wraps a sparse tensor.

    Returns None for a dense tensor, and for a tensor that only pickle can send (device, hooks, attributes).
    """
    name = str(tensor.layout).removeprefix("torch.")
    is_plain = type(tensor) is sys.modules["torch"].Tensor and tensor.device.type == "cpu"
    if not is_plain or all(name != layout for layout, _ in _LAYOUTS) or tensor.__dict__ or tensor._backward_hooks:
        return None
    return SparseTensor(tensor)


def _take_apart(leaf: SparseTensor) -> tuple[int, int, tuple[int, ...], tuple[Any, ...]]:
    tensor = leaf.tensor.detach()
    name = str(tensor.layout).removeprefix("torch.")
    number = [layout for layout, _ in _LAYOUTS].index(name)
    is_coalesced = number == 0 and tensor.is_coalesced()
    flags = (_IS_COALESCED if is_coalesced else 0) | (_REQUIRES_GRAD if leaf.tensor.requires_grad else 0)
    return number, flags, tuple(tensor.shape), tuple(getattr(tensor, part)() for part in _LAYOUTS[number][1])


def _is_dense(torch: Any, part: Any) -> bool:
    return type(part) is torch.Tensor and part.layout is torch.strided and not part.is_cuda


def _copied_bytes(_number: int, _flags: int, _shape: Any, parts: tuple[Any, ...]) -> int:
    """Returns the bytes that `_build` copies if it does not trust the sender. It refuses parts that are not dense."""
    torch = optional.imported_torch(False)
    return sum(part.numel() * part.element_size() for part in parts[:-1] if _is_dense(torch, part))


def _build(number: int, flags: int, shape: Any, parts: tuple[Any, ...], trusted: bool) -> Any:
    """Returns the tensor on the memory of its parts.

    Torch does not check the indices of a sparse tensor when it uses them. So if the sender is not `trusted`, this
    checks them, in a copy: the sender can still write to the original memory.
    """
    torch = optional.imported_torch(trusted)
    name, methods = _LAYOUTS[number]
    are_dense = all(_is_dense(torch, part) for part in parts)
    if len(parts) != len(methods) or not are_dense or type(shape) is not tuple:
        raise CorruptMessage("The frame is corrupt: a part of a sparse tensor is not a dense tensor")
    checks.check_shape(shape, None, checks.SPARSE_BOUND)
    *indices, values = (part.detach() for part in parts)
    if not trusted:
        indices = [part.clone() for part in indices]
        # `check_invariants=True` would set a flag of the process, which another thread may clear before the check.
        if number == 0:
            torch._validate_sparse_coo_tensor_args(*indices, values, shape, bool(flags & _IS_COALESCED))
        else:
            torch._validate_sparse_compressed_tensor_args(*indices, values, shape, getattr(torch, name))
    if number == 0:
        is_coalesced = bool(flags & _IS_COALESCED)
        tensor = torch.sparse_coo_tensor(*indices, values, shape, is_coalesced=is_coalesced, check_invariants=False)
    else:
        layout = getattr(torch, name)
        tensor = torch.sparse_compressed_tensor(*indices, values, shape, layout=layout, check_invariants=False)
    return tensor.requires_grad_() if flags & _REQUIRES_GRAD else tensor


_core._add_kind("sparse_tensor", SparseTensor, _take_apart, _build, _copied_bytes)
