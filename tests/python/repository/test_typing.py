"""Types of ends and queues, as type checkers and programs that read annotations see them."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import shmtree

PROGRAM = """
from __future__ import annotations

from typing import Any

from typing_extensions import assert_type

import shmtree

pair: tuple[shmtree.Sender[int], shmtree.Receiver[int]] = shmtree.create_pair()
sender, receiver = pair
assert_type(sender.put(1), int)
assert_type(receiver.get(), int)
assert_type(receiver.get_many(2), list[int])
assert_type([item for item in receiver], list[int])
sender.put_many([1, 2])
queue: shmtree.Queue[str] = shmtree.Queue()
assert_type(queue.get(), str)
opened: shmtree.Receiver[bytes] = shmtree.open_receiver("x")
assert_type(opened.get_nowait(), bytes)


async def wait(receiver: shmtree.Receiver[int], sender: shmtree.Sender[int]) -> None:
    assert_type(await receiver.get_async(), int)
    async for item in receiver:
        assert_type(item, int)
    await sender.put_async(1)


sends, receives = shmtree.create_pair()
assert_type(receives, shmtree.Receiver[Any])
in_arena: tuple[shmtree.Sender[int], shmtree.Receiver[int]] = shmtree.default_arena().create_pair()
latest = shmtree.Latest[float](name="x")
assert_type(latest.publish(1.0), int)
assert_type(latest.get(), tuple[int, float])
found: shmtree.Latest[float] = shmtree.Latest.open("x")
broadcast: shmtree.Broadcast[str] = shmtree.Broadcast()
assert_type(broadcast.put("x"), int)
subscriber = broadcast.subscribe()
assert_type(subscriber, shmtree.Subscriber[str])
assert_type(subscriber.get_many(2), list[str])
assert_type([message for message in subscriber], list[str])
items = shmtree.SharedList({"id": number} for number in range(3))
assert_type(items, shmtree.SharedList[dict[str, int]])
assert_type(items[0], dict[str, int])
assert_type(items[1:], shmtree.SharedList[dict[str, int]])
assert_type([item for item in items], list[dict[str, int]])
assert_type(shmtree.SharedList.load("x")[0], Any)
client: shmtree.Client[int, str] = shmtree.Client("x")
assert_type(client.call(1), str)
assert_type(client.submit(1).result(), str)
assert_type(sender.stats()["senders_never_used"], list[int])
assert_type(latest.stats()["version"], int)
assert_type(broadcast.stats()["publishers"], list[int])
assert_type(shmtree.default_arena().stats(), shmtree.ArenaStats)
assert_type(client.stats(), shmtree.ChannelStats)
plain_latest = shmtree.Latest()
assert_type(plain_latest.get(), tuple[int, Any])


service: shmtree.Service[int] = shmtree.Service()
for request in service:
    assert_type(request, shmtree.Request[int])
    assert_type(request.value, int)
    assert_type(request.reply(1), bool)


def plain(sender: shmtree.Sender, receiver: shmtree.Receiver) -> None:
    sender.put(object())
    assert_type(receiver.get(), Any)
"""
WRONG = """
sender.put("x")
sender.put_many(["x"])
receiver.get().upper()
queue.put(1)
latest.publish("x")
broadcast.put(1)
subscriber.get().real
client.call("x")
client.call(1).real
sender.stats()["unknown_key"]
"""


@pytest.mark.parametrize(
    "kind",
    [
        shmtree.Sender,
        shmtree.Receiver,
        shmtree.Queue,
        shmtree.JoinableQueue,
        shmtree.Latest,
        shmtree.Broadcast,
        shmtree.Subscriber,
    ],
)
def test_ends_and_queues_can_be_subscripted(kind):
    of_int = kind[int]
    assert typing.get_origin(of_int) is kind
    assert typing.get_args(of_int) == (int,)


def test_stats_have_the_keys_of_their_types():
    sender, _receiver = shmtree.create_pair()
    tasks, latest, broadcast = shmtree.JoinableQueue(), shmtree.Latest(), shmtree.Broadcast()
    rows = shmtree.replay.ReplayBuffer(100, example={"reward": 0.0, "done": False})
    assert sender.stats().keys() | {"unfinished"} == set(shmtree.ChannelStats.__annotations__)
    assert tasks.stats().keys() == set(shmtree.ChannelStats.__annotations__)
    assert latest.stats().keys() == set(shmtree.LatestStats.__annotations__)
    assert broadcast.stats().keys() == set(shmtree.BroadcastStats.__annotations__)
    assert shmtree.default_arena().stats().keys() == set(shmtree.ArenaStats.__annotations__)
    limits = {"inserted", "sampled"}
    assert rows.stats().keys() | limits == set(shmtree.replay.ReplayStats.__annotations__)


def test_client_has_the_types_of_requests_and_replies():
    assert typing.get_args(shmtree.Client[int, str]) == (int, str)


def test_subscripted_latest_and_broadcast_work_like_the_classes():
    latest, broadcast = shmtree.Latest[int](), shmtree.Broadcast[int]()
    latest.publish(3)
    assert latest.get() == (1, 3)
    reader = broadcast.subscribe()
    broadcast.put(4)
    assert reader.get(timeout=60) == 4
    again = pickle.loads(pickle.dumps(latest))
    assert type(again) is shmtree.Latest and again.get() == (1, 3)


def test_subclass_of_a_subscripted_class_works_like_the_class():
    sender, receiver = shmtree.create_pair()

    class Numbers(shmtree.Receiver[int]):
        pass

    numbers = Numbers._of(receiver._channel)
    sender.put(1)
    assert numbers.get(timeout=60) == 1
    assert isinstance(numbers, shmtree.Receiver)


def test_type_checkers_know_the_item_type_of_a_channel(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + WRONG)
    lines = PROGRAM.count("\n")
    package = str(Path(shmtree.__file__).parents[1])
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--follow-imports=silent",
            "--cache-dir",
            str(tmp_path / "cache"),
            str(program),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | ({} if "site-packages" in package else {"MYPYPATH": package}),
        timeout=250,
    )
    wrong = sorted(
        {
            int(line.split(":")[1])
            for line in ran.stdout.splitlines()
            if line.startswith("program.py:") and ": error:" in line
        }
    )
    assert wrong == [lines + at for at in range(2, 12)], ran.stdout + ran.stderr
