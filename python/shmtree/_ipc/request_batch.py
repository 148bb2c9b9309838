"""Batches of requests, as a model server takes them: their arrays are stacked, and the results are split again."""

from __future__ import annotations

import sys
from typing import Any, Generic, TypeVar

import numpy as np

from .._public import made_by
from .request import REPLY_S, Request

_T = TypeVar("_T")


@made_by("Service.get_batch()")
class RequestBatch(Generic[_T]):
    """Several requests of a `Service`, with their arrays stacked."""

    value: _T  #: the values of the requests, with a new first axis in each array: row ``i`` is that of ``requests[i]``
    requests: list[Request[Any]]  #: the requests, which can also be answered one by one

    @classmethod
    def _of(cls, requests: list[Request[Any]]) -> RequestBatch[Any]:
        self = cls.__new__(cls)
        values = [request.value for request in requests]
        layouts = dict.fromkeys(map(_layout, values))
        if len(layouts) > 1:
            raise ValueError(f"the requests of a batch must have the same arrays; these have {' and '.join(layouts)}")
        self.value = _stacked(values)
        self.requests = requests
        return self

    def __len__(self) -> int:
        return len(self.requests)

    def reply(self, result: object, timeout: float | None = REPLY_S) -> int:
        """Sends row ``i`` of each array of the result to the client of ``requests[i]``.

        Args:
            result: An array, a tensor or a list with a row for each request, or a dict or tuple of these.
            timeout: Seconds to wait for space at each client; None waits indefinitely.

        Returns:
            The number of replies that were sent; see `Request.reply`.

        Raises:
            ValueError: An array has another number of rows than the batch has requests. No reply was sent.
        """
        rows = _rows(result, len(self.requests))
        return sum(request.reply(row, timeout) for request, row in zip(self.requests, rows, strict=True))

    def fail(self, error: BaseException | str, timeout: float | None = REPLY_S) -> None:
        """Fails the requests that have no reply yet; see `Request.fail`."""
        for request in self.requests:
            if request._replies is not None:
                request.fail(error, timeout)

    def __repr__(self) -> str:
        return f"<RequestBatch of {len(self)}>"


def _layout(value: Any) -> str:
    """Returns the keys, dtypes and shapes of a value."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_layout(value[key])}" for key in sorted(value, key=repr)) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_layout, value)) + ")"
    array = value if hasattr(value, "dtype") else np.asarray(value)
    return f"{array.dtype}{list(array.shape)}"


def _stacked(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        return {key: _stacked([value[key] for value in values]) for key in first}
    if isinstance(first, tuple):
        return tuple(_stacked(list(each)) for each in zip(*values, strict=True))
    torch = sys.modules.get("torch")
    return torch.stack(values) if torch is not None and isinstance(first, torch.Tensor) else np.stack(values)


def _rows(result: Any, count: int) -> list[Any]:
    if isinstance(result, dict):
        rows = {key: _rows(value, count) for key, value in result.items()}
        return [{key: each[i] for key, each in rows.items()} for i in range(count)]
    if isinstance(result, tuple):
        return list(zip(*(_rows(value, count) for value in result), strict=True))
    if len(result) != count:
        raise ValueError(f"the result has {len(result)} rows; the batch has {count} requests")
    return list(result)
