"""A pair between nodes with full object stores, when the disk is too full for Ray to spill to files."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from ray_cluster import LONG_S, cluster_of_two, on, ray

import shmtree
import shmtree.ray

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]
ARRAY = np.arange(1 << 19)


class Hog:
    """Fills its node's store until Ray refuses."""

    def fill(self) -> str:
        self.views: list[Any] = []
        try:
            while True:
                self.views.append(ray.get(ray.put(np.ones(1 << 20, np.uint8))))
        except ray.exceptions.RayError as error:
            return type(error).__name__

    def free(self) -> None:
        self.views.clear()


class Peer:
    """A process that sends."""

    def keep(self, sender: Any) -> None:
        self.sender = sender
        sender.put(0, timeout=LONG_S)

    def send(self, count: int) -> None:
        for number in range(1, 1 + count):
            self.sender.put((number, ARRAY), timeout=LONG_S)
        self.sender.wait_for_all_ack(timeout=LONG_S)
        self.sender.close()


def test_messages_wait_for_space_in_full_stores_and_all_arrive() -> None:
    with cluster_of_two(__name__, local_fs_capacity_threshold=0.0) as (_, here, there):
        sender, receiver = shmtree.ray.create_pair(capacity=4, home=here)
        far, hogs = on(there, Peer), [on(node, Hog) for node in (here, there)]
        keeping = far.keep.remote(sender)
        assert receiver.get(timeout=LONG_S) == 0
        ray.get(keeping, timeout=LONG_S)
        sender.close()
        assert ray.get([hog.fill.remote() for hog in hogs], timeout=LONG_S) == ["OutOfDiskError"] * 2
        sending = far.send.remote(12)
        time.sleep(1)  # calls usually fail meanwhile; the test also passes if none does
        assert not ray.wait([sending], timeout=0)[0]
        ray.get([hog.free.remote() for hog in hogs], timeout=LONG_S)
        for number in range(1, 13):
            got, array = receiver.get(timeout=LONG_S)
            assert got == number and np.array_equal(array, ARRAY)
            del array
        with pytest.raises(shmtree.ChannelClosed):
            receiver.get(timeout=LONG_S)
        ray.get(sending, timeout=LONG_S)
