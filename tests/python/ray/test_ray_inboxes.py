"""Receivers on nodes other than the home of their pair: gateways and keepers in one process, without Ray."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import os
import queue
import random
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ray_nodes import Hosted, Nodes
from test_ray_nodes import receive, run, send, until

import shmtree
from shmtree.ray._deaths import PeerDied
from shmtree.ray._ends import RemoteReceiver
from shmtree.ray._pairs import OfferedReceiver

CLOSED = (shmtree.ChannelClosed, shmtree.PeerDied)


async def receive_all(receiver: Any, into: list[int]) -> None:
    with contextlib.suppress(*CLOSED):
        while True:
            into.append(await receiver.get_async())


def _get_and_die(receiver: Any) -> None:
    receiver.get(timeout=60)
    os.kill(os.getpid(), signal.SIGKILL)


def _put_and_die(sender: Any) -> None:
    for number in range(3):
        sender.put(number, timeout=60)
    os.kill(os.getpid(), signal.SIGKILL)


def started(work: Callable[..., None], *arguments: Any) -> Any:
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    return process


async def killed(work: Callable[[Any], None], end: Any) -> int:
    """Gives the end to a process that gets killed, and returns the pid of that process."""
    process = started(work, end)
    end.close()
    await asyncio.to_thread(process.join)
    assert process.pid is not None
    return process.pid


async def sender_here(pair: Hosted) -> Any:
    """Returns a sender at the home.

    The maker of the pair has given away all its ends: this one, and the ends that the test opens later.
    """
    return shmtree.Sender._of(await pair.make())


def test_message_from_the_home_is_acked_once_received_remotely() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=8)
        sender = await sender_here(pair)
        receiver = await pair.receiver("there")
        value = {"big": np.arange(100_000), "nested": [1, (2.0, None)]}
        await sender.put_async(value)
        await sender.put_async(2)
        got = await receiver.get_async()
        assert np.array_equal(got["big"], value["big"]) and got["nested"] == value["nested"]
        await until(lambda: sender.pending_acks == 1)
        assert await receiver.get_async() == 2
        await until(lambda: sender.pending_acks == 0)

    run(test)


def test_sender_and_receiver_may_both_be_on_other_nodes() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=4)
        await pair.make()
        receiver = await pair.receiver("there")
        sender = await pair.sender("away")
        sending = asyncio.ensure_future(send(sender, 200, close=False))
        assert await receive(receiver, 199) == list(range(199))
        await sending
        assert sender.pending_acks > 0
        assert await receiver.get_async() == 199
        await until(lambda: sender.pending_acks == 0)

    run(test, "here", "there", "away")


def test_full_inbox_blocks_put() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=4)
        sender = await sender_here(pair)
        receiver = await pair.receiver("there")
        for number in range(8):
            await sender.put_async(number)
        await until(lambda: receiver.qsize() == 4)
        with pytest.raises(queue.Full):
            await sender.put_async(8, timeout=0.3)
        assert await receiver.get_async() == 0
        await sender.put_async(8)
        assert await receive(receiver, 8) == list(range(1, 9))

    run(test)


@pytest.mark.parametrize("killed", [("here",), ("there",), ("here", "there")])
def test_repeated_gateway_kills_neither_lose_nor_duplicate(killed: tuple[str, ...]) -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=16)
        await pair.make()
        sender, receiver = await pair.sender("away"), await pair.receiver("there")
        await pair.let_go()
        sending = asyncio.ensure_future(send(sender, 400))
        received = []
        for _ in range(8):
            received += await receive(receiver, 40)
            for name in killed:
                await nodes.kill_gateway(name)
            for name in killed:
                await nodes.start_gateway(name)
        await receive_all(receiver, received)
        await sending
        assert received == list(range(400))

    run(test, "here", "there", "away")


@pytest.mark.parametrize("seed", range(3))
def test_lost_calls_neither_lose_nor_duplicate_messages(seed: int) -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=64)
        sender = await sender_here(pair)
        receiver = await pair.receiver("there")
        await pair.let_go()
        sending = asyncio.ensure_future(send(sender, 300))
        received: list[int] = []
        await receive_all(receiver, received)
        await sending
        assert received == list(range(300))

    run(test, loss=0.1, delay_s=0.01, seed=seed)


# A keeper inherits the messages that a killed gateway had taken. With all nodes in one process it does not. So no
# receiver is at the home while the gateway there is killed; test_ray.py and channel/successors.cpp kill processes.
def test_receivers_on_three_nodes_share_messages_despite_kills() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=16)
        await pair.make()
        sender = await pair.sender("away")
        parts: list[list[int]] = [[], [], []]
        receivers = [await pair.receiver(node) for node in ("there", "away", "third")]
        await pair.let_go()
        sending = asyncio.ensure_future(send(sender, 600))
        taking = [asyncio.ensure_future(receive_all(*each)) for each in zip(receivers, parts)]
        for name in ("here", "there", "away") * 2:
            await asyncio.sleep(0.2)
            await nodes.kill_gateway(name)
            await nodes.start_gateway(name)
        await asyncio.gather(sending, *taking)
        assert sorted(itertools.chain(*parts)) == list(range(600))
        assert all(part == sorted(part) for part in parts)

    run(test, "here", "there", "away", "third")


def test_messages_left_by_a_remote_receiver_are_redelivered() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=8)
        channel = await pair.make()
        sender = shmtree.Sender._of(channel)
        receiver = await pair.receiver("there")
        await send(sender, 10, close=False)
        await until(lambda: receiver.qsize() == 8)
        assert await receive(receiver, 3) == [0, 1, 2]
        held = receiver.take(timeout=60)
        assert held.item == 3
        held.nack()
        receiver.close()
        at_home = shmtree.Receiver._of(channel)
        assert sorted(await receive(at_home, 7)) == list(range(3, 10))
        await until(lambda: sender.pending_acks == 0)
        again = await pair.receiver("there")
        await send(sender, 3, close=False)
        at_home.close()
        assert await receive(again, 3) == [0, 1, 2]

    run(test)


def test_messages_at_an_idle_receiver_move_to_a_busy_one() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=8)
        await pair.make()
        sender = await pair.sender("away")
        idle, busy = await pair.receiver("there", RemoteReceiver._of), await pair.receiver("away")
        await sender.put_async(0)
        received = [await idle.get_async()]
        for number in range(1, 30):
            await sender.put_async(number)
            received += [await busy.get_async()] if number > 20 else []
            if number in (10, 20, 25):
                await asyncio.sleep(0.5)
                for name in ("here", "there"):
                    await nodes.kill_gateway(name)
                    await nodes.start_gateway(name)
        while len(received) < 30:
            received.append(await busy.get_async())
        assert sorted(received) == list(range(30))
        await until(lambda: sender.pending_acks == 0)
        await sender.put_async(30)
        while True:  # a receiver that polls repeatedly also gets messages
            try:
                assert idle.get_nowait() == 30
                break
            except queue.Empty:
                await asyncio.sleep(0.01)

    run(test, "here", "there", "away")


def test_remote_stream_ends_when_no_sender_is_left() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=8)
        sender = await sender_here(pair)
        receiver = await pair.receiver("there")
        await pair.let_go()
        await send(sender, 5)
        assert await receive(receiver, 5) == list(range(5))
        with pytest.raises(shmtree.ChannelClosed):
            await receiver.get_async()
        await until(lambda: not nodes._keepers["there"].keeper.all()[1])

    run(test)


def test_last_remote_receiver_to_close_ends_the_stream() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=4)
        sender = await sender_here(pair)
        receiver = await pair.receiver("there")
        await pair.let_go()
        receiver.close()
        with pytest.raises(shmtree.ChannelClosed):
            await send(sender, 100)

    run(test)


def test_senders_report_a_killed_remote_receiver() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=4)
        sender = await sender_here(pair)
        far = await pair.sender("away")
        receiver = await pair.receiver("there")
        await far.put_async(0)
        pid = await killed(_get_and_die, receiver)
        await pair.let_go()
        with pytest.raises(shmtree.PeerDied) as told:
            await send(sender, 100)
        assert told.value.pids == (pid,)
        with pytest.raises(CLOSED):
            await send(far, 100)
        assert await nodes.node("away").why(pair.number) == (("there", pid),)

    run(test, "here", "there", "away")


def test_stream_does_not_end_while_another_node_may_nack() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=8)
        sender = await sender_here(pair)
        idle = await pair.receiver("there")
        await send(sender, 4, close=False)
        await until(lambda: idle.qsize() == 4)
        receiver = await pair.receiver("away")
        await pair.let_go()
        sender.close()
        assert await receive(receiver, 4) == list(range(4))
        for each in (receiver, idle):
            with pytest.raises(shmtree.ChannelClosed):
                await each.get_async()

    run(test, "here", "there", "away")


def test_receiver_reports_killed_home_sender_after_its_messages() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=8)
        sender = await sender_here(pair)
        receiver = await pair.receiver("there")
        await pair.let_go()
        pid = await killed(_put_and_die, sender)
        assert await receive(receiver, 3) == [0, 1, 2]
        with pytest.raises(PeerDied) as told:
            await receiver.get_async()
        assert told.value.peers == (("here", pid),)

    run(test)


def test_receiver_reports_a_dead_home_after_landed_messages() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=8)
        sender = await sender_here(pair)
        receiver = await pair.receiver("there")
        await send(sender, 3, close=False)
        await until(lambda: receiver.qsize() == 3)
        nodes.dead.add("here")
        await nodes.kill_gateway("here")
        assert await receive(receiver, 3) == [0, 1, 2]
        with pytest.raises(PeerDied) as told:
            await receiver.get_async()
        assert told.value.peers == (("here", 0),)

    run(test)


def test_unreceived_messages_of_a_dead_node_are_redelivered() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=8)
        channel = await pair.make()
        sender = shmtree.Sender._of(channel)
        receiver = await pair.receiver("there")
        await send(sender, 10, close=False)
        await until(lambda: receiver.qsize() == 8)
        assert await receive(receiver, 2) == [0, 1]
        await until(lambda: sender.pending_acks == 8 and receiver.qsize() == 8)
        nodes.dead.add("there")
        await nodes.kill_gateway("there")
        at_home = shmtree.Receiver._of(channel)
        assert await receive(at_home, 8) == list(range(2, 10))

    run(test)


def test_put_of_local_memory_raises_with_a_remote_receiver() -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=8)
        sender = await sender_here(pair)
        local = shmtree.Arena().array((4,), "f8")
        await sender.put_async({"weights": local})
        receiver = await pair.receiver("there")
        with pytest.raises(shmtree.NotPortable):
            await sender.put_async({"weights": local})
        await sender.put_async("after")
        with pytest.raises(shmtree.CorruptMessage, match="cannot leave"):
            await receiver.get_async()
        assert await receiver.get_async() == "after"

    run(test)


async def receive_by_fits(receiver: Any, into: list[int], rests_s: list[float]) -> None:
    """Receives 20 messages and pauses, repeatedly. Meanwhile other receivers get the messages that are waiting here."""
    with contextlib.suppress(*CLOSED):
        for rest_s in itertools.cycle(rests_s):
            for _ in range(20):
                into.append(await receiver.get_async())
            await asyncio.sleep(rest_s)


@pytest.mark.parametrize("seed", range(3))
def test_each_message_is_received_once_despite_pauses_and_kills(seed: int) -> None:
    async def test(nodes: Nodes) -> None:
        pair = Hosted(nodes, "here", capacity=16)
        await pair.make()
        sender = await pair.sender("away")
        parts: list[list[int]] = [[], [], []]
        receivers = [await pair.receiver(node) for node in ("there", "away", "third")]
        await sender.put_async(-1)
        assert await receivers[0].get_async() == -1
        nodes.disturb(loss=0.05, delay_s=0.005)
        await pair.let_go()
        sending = asyncio.ensure_future(send(sender, 500))
        rests = [[0.3, 0.0], [1.5, 0.0, 0.0], [0.0, 1.3]]
        taking = [asyncio.ensure_future(receive_by_fits(*each)) for each in zip(receivers, parts, rests)]
        kills = random.Random(seed)
        while not sending.done():
            await asyncio.sleep(kills.uniform(0.1, 0.8))
            name = kills.choice(nodes.names)
            await nodes.kill_gateway(name)
            await nodes.start_gateway(name)
        await asyncio.gather(sending, *taking)
        assert sorted(itertools.chain(*parts)) == list(range(500))

    run(test, "here", "there", "away", "third", seed=seed)


def test_offered_receiver_contains_nothing() -> None:
    with pytest.raises(TypeError):
        1 in OfferedReceiver.__new__(OfferedReceiver)  # noqa: B015
