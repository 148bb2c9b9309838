"""Arenas and shared arrays in messages that no process has any more when they are received."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import shmtree


def give_memory_and_die(kind: str, requests: shmtree.Sender) -> None:
    its_own = shmtree.Arena(1 << 20)
    requests.put(("memory", its_own if kind == "arena" else its_own.array((4,), "f4")))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.guarantee("ends-in-messages")
@pytest.mark.parametrize("kind", ["arena", "array"])
def test_memory_without_an_owner_arrives_closed(arena, start, kind) -> None:
    requests, served = arena.create_pair(allow_pickle=False)
    child = start(give_memory_and_die, kind, requests)
    child.join(30)
    requests.put("next")

    what, memory = served.get()
    assert (what, served.get()) == ("memory", "next")
    if kind == "arena":
        assert memory.closed
        with pytest.raises(shmtree.ChannelClosed):
            memory.stats()
        return
    assert repr(memory) == "<SharedArray, gone>"
    for use in (
        lambda: memory.array,
        memory.read,
        memory.write,
        lambda: np.asarray(memory),
        lambda: requests.put(memory),
    ):
        with pytest.raises(FileNotFoundError, match="shared array was freed before it was received"):
            use()


def test_array_dropped_before_it_is_received_arrives(arena) -> None:
    requests, served = arena.create_pair(allow_pickle=False)
    requests.put(("memory", arena.array((4,), "f4")))

    _, memory = served.get()

    assert memory.read().tolist() == [0, 0, 0, 0]
