"""Wake-ups reach processes in other network namespaces.

Processes that cannot be woken find their messages by polling.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shmtree
from shmtree._ipc import wake_hub
from shmtree.replay import ReplayBuffer

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
PR_SET_DUMPABLE = 4
PATIENCE = 120

may_make_namespaces = pytest.mark.skipif(
    subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode != 0,
    reason="this user may not make a network namespace",
)


may_make_user_namespaces = pytest.mark.skipif(
    subprocess.run(["unshare", "--user", "true"], capture_output=True, check=False).returncode != 0,
    reason="this user may not make a user namespace",
)


class Elsewhere:
    """A process that puts `value` at each call of put().

    If foreign, it has new namespaces, by default for the network.
    """

    def __init__(
        self, put: Callable[[object], object], value: object, foreign: bool, namespaces: int = CLONE_NEWNET
    ) -> None:
        self._go_read, self._go = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            ok = not foreign or leave_namespaces(namespaces)
            while ok and os.read(self._go_read, 1) == b"1":
                put(value)
            os._exit(not ok)

    def put(self) -> None:
        os.write(self._go, b"1")

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(self, *_: object) -> None:
        os.write(self._go, b"0")
        assert os.waitpid(self._pid, 0)[1] == 0
        os.close(self._go_read)
        os.close(self._go)


def ends_of(kind: str, arena: shmtree.Arena) -> tuple[Callable[[object], object], Any]:
    if kind == "pair":
        sender, receiver = arena.create_pair()
        return sender.put, receiver
    if kind == "queue":
        queue = arena.Queue()
        return queue.put, queue
    broadcast = shmtree.Broadcast(8)
    return broadcast.put, broadcast.subscribe()


def calls_of(kind: str, arena: shmtree.Arena) -> tuple[Callable[[object], object], Callable[[], object]]:
    if kind == "latest":
        latest = shmtree.Latest()
        return latest.publish, lambda: latest.get(timeout=PATIENCE)[1]
    if kind == "replay":
        buffer = ReplayBuffer(8, example=0, arena=arena)
        return buffer.add, lambda: buffer.sample(1, timeout=PATIENCE).data[0]
    put, receiver = ends_of(kind, arena)
    return put, lambda: receiver.get(timeout=PATIENCE)


def in_child(act: Callable[[], bool]) -> int:
    """Runs `act` in a forked child. Returns the exit status: 0 if `act` returns True."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(not act())
        finally:
            traceback.print_exc()
            os._exit(2)
    return os.waitpid(pid, 0)[1]


def leave_namespaces(namespaces: int = CLONE_NEWNET) -> bool:
    return ctypes.CDLL(None, use_errno=True).unshare(namespaces) == 0


class Waiter:
    """A process that blocks in `get`. If foreign, it has its own network namespace."""

    def __init__(self, get: Callable[[], object], is_right: Callable[[Any], bool], foreign: bool = False) -> None:
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os._exit(not ((not foreign or leave_namespaces()) and is_right(get())))
            finally:
                traceback.print_exc()
                os._exit(2)

    def wait_until_asleep(self) -> None:
        """Returns once the process is in a futex wait."""
        path = Path(f"/proc/{self._pid}/wchan")
        while "futex" not in path.read_text():
            assert os.waitpid(self._pid, os.WNOHANG) == (0, 0), "the process did not wait"

    def __enter__(self) -> Waiter:
        return self

    def __exit__(self, *_: object) -> None:
        assert os.waitpid(self._pid, 0)[1] == 0


@pytest.mark.guarantee("wake-namespaces")
@may_make_namespaces
@pytest.mark.parametrize("kind", ["pair", "queue", "broadcast"])
def test_fileno_is_readable_after_a_put_in_another_netns(kind: str, arena: shmtree.Arena) -> None:
    put, receiver = ends_of(kind, arena)
    with Elsewhere(put, "foreign", True) as foreign, Elsewhere(put, "near", False) as near:
        descriptor = receiver.fileno()
        for value, sender in 2 * [("foreign", foreign), ("near", near)]:
            assert not select.select([descriptor], [], [], 0)[0]
            sender.put()
            assert select.select([descriptor], [], [], PATIENCE)[0]
            assert receiver.get(timeout=PATIENCE) == value
    receiver.close()


@pytest.mark.guarantee("wake-namespaces")
@may_make_namespaces
@pytest.mark.parametrize("kind", ["pair", "queue", "broadcast"])
def test_coroutine_is_woken_from_another_netns(
    kind: str, arena: shmtree.Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disables the periodic checks of a loop, so that only a wake-up ends the wait."""
    monkeypatch.setattr(wake_hub, "SLICE_S", 10 * PATIENCE)
    put, receiver = ends_of(kind, arena)

    async def main(senders: list[tuple[str, Elsewhere]]) -> None:
        for value, sender in senders:
            getting = asyncio.ensure_future(receiver.get_async(timeout=PATIENCE))
            for _ in range(10):
                await asyncio.sleep(0)
            sender.put()
            assert await getting == value

    with Elsewhere(put, "foreign", True) as foreign, Elsewhere(put, "near", False) as near:
        asyncio.run(main(2 * [("foreign", foreign), ("near", near)]))
    receiver.close()


@pytest.mark.guarantee("wake-namespaces")
@may_make_namespaces
@pytest.mark.parametrize("kind", ["pair", "queue", "broadcast", "latest", "replay"])
def test_sleeping_call_is_woken_from_another_netns(kind: str, arena: shmtree.Arena) -> None:
    put, get = calls_of(kind, arena)
    with Elsewhere(put, 7, True) as foreign, Waiter(get, lambda got: got == 7) as waiter:
        waiter.wait_until_asleep()
        foreign.put()


@may_make_namespaces
@pytest.mark.parametrize("kind", ["pair", "queue", "broadcast", "latest", "replay"])
def test_sleeping_call_in_another_netns_is_woken(kind: str, arena: shmtree.Arena) -> None:
    put, get = calls_of(kind, arena)
    with Waiter(get, lambda got: got == 7, foreign=True) as waiter:
        waiter.wait_until_asleep()
        put(7)


@may_make_namespaces
def test_latest_get_async_sees_a_publish_in_another_netns(arena: shmtree.Arena) -> None:
    latest = shmtree.Latest()
    with Elsewhere(latest.publish, 7, True) as foreign:

        async def main() -> None:
            getting = asyncio.ensure_future(latest.get_async(timeout=PATIENCE))
            await asyncio.sleep(0)
            foreign.put()
            assert (await getting)[1] == 7

        asyncio.run(main())
    latest.close()


@pytest.mark.guarantee("wake-namespaces")
@pytest.mark.parametrize("kind", ["pair", "queue", "broadcast"])
def test_undumpable_process_is_woken(kind: str, arena: shmtree.Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake_hub, "SLICE_S", 10 * PATIENCE)
    put, receiver = ends_of(kind, arena)
    with Elsewhere(put, "x", False) as sender:

        def listen() -> bool:
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)
            got = []
            for _ in range(2):
                descriptor = receiver.fileno()
                got.append(not select.select([descriptor], [], [], 0)[0])
                sender.put()
                got.append(select.select([descriptor], [], [], PATIENCE)[0] == [descriptor])
                got.append(receiver.get(timeout=PATIENCE) == "x")

            async def main() -> bool:
                getting = asyncio.ensure_future(receiver.get_async(timeout=PATIENCE))
                for _ in range(10):
                    await asyncio.sleep(0)
                sender.put()
                return bool(await getting == "x")

            got += [asyncio.run(main()), asyncio.run(main())]
            return all(got)

        assert in_child(listen) == 0
    receiver.close()


@may_make_namespaces
@pytest.mark.parametrize("kind", ["pair", "queue", "broadcast"])
def test_undumpable_process_finds_messages_of_another_netns(kind: str, arena: shmtree.Arena) -> None:
    """No wake-up reaches the process, so it finds the message by its check every 250 ms."""
    put, receiver = ends_of(kind, arena)
    with Elsewhere(put, "x", True) as foreign:

        def listen() -> bool:
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)
            foreign.put()
            got = [shmtree.wait([receiver], timeout=PATIENCE) == [receiver], receiver.get(timeout=PATIENCE) == "x"]

            async def main() -> bool:
                getting = asyncio.ensure_future(receiver.get_async(timeout=PATIENCE))
                for _ in range(10):
                    await asyncio.sleep(0)
                foreign.put()
                return bool(await getting == "x")

            got.append(asyncio.run(main()))
            return all(got)

        assert in_child(listen) == 0
    receiver.close()


@may_make_user_namespaces
@pytest.mark.parametrize("kind", ["pair", "queue", "broadcast", "latest", "replay"])
def test_sleeping_call_is_woken_from_a_child_user_namespace(kind: str, arena: shmtree.Arena) -> None:
    put, get = calls_of(kind, arena)
    with Elsewhere(put, 7, True, CLONE_NEWUSER) as sandboxed, Waiter(get, lambda got: got == 7) as waiter:
        waiter.wait_until_asleep()
        sandboxed.put()


@may_make_user_namespaces
@pytest.mark.parametrize("kind", ["pair", "queue", "broadcast"])
def test_wait_finds_a_message_from_a_child_user_namespace(kind: str, arena: shmtree.Arena) -> None:
    """The sender may not open the pipe of the receiver, which finds the message by its check every 250 ms."""
    put, receiver = ends_of(kind, arena)
    with Elsewhere(put, "sandboxed", True, CLONE_NEWUSER) as sandboxed, Elsewhere(put, "near", False) as near:
        descriptor = receiver.fileno()
        sandboxed.put()
        assert shmtree.wait([receiver], timeout=PATIENCE) == [receiver]
        assert receiver.get(timeout=PATIENCE) == "sandboxed"
        near.put()  # the descriptor still works
        assert select.select([descriptor], [], [], PATIENCE)[0]
        assert receiver.get(timeout=PATIENCE) == "near"
    receiver.close()
