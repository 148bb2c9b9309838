"""Many channels, many arenas, little address space."""

import resource
import subprocess
import sys

import shmtree

LITTLE_ADDRESS_SPACE = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
import numpy as np, shmtree
arenas = [shmtree.Arena() for _ in range(300)]
pairs = [arena.create_pair() for arena in arenas]
for number, (sender, receiver) in enumerate(pairs):
    sender.put({"number": number, "array": np.full(20_000, number)})
for number, (sender, receiver) in enumerate(pairs):
    got = receiver.get(timeout=60)
    assert got["number"] == number and got["array"].sum() == number * 20_000
one = arenas[0].create_pair(capacity=None)
one[0].put(bytes(300 << 20))
assert len(one[1].get(timeout=60)) == 300 << 20
"""


def test_thousand_channels_work_in_one_arena() -> None:
    with shmtree.Arena(max_bytes=256 << 20) as arena:
        pairs = [arena.create_pair(capacity=4) for _ in range(1000)]
        for number, (sender, _) in enumerate(pairs):
            sender.put(number)
        assert [receiver.get(timeout=60) for _, receiver in pairs] == list(range(1000))
        used = arena.stats()["used_bytes"]
        assert used < 32 << 20
        del pairs, sender, _
        arena.trim()
        assert arena.stats()["used_bytes"] < 1 << 20


def test_three_hundred_arenas_fit_in_8_gb_of_addresses() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LITTLE_ADDRESS_SPACE], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_idle_pair_takes_less_than_a_megabyte() -> None:
    with shmtree.Arena() as arena:
        pair = arena.create_pair()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        more = arena.create_pair()
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1024  # KiB
        assert arena.stats()["committed_bytes"] < 1 << 20
        for end in (*pair, *more):
            end.close()
