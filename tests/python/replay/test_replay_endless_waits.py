"""`sample` raises instead of waiting forever if no other thread or process can add a row."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGIN = """
import multiprocessing, os, pickle, queue, signal, threading, time
import numpy as np
import shmtree
from shmtree.replay import Episodes, Fifo, Limits, RateLimit, ReplayBuffer, Sampling

def told(call):
    try:
        call()
    except RuntimeError as error:
        print(error)
"""


def run(program: str) -> list[str]:
    """Runs a program that ends by itself, and returns the lines that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.guarantee("replay-lone-thread")
@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("told(lambda: ReplayBuffer(10, example=0).sample(1))", "there are no rows to sample"),
        ("told(lambda: next(ReplayBuffer(10, example=0).batches(1)))", "there are no rows to sample"),
        (
            "b = ReplayBuffer(10, example=0, episodes=Episodes(done=None))\ntold(lambda: b.sample_sequences(1, 2))",
            "there are no rows",
        ),
        (
            "b = ReplayBuffer(10, example={'x': 0, 'done': False}, episodes=Episodes(next='x'))\n"
            "b.add({'x': 0, 'done': False})\ntold(lambda: b.sample(1))",
            "there are no rows to sample",
        ),
        (
            "b = ReplayBuffer(10, example=0, limits=Limits(rate=RateLimit(1, min_size=3)))\nb.add(1)\n"
            "told(lambda: b.sample(2))",
            "the rate limit allows 0 of 2 samples until more rows are added: 1 were added",
        ),
        (
            "b = ReplayBuffer(10, example=0, sampling=Sampling(Fifo(max_times=1)))\nb.add(1)\nb.sample(1)\n"
            "told(lambda: b.sample(1))",
            "there are no rows to sample",
        ),
    ],
)
def test_sample_raises_if_only_its_thread_could_add_rows(program, why):
    (line,) = run(program)
    assert line.startswith(f"this call would wait forever, because only this thread can add rows: {why}")
    assert line.endswith("or set timeout= to get queue.Empty")


def test_lone_sample_with_a_timeout_raises_empty():
    program = """
buffer = ReplayBuffer(10, example=0)
for timeout in (0, 0.01):
    try:
        buffer.sample(1, timeout=timeout)
    except queue.Empty:
        print("empty")
buffer.add(3)
print(buffer.sample(2).data.tolist())
"""
    assert run(program) == ["empty", "empty", "[3, 3]"]


OTHERS = {
    "a thread": "threading.Timer(0.2, add).start()",
    "a signal handler": "signal.signal(signal.SIGALRM, lambda *_: add()); signal.setitimer(signal.ITIMER_REAL, 0.2)",
    "a forked process": "multiprocessing.get_context('fork').Process(target=add_later).start()",
    "a process by its name": """
buffer = ReplayBuffer(10, example=0, name=f"lone-{os.getpid()}")
os.fork() or (time.sleep(0.2), ReplayBuffer.open(f"lone-{os.getppid()}").add(3), os._exit(0))
""",
    "a bare fork": "os.fork() or (add_later(), os._exit(0))",
}


@pytest.mark.parametrize("other", OTHERS)
def test_sample_waits_if_others_could_add_rows(other):
    program = f"""
buffer = ReplayBuffer(10, example=0)
def add():
    buffer.add(3)
def add_later():
    time.sleep(0.2)
    add()
{OTHERS[other]}
print(buffer.sample(1).data.tolist())
"""
    assert run(program) == ["[3]"]


@pytest.mark.parametrize(
    "give",
    [
        "pickle.dumps(buffer)",
        "shmtree.pack({'buffer': buffer})",
        "shmtree.create_pair()[0].put(buffer)",
        "ReplayBuffer(10, example=0, name=f'lone-{os.getpid()}', exist_ok=True); buffer = _",
        "os.fork() or os._exit(0)",
    ],
)
def test_sample_waits_if_the_buffer_was_sent(give):
    program = f"""
buffer = ReplayBuffer(10, example=0)
_ = {give}
print(buffer._owner is not None and buffer._owner.is_alone)
"""
    assert run(program) == ["False"]
