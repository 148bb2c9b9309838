"""Pairs that lose a node."""

from __future__ import annotations

from typing import Any

import pytest
from ray_cluster import LONG_S, cluster_of_two, on, ray

import shmtree
import shmtree.ray
from shmtree.ray import PeerDied

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]


class Peer:
    """A process on the node."""

    def send(self, sender: Any, count: int) -> None:
        self.sender = sender
        for number in range(count):
            sender.put(number, timeout=LONG_S)
        sender.wait_for_all_ack(timeout=LONG_S)

    def take(self, receiver: Any, count: int) -> list[int]:
        self.receiver = receiver
        taken = [receiver.take(timeout=LONG_S) for _ in range(2 * count)]
        for delivery in taken[:count]:
            delivery.ack()
        self.held = taken[count:]
        return [delivery.item for delivery in taken]


def test_dead_node_is_reported_and_its_messages_are_redelivered() -> None:
    with cluster_of_two(__name__) as (cluster, _, there):
        far, other = on(there, Peer), on(there, Peer)
        to_here, here = shmtree.ray.create_pair(capacity=8)
        sending = far.send.remote(to_here, 5)
        to_here.close()
        assert [here.get(timeout=LONG_S) for _ in range(5)] == list(range(5))
        ray.get(sending, timeout=LONG_S)
        sender, receiver = shmtree.ray.create_pair(capacity=8)
        taking = other.take.remote(receiver, 3)
        for number in range(10):
            sender.put(number, timeout=LONG_S)
        assert ray.get(taking, timeout=LONG_S) == list(range(6))
        while sender.pending_acks > 7:
            pass
        cluster.remove_node(next(each for each in cluster.list_all_nodes() if each.node_id == there))
        with pytest.raises(PeerDied) as told:
            here.get(timeout=LONG_S)
        assert told.value.peers == ((there, 0),)
        assert sorted(receiver.get(timeout=LONG_S) for _ in range(7)) == list(range(3, 10))
        sender.close()
        with pytest.raises(shmtree.ChannelClosed):
            receiver.get(timeout=LONG_S)
