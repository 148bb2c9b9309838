"""Passes the errors and Python functions of this package to the core, which does not import the package."""

import queue

from .. import _core, errors
from . import capnp, dtypes, models, optional, reducers, unsendable
from .tensors import TensorLibrary


def hand_over(library: TensorLibrary) -> None:
    _core.set_package(
        {
            **vars(errors),
            "Full": queue.Full,
            "Empty": queue.Empty,
            "describe_dtype": dtypes.describe,
            "parse_dtype": dtypes.parse,
            "dtype_of_other_package": optional.of_other_package,
            "has_torch": library.has_torch,
            "tensor_parts": library.tensor_parts,
            "tensor_build": library.tensor_build,
            "device_leaf": library.device_leaf,
            "reducers": reducers.table,
            "StandIn": reducers.StandIn,
            "remedy_for": capnp.remedy_for,
            "explain_unsendable": unsendable.explain,
            "key_text": unsendable.key_text,
            "attrs_fields": models.attrs_fields,
            "is_model": models.is_model,
            "model_state": models.model_state,
            "model_build": models.model_build,
        }
    )
