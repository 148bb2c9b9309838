"""The value that a message contains in place of device memory."""

from __future__ import annotations

from typing import Any


class DeviceLeaf:
    """Stands for device memory in a message; see `shmtree.cuda._sent` and `shmtree.cuda._received`."""

    __slots__ = ("flat",)
    __module__ = "shmtree._leaves"  # the name in frames, which stays the same wherever this class is

    def __init__(self, flat: tuple[Any, ...]) -> None:
        self.flat = flat


def device_flat(leaf: DeviceLeaf) -> tuple[Any, ...]:
    return leaf.flat
