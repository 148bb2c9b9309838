"""The weights of a module as versions of a Latest, and back into a module."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch

from .._ipc import arrays
from .._ipc.latest import Latest


def publish(latest: Latest, module: Any, timeout: float | None = None) -> int:
    """Publishes the state dict of a module, or a dict like one, as arrays; returns the version.

    What readers get is a dict of NumPy arrays, read-only views of the one copy, for `load_into`. A dtype that NumPy has
    not (bfloat16, the float8s) is an unsigned integer of its size there, with the same bits. Tensors of devices are
    copied straight into shared memory. Entries that are no tensors are published as they are.
    """
    state = module.state_dict() if isinstance(module, torch.nn.Module) else module
    values = {name: _array_of(latest, each) if isinstance(each, torch.Tensor) else each for name, each in state.items()}
    return latest.publish(values, timeout)


def load_into(module: Any, value: Any) -> None:
    """Copies a version that `publish` made, or any state dict, into a module of the same shapes, in place.

    Nothing is allocated: parameters and buffers keep their memory, on whatever device, and optimizers what they know of
    them. `module` may be a dict of tensors as well. Parameters that are views of one another are written once each.
    KeyError for names that are missing on either side, and ValueError for another shape; nothing was copied then.
    """
    state = module.state_dict() if isinstance(module, torch.nn.Module) else module
    places = {name: each for name, each in state.items() if isinstance(each, torch.Tensor)}
    given = {name: each for name, each in value.items() if isinstance(each, torch.Tensor | np.ndarray)}
    if places.keys() != given.keys():
        missing, unknown = sorted(places.keys() - given.keys()), sorted(given.keys() - places.keys())
        raise KeyError(f"the version has no {missing}, and the module no {unknown}")
    for name, place in places.items():
        if tuple(place.shape) != tuple(given[name].shape):
            raise ValueError(f"{name!r} has shape {tuple(given[name].shape)} there, and {tuple(place.shape)} here")
    with torch.no_grad():
        for name, place in places.items():
            source = given[name]
            place.copy_(source if isinstance(source, torch.Tensor) else _tensor_on(source, place.dtype))


def _array_of(latest: Latest, tensor: torch.Tensor) -> Any:
    source = tensor.detach().resolve_conj().resolve_neg()
    plain, name = arrays.plain_dtype(source.dtype)
    if source.device.type != "cpu" or source.layout is not torch.strided:
        made = latest.new_empty(tuple(source.shape), plain)
        if made.size:
            _tensor_on(made, source.dtype).copy_(source)
        return made
    if name is not None and str(np.dtype(plain)) != name:
        source = source.contiguous().view(getattr(torch, f"int{8 * source.element_size()}"))
        return source.numpy().view(plain)
    return source.numpy()


def _tensor_on(array: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor on the array's memory, for as long as that is kept; `dtype` is what its bits may be of.

    Torch warns of memory that it must not write, which it is not asked to.
    """
    if array.size == 0:
        return torch.empty(array.shape, dtype=dtype)
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    plain, name = arrays.plain_dtype(dtype)
    is_bits = name is not None and str(np.dtype(plain)) != name and array.dtype == plain
    memory = (ctypes.c_ubyte * array.nbytes).from_address(array.ctypes.data)
    memory.keeps = array  # a copy that was made above is nobody else's
    flat = torch.frombuffer(memory, dtype=dtype) if is_bits else torch.from_numpy(np.frombuffer(memory, array.dtype))
    return flat.reshape(array.shape)
