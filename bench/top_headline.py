"""Checks the first line of `shmtree top` beside five idle services and a program of another user.

    python -m bench.top_headline [--looks 20]

A program of three processes passes messages through two channels, and one of its processes is slow. Each look starts
`shmtree top --once`, and is right if the first line names the slow process. The looks go through the three stages in
turn. Without root, the other program belongs to the same user. It has a bottleneck of its own, in another line. Run it
where no other program uses shmtree: a blocked one may come first.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing as mp
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import shmtree

_NOBODY = 65534
_SLOW_S = 0.02  # time of the slow process for a message
_STAGES = ("source", "middle", "sink")


def _serve(name: str) -> None:
    service: shmtree.Service[object] = shmtree.Service(name)
    for request in service:
        request.reply(request.value)


def _stage(
    receiver: shmtree.Receiver[int] | None, sender: shmtree.Sender[int] | None, seconds: float, uid: int | None = None
) -> None:
    if uid is not None:
        os.setuid(uid)
    number = 0
    with contextlib.suppress(shmtree.PeerDied):  # at the end, the other processes are killed
        while True:
            number = number + 1 if receiver is None else receiver.get()
            time.sleep(seconds)
            if sender is not None:
                sender.put(number)


@contextlib.contextmanager
def started(*processes: mp.Process) -> Iterator[None]:
    for each in processes:
        each.start()
    try:
        yield
    finally:
        for each in processes:
            each.kill()
            each.join()


def _pipeline(prefix: str, slow: str, uid: int | None = None) -> list[mp.Process]:
    """Returns the processes of a program, which are not started yet."""
    (to_middle, from_source), (to_sink, from_middle) = (
        shmtree.create_pair(4, name=f"{prefix}/{each}") for each in ("raw", "made")
    )
    ends = {"source": (None, to_middle), "middle": (from_source, to_sink), "sink": (from_middle, None)}
    return [
        mp.Process(target=_stage, args=(*ends[each], _SLOW_S * (each == slow), uid), name=f"{prefix}-{each}")
        for each in _STAGES
    ]


def _wait_for_messages(name: str) -> None:
    """Blocks until ten messages have passed the channel of this name."""
    while True:
        channels = [each for arena in shmtree.observe()["arenas"] for each in arena.get("channels", ())]
        if any(name in each["names"] and each["received"] >= 10 for each in channels):
            return
        time.sleep(0.05)


def headline() -> str:
    command = [sys.executable, "-m", "shmtree", "top", "--once"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--looks", type=int, default=20)
    looks = parser.parse_args().looks
    mp.set_start_method("spawn")  # so that each process has only the ends of its stage
    prefix = f"headline-{os.getpid()}"
    services = [f"{prefix}/service{number}" for number in range(5)]
    with started(*(mp.Process(target=_serve, args=(name,)) for name in services)):
        clients = [shmtree.Client(name, timeout=60) for name in services]
        for each in clients:
            each.call(1, timeout=60)  # from now on, the services are idle
        others = _pipeline(f"{prefix}-other", "source", _NOBODY if os.getuid() == 0 else None)
        right = 0
        with started(*others):
            for number in range(looks):
                slow = number % len(_STAGES)
                stages = _pipeline(f"{prefix}-{number}", _STAGES[slow])
                with started(*stages):
                    _wait_for_messages(f"{prefix}-{number}/made")
                    found = headline()
                if found.endswith(f", {stages[slow].pid}."):
                    right += 1
                else:
                    print(f"not {stages[slow].pid}, the slow {_STAGES[slow]}: {found}")
        print(f"right in {right} of {looks} looks")


if __name__ == "__main__":
    main()
