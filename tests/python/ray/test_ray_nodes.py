"""Message passing between gateways that are killed and replaced at any time. They run in one process, without Ray."""

from __future__ import annotations

import asyncio
import itertools
import os
import queue
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from ray_nodes import Hosted, Nodes
from test_bad_input import damage

import shmtree
from shmtree._process import handles as grants
from shmtree.ray import _handles
from shmtree.ray._deaths import PeerDied

PATIENCE_S = 120


def run(test: Callable[[Nodes], Awaitable[None]], *names: str, **options: Any) -> None:
    """Runs a test with nodes of these names (default: two). Their gateways run until the end of the test."""
    nodes = Nodes(*(names or ("here", "there")), **options)
    asyncio.run(asyncio.wait_for(nodes.run(test), PATIENCE_S))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def send(sender: Any, count: int, close: bool = True) -> None:
    for number in range(count):
        await sender.put_async(number)
    if close:
        sender.close()


async def receive(receiver: Any, count: int) -> list[int]:
    return [await receiver.get_async() for _ in range(count)]


@pytest.mark.guarantee("ray-acks")
def test_remote_messages_arrive_in_order_and_are_then_acked() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=8)
        receiver = shmtree.Receiver._of(await pair.make())
        sender = await pair.sender("there")
        value = {"big": np.arange(100_000), "small": "text", "nested": [1, (2.0, None)]}
        await sender.put_async(value)
        await sender.put_async(2)
        got = await receiver.get_async()
        assert np.array_equal(got["big"], value["big"]) and got["nested"] == value["nested"]
        await until(lambda: sender.pending_acks == 1)
        assert await receiver.get_async() == 2
        await until(lambda: sender.pending_acks == 0)
        sender.wait_for_all_ack(timeout=60)

    run(test)


@pytest.mark.guarantee("ray-capacity")
def test_pair_fills_its_capacity_on_both_nodes_before_put_blocks() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=4)
        receiver = shmtree.Receiver._of(await pair.make())
        sender = await pair.sender("there")
        for number in range(8):
            await sender.put_async(number)
        await until(lambda: receiver.qsize() == 4)
        with pytest.raises(queue.Full):
            await sender.put_async(8, timeout=0.2)
        assert await receiver.get_async() == 0
        await sender.put_async(8)
        assert await receive(receiver, 8) == list(range(1, 9))

    run(test)


@pytest.mark.guarantee("ray-once-in-order")
@pytest.mark.parametrize("killed", [("here",), ("there",), ("here", "there")])
def test_repeated_gateway_kills_neither_lose_nor_duplicate(killed: tuple[str, ...]) -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=16)
        receiver = shmtree.Receiver._of(await pair.make())
        sending = asyncio.ensure_future(send(await pair.sender("there"), 400))
        received = []
        for _ in range(8):
            received += await receive(receiver, 40)
            for name in killed:
                await nodes.kill_gateway(name)
            for name in killed:
                await nodes.start_gateway(name)
        received += await receive(receiver, 80)
        await sending
        assert received == list(range(400))

    run(test)


def test_replaced_keeper_gets_the_state_of_its_gateway() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=16)
        receiver = shmtree.Receiver._of(await pair.make())
        sender = await pair.sender("there")
        await send(sender, 10, close=False)
        for name in ("here", "there"):
            await nodes.kill_keeper(name)
            await until(lambda name=name: bool(nodes._keepers[name].keeper.all()[1]))  # type: ignore[misc]
            await nodes.kill_gateway(name)
            await nodes.start_gateway(name)
        await sender.put_async(10)
        assert await receive(receiver, 11) == list(range(11))

    run(test)


@pytest.mark.guarantee("ray-lost-calls")
@pytest.mark.parametrize("seed", range(3))
def test_lost_calls_and_replies_neither_lose_nor_duplicate(seed: int) -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=8)
        receiver = shmtree.Receiver._of(await pair.make())
        sender = await pair.sender("there")
        sending = asyncio.ensure_future(send(sender, 100, close=False))
        assert await receive(receiver, 100) == list(range(100))
        await sending
        await until(lambda: sender.pending_acks == 0)

    run(test, loss=0.2, seed=seed)


@pytest.mark.parametrize("loss", [0.0, 0.2])
@pytest.mark.parametrize("killed", [(), ("here",), ("there",)])
def test_overtaking_or_lost_calls_preserve_the_order(loss: float, killed: tuple[str, ...]) -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=4096)
        receiver = shmtree.Receiver._of(await pair.make())
        sender = await pair.sender("there")
        sending = asyncio.ensure_future(send(sender, 8000, close=False))
        received = await receive(receiver, 2000)
        for name in killed:
            await nodes.kill_gateway(name)
            await nodes.start_gateway(name)
        received += await receive(receiver, 6000)
        await sending
        assert received == list(range(8000))
        assert nodes.max_pulling > 1
        await until(lambda: sender.pending_acks == 0)

    run(test, loss=loss, delay_s=0.05)


def test_concurrent_large_messages_keep_their_order_despite_loss() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=8)
        receiver = shmtree.Receiver._of(await pair.make())
        sender = await pair.sender("there")

        async def send_arrays() -> None:
            for number in range(40):
                await sender.put_async(np.full(1_000_000, number))

        sending = asyncio.ensure_future(send_arrays())
        for number in range(40):
            array = await receiver.get_async()
            assert array[0] == array[-1] == number
        await sending
        assert nodes.max_pulling > 1
        await until(lambda: sender.pending_acks == 0)

    run(test, loss=0.1, delay_s=0.05)


def test_overtaking_answer_lands_after_its_predecessors() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=4096)
        receiver = shmtree.Receiver._of(await pair.make())
        sender = await pair.sender("there")
        nodes.delays_s = itertools.cycle((0.2, 0.1, 0.0))  # of successive answers with messages
        await send(sender, 3000, close=False)
        assert await receive(receiver, 3000) == list(range(3000))
        assert nodes.max_pulling > 2

    run(test)


@pytest.mark.guarantee("ray-ends-in-transit")
def test_stream_ends_when_every_transferred_end_is_closed() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=8)
        receiver = shmtree.Receiver._of(await pair.make())
        first = await pair.sender("there")
        first.put(0)  # the gateway is in this process and is the receiver here: put before it runs
        second = await pair.sender("elsewhere")
        second.put(1)
        assert sorted(await receive(receiver, 2)) == [0, 1]
        await pair.let_go()
        await send(first, 3)
        assert await receive(receiver, 3) == [0, 1, 2]
        with pytest.raises(queue.Empty):
            await receiver.get_async(timeout=1)
        second.close()
        with pytest.raises(shmtree.ChannelClosed):
            await receiver.get_async()

    run(test, "here", "there", "elsewhere")


@pytest.mark.guarantee("ray-ends-in-transit")
def test_sender_in_transit_keeps_the_stream_open() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here")
        receiver = shmtree.Receiver._of(await pair.make())
        await pair.settle([("s", 17)], [])
        await pair.let_go()
        with pytest.raises(queue.Empty):
            await receiver.get_async(timeout=1)
        await pair.settle([], [("s", 17)])
        with pytest.raises(shmtree.ChannelClosed):
            await receiver.get_async()

    run(test)


def put_and_be_killed(handle: bytes, count: int) -> None:
    with grants.open_channel(handle, None, False) as (channel, _):
        sender: Any = shmtree.Sender._of(channel)
    for number in range(count):
        sender.put(number)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("count", [0, 1, 20])
def test_killed_sender_is_reported_after_messages_in_its_outbox(start: Any, count: int) -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=64)
        receiver = shmtree.Receiver._of(await pair.make())
        await pair.settle([("s", 17)], [])
        handle = await nodes.node("there").open_sender(pair.number, "here", pair.terms, ("s", 17))
        await pair.let_go()
        child = start(put_and_be_killed, handle, count, method="spawn")
        child.join(PATIENCE_S)  # the gateway is in this process: join before it runs
        assert child.exitcode == -signal.SIGKILL
        assert await receive(receiver, count) == list(range(count))
        with pytest.raises(PeerDied) as told:
            await receiver.get_async()
        assert told.value.peers == (("there", child.pid),)
        with pytest.raises(shmtree.ChannelClosed):
            await receiver.get_async()

    run(test)


@pytest.mark.guarantee("ray-peer-died")
def test_receiver_reports_a_dead_node_after_landed_messages() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here")
        receiver = shmtree.Receiver._of(await pair.make())
        sender = await pair.sender("there")
        await pair.let_go()
        await send(sender, 3, close=False)
        await until(lambda: receiver.qsize() == 3)
        nodes.dead.add("there")
        assert await receive(receiver, 3) == [0, 1, 2]
        with pytest.raises(PeerDied) as told:
            await receiver.get_async()
        assert told.value.peers == (("there", 0),)
        with pytest.raises(shmtree.ChannelClosed):
            await receiver.get_async()

    run(test)


def test_remote_sender_raises_when_no_receiver_is_left() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here")
        receiver = shmtree.Receiver._of(await pair.make())
        sender = await pair.sender("there")
        await sender.put_async(1)
        assert await receiver.get_async() == 1
        await pair.let_go()
        receiver.close()
        with pytest.raises(shmtree.ChannelClosed):
            await send(sender, 1_000_000)

    run(test)


@pytest.mark.guarantee("ray-latest")
def test_latest_is_mirrored_again_by_a_replaced_gateway() -> None:
    async def test(nodes: Nodes) -> None:
        handle, _ = await nodes.node("here").host_latest(5)
        latest = _handles.open_latest(handle)
        mirror = _handles.open_latest(await nodes.node("there").mirror_latest(5, "here"))
        weights = np.arange(10_000)
        latest.publish(weights)
        known, (version, value) = await mirror.get_async()
        assert version == 1 and np.array_equal(value, weights)
        latest.publish(weights + 1)
        known, (version, value) = await mirror.get_async(known)
        assert version == 2 and np.array_equal(value, weights + 1)
        for name in ("here", "there"):
            await nodes.kill_gateway(name)
        latest.publish(weights + 2)
        for name in ("here", "there"):
            await nodes.start_gateway(name)
        mirror = _handles.open_latest(await nodes.node("there").mirror_latest(5, "here"))
        _, (version, value) = await mirror.get_async()
        assert version == 3 and np.array_equal(value, weights + 2)

    run(test)


@pytest.mark.parametrize("last", [True, False])
def test_damaged_messages_raise_in_order_and_later_ones_arrive(last: bool) -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=16)
        receiver = shmtree.Receiver._of(await pair.make())
        sender = await pair.sender("there")
        await pair.let_go()
        await sender.put_async("first")
        assert await receiver.get_async() == "first"
        await until(lambda: sender.pending_acks == 0)
        await nodes.kill_gateway("there")
        for number in range(3):
            await sender.put_async(number)
        assert damage(sender._channel.arena.fd, b"SHMT", b"SHMX") >= 3
        if not last:
            await sender.put_async("last")
        sender.close()
        await nodes.start_gateway("there")
        for _ in range(3):
            with pytest.raises(shmtree.CorruptMessage, match="was damaged there"):
                await receiver.get_async()
        if not last:
            assert await receiver.get_async() == "last"
        with pytest.raises(shmtree.ChannelClosed):
            await receiver.get_async()

    run(test)


def test_node_may_send_through_many_outboxes_in_turn() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=16)
        receiver = shmtree.Receiver._of(await pair.make())
        for number in range(6):
            sender = await pair.sender("there")
            await send(sender, 3)
            assert await receive(receiver, 3) == [0, 1, 2]
            await until(lambda: not nodes._keepers["there"].keeper.all()[1])
            if number % 2:
                await nodes.kill_gateway("here")
                await nodes.start_gateway("here")
        record = nodes.node("here")._hosted[pair.number].record
        assert record["next_origin"] == 2 and not record["origins"]

    run(test, loss=0.05)


async def put_until_full(sender: Any) -> int:
    for number in range(100):
        try:
            await sender.put_async(number, timeout=0.5)
        except queue.Full:
            return number
    return 100


def test_blocked_outbox_reports_the_reason_and_later_continues() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=4)
        receiver = shmtree.Receiver._of(await pair.make())
        sender = await pair.sender("there")
        nodes.full = "the store has 90 MB, and 90 MB are used"
        count = await put_until_full(sender)
        assert await nodes.node("there").trouble(pair.number) == nodes.full
        nodes.full = ""
        assert await receive(receiver, count) == list(range(count))
        while await nodes.node("there").trouble(pair.number):
            await asyncio.sleep(0.01)

    run(test)
