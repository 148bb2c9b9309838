"""Limits of gateways: a node that lost its state, deaths that both sides detect, and large messages."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from ray_nodes import Hosted, Nodes
from test_ray_inboxes import _get_and_die, killed, sender_here
from test_ray_nodes import receive, run, send, until

import shmtree
from shmtree._process import arenas
from shmtree.ray import _inbox, _node
from shmtree.ray._deaths import PeerDied


def test_node_that_lost_gateway_and_keeper_is_reported_as_dead(monkeypatch: Any) -> None:
    monkeypatch.setattr(_node, "_SILENT_S", 0.1)

    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=16)
        receiver = shmtree.Receiver._of(await pair.make())
        sender = await pair.sender("there")
        await pair.let_go("s")
        await send(sender, 3, close=False)
        assert await receive(receiver, 3) == [0, 1, 2]
        await asyncio.sleep(1.5)  # a silent outbox that still exists does not end the stream
        await sender.put_async(3)
        assert await receive(receiver, 1) == [3]
        await nodes.kill_gateway("there")
        await nodes.kill_keeper("there")
        await nodes.start_gateway("there")
        with pytest.raises(PeerDied) as told:
            await receiver.get_async()
        assert told.value.peers == (("there", 0),)
        with pytest.raises(shmtree.ChannelClosed):
            await receiver.get_async()

    run(test)


def test_home_senders_report_a_killed_receiver_after_remote_ones() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=16)
        sender = await sender_here(pair)
        far = await pair.sender("away")
        receiver = await pair.receiver("there")
        for number in range(8):
            await far.put_async(number)  # the sender asks the home about it until it was received
        pid = await killed(_get_and_die, receiver)
        await pair.let_go()
        while not await nodes.node("away").why(pair.number):
            await asyncio.sleep(0.01)
        assert await nodes.node("away").why(pair.number) == (("there", pid),)
        with pytest.raises(shmtree.PeerDied) as told:
            await send(sender, 100)
        assert told.value.pids == (pid,)

    run(test, "here", "there", "away")


def test_inbox_bounds_its_bytes_but_admits_one_larger_message(monkeypatch: Any) -> None:
    monkeypatch.setattr(_inbox, "MAX_BYTES", 1 << 20)

    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=16)
        sender = await sender_here(pair)
        receiver = await pair.receiver("there")
        for number in range(4):
            await sender.put_async(np.full(3 << 20, number, np.uint8))
        await until(lambda: receiver.qsize() == 1)
        for number in range(4):
            await asyncio.sleep(0.1)
            assert receiver.qsize() <= 1
            assert (await receiver.get_async())[-1] == number

    run(test)


def test_message_too_large_for_the_home_raises_with_the_numbers(monkeypatch: Any) -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=16)
        small = shmtree.Arena(max_bytes=8 << 20)
        with monkeypatch.context() as patch:
            patch.setattr(arenas, "default_arena", lambda: small._core)
            receiver = shmtree.Receiver._of(await pair.make())
        sender = await pair.sender("there")
        for value in (b"x" * (3 << 20), b"y" * (40 << 20), b"z" * (3 << 20)):
            await sender.put_async(value)
        assert (await receiver.get_async())[:1] == b"x"
        with pytest.raises(shmtree.CorruptMessage, match=r"message 1 .* of 4194\d+ bytes, cannot be received here"):
            await receiver.get_async()
        assert (await receiver.get_async())[:1] == b"z"

    run(test)


def test_pids_of_a_death_on_another_node_have_no_zeros() -> None:
    died = PeerDied([("there", 0), ("away", 7)])
    assert died.pids == (7,) and died.peers == (("there", 0), ("away", 7))
