"""Memory of CUDA devices that this process sent, and what it became where it was received.

    sender.put({"features": tensor_on_a_gpu})      # nothing is copied: the receiver's tensor is the same memory
    ...
    shmtree.cuda.wait_until_released(timeout=60)   # optional: a process that exits does so

Sending and receiving need nothing of this.
"""

from __future__ import annotations

from . import _sent
from ._received import DeviceArray

__all__ = ["DeviceArray", "lent", "set_exit_timeout", "wait_until_released"]


def lent() -> int:
    """How many tensors and arrays on devices others may still be using, which is why this process keeps them."""
    return _sent.look()


def wait_until_released(timeout: float | None = None) -> None:
    """Waits until every receiver has let go of what this process sent; TimeoutError after `timeout` seconds."""
    if not _sent.wait(timeout):
        raise TimeoutError(f"{lent()} tensors or arrays on devices are still in use after {timeout} s")


def set_exit_timeout(seconds: float) -> None:
    """How long a process that exits waits for that; 30 s unless this is called."""
    if not seconds >= 0:
        raise ValueError(f"seconds is {seconds}; it must not be negative")
    _sent.exit_timeout = seconds
