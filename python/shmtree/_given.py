"""What the core is given of this package, of which it imports nothing: its errors, and what it does in Python."""

import queue

from . import _capnp, _core, _dtypes, _inside, _leaves, _models, _portable, _reducers, _unsendable, errors

_core.set_package(
    {
        **vars(errors),
        "Full": queue.Full,
        "Empty": queue.Empty,
        "describe_dtype": _dtypes.describe,
        "parse_dtype": _dtypes.parse,
        "dtype_of_other_package": _dtypes.of_other_package,
        "has_torch": _dtypes.has_torch,
        "reducers": _reducers.table,
        "StandIn": _reducers.StandIn,
        "remedy_for": _capnp.remedy_for,
        "explain_unsendable": _unsendable.explain,
        "path_of_refused": _inside.path_of_refused,
        "path_of_local": _portable.path_of_local,
        **vars(_leaves),
        **vars(_models),
    }
)
