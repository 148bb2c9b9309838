"""Memory of CUDA devices that this process has sent, and its release by the receivers.

::

    sender.put({"features": tensor_on_a_gpu})      # nothing is copied: the receiver's tensor is the same memory
    ...
    shmtree.cuda.wait_until_released(timeout=60)   # optional: a process that exits does so

You do not need this module to send and receive.
"""

from __future__ import annotations

from .._public import claim_names
from . import _sent
from ._received import DeviceArray

__all__ = ["DeviceArray", "lent", "set_exit_timeout", "wait_until_released"]


def lent() -> int:
    """Returns the number of device tensors and arrays that this process keeps because receivers may still use them."""
    return _sent.look()


def wait_until_released(timeout: float | None = None) -> None:
    """Blocks until every receiver has released the device memory that this process sent.

    Args:
        timeout: Seconds to wait at most; None waits indefinitely.

    Raises:
        TimeoutError: Receivers still use some of it after `timeout` seconds.
    """
    if not _sent.wait(timeout):
        raise TimeoutError(f"{lent()} tensors or arrays on devices are still in use after {timeout} s")


def set_exit_timeout(seconds: float) -> None:
    """Sets the number of seconds for which an exiting process waits for receivers; the default is 30 s.

    Args:
        seconds: The time in seconds; 0 does not wait.

    Raises:
        ValueError: `seconds` is negative.
    """
    if not seconds >= 0:
        raise ValueError(f"seconds is {seconds}; it must not be negative")
    _sent.exit_timeout = seconds


__dir__ = claim_names(globals())
