"""What is sent in place of memory of a device."""

from __future__ import annotations

from typing import Any


class DeviceLeaf:
    """Stands in a message for memory of a device, see `shmtree.cuda._sent` and `shmtree.cuda._received`."""

    __slots__ = ("flat",)
    __module__ = "shmtree._leaves"  # the name in frames, which stays wherever this class is

    def __init__(self, flat: tuple[Any, ...]) -> None:
        self.flat = flat


def device_flat(leaf: DeviceLeaf) -> tuple[Any, ...]:
    return leaf.flat
