"""Program for compute-sanitizer: sends tensors, and copies from a pinned arena. Every process exits by itself."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python" / "support"))

import gpu_peers
from cuda_processes import Process

import shmtree


def hand_over(arena: shmtree.Arena) -> None:
    end, other = arena.create_pair(allow_pickle=False)
    sender, receiver = Process(end, peer=gpu_peers.Peer), Process(other, peer=gpu_peers.Peer)
    for name in gpu_peers.TENSORS:
        sender.ask("put", name)
        assert receiver.ask("get") == sender.ask("describe_made"), name
        receiver.ask("drop")
    sender.ask("wait")
    for process in (receiver, sender):
        process.end()
        assert process.has_ended()


def copy(arena: shmtree.Arena) -> None:
    sender, receiver = arena.create_pair()
    process = Process(receiver, arena, gpu_peers.PinningPeer)
    process.ask("pin")
    for number in range(5):
        sender.put(gpu_peers.message(number))
        assert process.ask("get_to")["a"] == 1e6 * number
    sender.put(gpu_peers.message(5))
    process.ask("get_to_behind_work")
    process.ask("unpin")
    process.end()
    assert process.has_ended()


if __name__ == "__main__":
    made = shmtree.Arena(64 << 20)
    copy(made)
    hand_over(made)
