"""Pairs between two nodes of Ray, and kills of every attached process."""

from __future__ import annotations

import itertools
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ray_cluster import LONG_S, STORE_BYTES, cluster_of_two, kill, on, ray

import shmtree
import shmtree.ray
from shmtree.ray import PeerDied, _actors

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[str, str]]:
    """Starts a cluster. This process is on the first node."""
    with cluster_of_two(__name__) as (_, here, there):
        yield here, there


class Peer:
    """A process on a node."""

    def pid(self) -> int:
        return os.getpid()

    def send(self, sender: Any, first: int, count: int, close: bool) -> Any:
        for number in range(first, first + count):
            sender.put((number, "x" * (number % 100)), timeout=LONG_S)
        self.sender = None if close else sender
        return type(sender).__name__

    def send_one(self, value: Any) -> None:
        self.sender.put(value, timeout=LONG_S)

    def wait_for_all_ack(self) -> int:
        self.sender.wait_for_all_ack(timeout=LONG_S)
        return int(self.sender.pending_acks)

    def keep(self, receiver: Any) -> None:
        self.receiver = receiver

    def receive_all(self, receiver: Any) -> list[int]:
        self.received: list[int] = []
        for number, _ in receiver:
            self.received.append(number)
        return self.received

    def look(self, latest: Any, newer_than: int) -> tuple[int, float]:
        version, value = latest.get(newer_than, timeout=LONG_S)
        return version, float(value["layers"][0][-1])

    def publish(self, latest: Any, value: Any) -> int:
        return int(latest.publish(value))

    def send_until_signal(self, sender: Any) -> Any:
        try:
            while True:
                sender.put(b"x", timeout=LONG_S)
        except PeerDied as died:
            return died.peers


@pytest.fixture
def peer(nodes: tuple[str, str]) -> Iterator[Any]:
    """Returns peer(node), which starts an actor on that node."""
    made: list[Any] = []

    def make(node: str) -> Any:
        made.append(on(node, Peer))
        return made[-1]

    yield make
    for each in made:
        ray.kill(each)


def kill_gateway(node: str) -> int:
    return kill(_actors.gateway(node))


def numbers(receiver: Any, count: int) -> list[int]:
    return [receiver.get(timeout=LONG_S)[0] for _ in range(count)]


@pytest.mark.guarantee("ray-once-in-order")
def test_a_stream_from_another_node_outlives_both_gateways(nodes: tuple[str, str], peer: Any) -> None:
    here, there = nodes
    sender, receiver = shmtree.ray.create_pair(capacity=64)
    sending = peer(there).send.remote(sender, 0, 1200, True)
    sender.close()
    received = numbers(receiver, 100)
    for killed in ((here,), (there,), (here, there)):
        for node in killed:
            kill_gateway(node)
        received += numbers(receiver, 300)
    received += [number for number, _ in receiver]
    assert received == list(range(1200))
    assert ray.get(sending, timeout=LONG_S) == "RemoteSender"
    receiver.close()


def test_dropped_sender_closes_and_ends_the_stream(nodes: tuple[str, str]) -> None:
    for used in (True, False):
        sender, receiver = shmtree.ray.create_pair(capacity=4)
        if used:
            sender.put(1)
        del sender
        assert list(receiver) == [1] * used


def test_put_to_a_full_pair_raises_after_receiver_is_dropped(nodes: tuple[str, str]) -> None:
    sender, receiver = shmtree.ray.create_pair(capacity=1)
    sender.put(1)
    receiver.qsize()
    del receiver
    with pytest.raises(shmtree.ChannelClosed):
        sender.put(2, timeout=LONG_S)


def test_last_sender_death_is_reported_after_maker_drops_ends(nodes: tuple[str, str], peer: Any) -> None:
    _, there = nodes
    sender, receiver = shmtree.ray.create_pair(capacity=8)
    source = peer(there)
    ray.get(source.send.remote(sender, 0, 3, False), timeout=LONG_S)
    del sender
    assert numbers(receiver, 3) == [0, 1, 2]
    killed = kill(source)
    with pytest.raises(PeerDied) as died:
        receiver.get(timeout=LONG_S)
    assert died.value.peers == ((there, killed),)


def test_receivers_on_both_nodes_share_a_stream_despite_kills(nodes: tuple[str, str], peer: Any) -> None:
    here, there = nodes
    sender, receiver = shmtree.ray.create_pair(capacity=64)
    near, far, source = peer(here), peer(there), peer(there)
    ray.get([near.pid.remote(), source.pid.remote()], timeout=LONG_S)
    parts = [far.receive_all.remote(receiver)]
    sender.put((600, ""), timeout=LONG_S)
    sender.wait_for_all_ack(timeout=LONG_S)  # the end on the other node has arrived
    parts.append(near.receive_all.remote(receiver))
    receiver.close()
    sending = source.send.remote(sender, 0, 600, True)
    for number in range(601, 1200):
        sender.put((number, "x" * (number % 100)), timeout=LONG_S)
        if number in (700, 800, 900):
            for node in (here,) if number == 700 else (there,) if number == 800 else (here, there):
                kill_gateway(node)
    sender.close()
    ray.get(sending, timeout=LONG_S)
    elsewhere, at_home = ray.get(parts, timeout=LONG_S)
    assert elsewhere[0] == 600
    assert sorted(at_home + elsewhere) == list(range(1200))


def test_home_sender_is_ordinary_and_large_remote_arrays_arrive(nodes: tuple[str, str], peer: Any) -> None:
    here, there = nodes
    sender, receiver = shmtree.ray.create_pair(capacity=8)
    near, far = peer(here), peer(there)
    assert ray.get(near.send.remote(sender, 0, 3, True), timeout=LONG_S) == "Sender"
    assert numbers(receiver, 3) == [0, 1, 2]
    ray.get(far.send.remote(sender, 3, 1, False), timeout=LONG_S)
    array = np.arange(3 << 20)
    sent = far.send_one.remote({"array": array, "rest": [1, None]})
    assert numbers(receiver, 1) == [3]
    got = receiver.get(timeout=LONG_S)
    assert np.array_equal(got["array"], array) and got["rest"] == [1, None]
    ray.get(sent, timeout=LONG_S)
    assert ray.get(far.wait_for_all_ack.remote(), timeout=LONG_S) == 0
    sender.close()
    receiver.close()


@pytest.mark.guarantee("ray-peer-died")
def test_killed_sender_is_reported_with_node_after_its_messages(nodes: tuple[str, str], peer: Any) -> None:
    sender, receiver = shmtree.ray.create_pair(capacity=64)
    far = peer(nodes[1])
    ray.get(far.send.remote(sender, 0, 20, False), timeout=LONG_S)
    sender.close()
    pid = kill(far)
    assert numbers(receiver, 20) == list(range(20))
    with pytest.raises(PeerDied) as told:
        receiver.get(timeout=LONG_S)
    assert told.value.peers == ((nodes[1], pid),)
    with pytest.raises(shmtree.ChannelClosed):
        receiver.get(timeout=LONG_S)
    receiver.close()


@pytest.mark.guarantee("ray-peer-died")
def test_remote_sender_reports_a_killed_receiver(nodes: tuple[str, str], peer: Any) -> None:
    near, far = peer(nodes[0]), peer(nodes[1])
    sender, receiver = shmtree.ray.create_pair(capacity=8, home=near)
    ray.get(near.keep.remote(receiver), timeout=LONG_S)
    told = far.send_until_signal.remote(sender)
    sender.close()
    receiver.close()
    pid = kill(near)
    assert ray.get(told, timeout=LONG_S) == ((nodes[0], pid),)


@pytest.mark.guarantee("ray-latest")
def test_a_latest_is_read_on_every_node_and_outlives_gateways(nodes: tuple[str, str], peer: Any) -> None:
    latest = shmtree.ray.Latest()
    far = peer(nodes[1])
    weights = {"layers": [np.full(50_000, 1.0)]}
    assert latest.publish(weights) == 1
    version, first = ray.get(far.look.remote(latest, 0), timeout=LONG_S)
    assert (version, first) == (1, 1.0)
    for node in nodes:
        kill_gateway(node)
    looking = far.look.remote(latest, 1)
    weights["layers"][0] += 1
    assert latest.publish(weights) == 2
    assert ray.get(looking, timeout=LONG_S) == (2, 2.0)
    assert ray.get(far.publish.remote(latest, {"layers": [np.full(50_000, 3.0)]}), timeout=LONG_S) == 3
    assert latest.get(2, timeout=LONG_S)[1]["layers"][0][0] == 3.0


def test_gateways_and_keepers_end_with_their_job(nodes: tuple[str, str]) -> None:
    program = """
import ray, shmtree.ray
ray.init("auto")
shmtree.ray.create_pair()
print(ray.get_runtime_context().get_job_id())
"""
    address = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LONG_S, env={**os.environ, **address}
    )
    namespace = f"shmtree-{done.stdout.split()[-1]}"
    deadline = time.monotonic() + LONG_S
    while any(each["namespace"] == namespace for each in ray.util.list_named_actors(all_namespaces=True)):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_objects_of_the_store_are_read_in_place(nodes: tuple[str, str]) -> None:
    value = {"array": np.arange(100_000), "nested": [1, (2.0, "three")]}
    got = shmtree.ray.get(shmtree.ray.put(value))
    assert np.array_equal(got["array"], value["array"]) and got["nested"] == value["nested"]
    assert not got["array"].flags.writeable
    copies = shmtree.ray.get([shmtree.ray.put(value)], copy=True)
    assert copies[0]["array"].flags.writeable


def put_until_full(sender: Any, first: int) -> int:
    for number in range(first, 100):
        try:
            sender.put((number, ""), timeout=2)
        except queue.Full:
            return number - first
    return 100 - first


def test_stopped_remote_receiver_blocks_the_sender_without_loss(nodes: tuple[str, str], peer: Any) -> None:
    here, there = nodes
    sender, receiver = shmtree.ray.create_pair(capacity=8, home=here)
    far = peer(there)
    pid = ray.get(far.pid.remote(), timeout=LONG_S)
    receiving = far.receive_all.remote(receiver)
    receiver.close()
    sender.put((0, ""), timeout=LONG_S)
    time.sleep(1)
    os.kill(pid, signal.SIGSTOP)
    try:
        put = 1 + put_until_full(sender, 1)
        assert 8 <= put <= 1 + 2 * 8
    finally:
        os.kill(pid, signal.SIGCONT)
    for number in range(put, 100):
        sender.put((number, ""), timeout=LONG_S)
    sender.close()
    assert ray.get(receiving, timeout=LONG_S) == list(range(100))


def test_stream_continues_while_the_object_stores_are_full(nodes: tuple[str, str], peer: Any) -> None:
    here, there = nodes
    sender, receiver = shmtree.ray.create_pair(capacity=4, home=here)
    far, hogs = peer(there), [on(node, Hog) for node in nodes]
    assert ray.get([hog.fill.remote(STORE_BYTES) for hog in hogs], timeout=LONG_S) == [STORE_BYTES] * 2
    ray.get(far.send.remote(sender, 0, 1, False), timeout=LONG_S)
    sender.close()
    array = np.arange(1 << 20)
    sending = [far.send_one.remote((number, array)) for number in range(1, 8)]
    assert numbers(receiver, 1) == [0]
    for number in range(1, 8):
        got, sent = receiver.get(timeout=LONG_S)
        assert got == number and np.array_equal(sent, array)
    ray.get(sending, timeout=LONG_S)
    receiver.close()
    for hog in hogs:
        ray.kill(hog)


class Hog:
    """Fills its node's object store."""

    def fill(self, nbytes: int) -> int:
        self.views = [ray.get(ray.put(np.ones(nbytes // 10, np.uint8))) for _ in range(10)]
        return sum(view.nbytes for view in self.views)


class User:
    """An actor that uses a queue."""

    def put(self, queue: Any, first: int, count: int) -> None:
        for number in range(first, first + count):
            queue.put(number, timeout=LONG_S)
        self.queue = queue

    def get(self, queue: Any, count: int) -> list[int]:
        self.queue = queue
        return [queue.get(timeout=LONG_S) for _ in range(count)]

    def size(self) -> int:
        return int(self.queue.qsize())

    def forget(self) -> None:
        self.queue.close()


def test_queue_works_on_every_node_and_never_ends(nodes: tuple[str, str]) -> None:
    here, there = nodes
    shared = shmtree.ray.Queue(maxsize=32, home=here)
    near, far, other = on(here, User), on(there, User), on(there, User)
    getters = [on(here, User), on(there, User), on(there, User)]
    putting = [each.put.remote(shared, 1000 * i, 100) for i, each in enumerate((near, far, other))]
    got = [each.get.remote(shared, 60) for each in getters]
    parts = [[shared.get(timeout=LONG_S) for _ in range(60)], *ray.get(got, timeout=LONG_S)]
    for node in nodes:
        kill_gateway(node)
    parts.append([shared.get(timeout=LONG_S) for _ in range(60)])
    ray.get(putting, timeout=LONG_S)
    assert sorted(itertools.chain(*parts)) == [1000 * i + n for i in range(3) for n in range(100)]
    assert shared.empty() and not shared.full() and shared.maxsize == 32
    with pytest.raises(queue.Empty):
        shared.get(timeout=0.3)
    ray.get([each.forget.remote() for each in (near, far, other, *getters)], timeout=LONG_S)
    late = on(there, User)
    ray.get(late.put.remote(shared, 7, 3), timeout=LONG_S)
    assert [shared.get(timeout=LONG_S) for _ in range(3)] == [7, 8, 9]
    for number in range(32):
        shared.put(number)
    assert shared.full() and ray.get(late.size.remote(), timeout=LONG_S) == 32
    with pytest.raises(queue.Full):
        shared.put_nowait(0)
    shared.close()
    with pytest.raises(shmtree.ChannelClosed):
        shared.get(timeout=1)


AFTER_THE_JOB = """
import ray
import shmtree.ray
from shmtree.errors import ChannelClosed

ray.init(num_cpus=1, object_store_memory=80 << 20, include_dashboard=False, log_to_driver=False)
kept = [*shmtree.ray.create_pair(), shmtree.ray.Queue(2), shmtree.ray.Latest(), *shmtree.ray.create_pair()]
buffer = shmtree.ray.ReplayBuffer(10, example={"value": 0})
kept[2].put(1)
kept[4].put(1)
ray.put(kept[5])
buffer.add({"value": 1})
ray.shutdown()
try:
    kept[2].qsize()
except ChannelClosed:
    print("qsize refused")
for each in kept[:4]:
    each.close()
del kept, each
try:
    buffer.sample(1)
except ChannelClosed:
    print("sample refused")
buffer.close()
print("another job:", ray.is_initialized())
"""


def test_ends_that_outlive_their_job_start_no_other_job() -> None:
    environment = {**os.environ, "RAY_ADDRESS": "local"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", AFTER_THE_JOB],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LONG_S,
    )
    assert done.stdout == "qsize refused\nsample refused\nanother job: False\n", done.stderr
    assert done.returncode == 0
