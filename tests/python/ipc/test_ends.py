"""Attached processes of a channel, the end of a stream, and waits for processes that died."""

from __future__ import annotations

import multiprocessing as mp
import os
import queue
import signal
import subprocess
import sys

import numpy as np
import peers
import pytest

import shmtree


def kill(child) -> None:
    os.kill(child.pid, signal.SIGKILL)


@pytest.mark.parametrize("kind", [EOFError, ValueError, BrokenPipeError, shmtree.Error])
def test_channel_closed_is_also_an_eof_value_and_pipe_error(pair, kind):
    sender, receiver = pair
    sender.close()
    with pytest.raises(kind):
        sender.put(1)
    with pytest.raises(kind):
        receiver.get()


def test_dropping_the_last_sender_ends_the_stream(arena):
    sender, receiver = arena.create_pair()
    del sender
    with pytest.raises(shmtree.ChannelClosed):
        receiver.get(timeout=60)


def test_child_that_has_not_used_its_sender_keeps_stream_open(arena, start):
    sender, receiver = arena.create_pair()
    ours, theirs = mp.Pipe()
    start(peers.hang, sender, theirs)
    ours.recv()
    sender.close()
    with pytest.raises(queue.Empty):
        receiver.get(timeout=0.1)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_get_raises_if_a_child_dies_before_its_function_runs(arena, start, method):
    sender, receiver = arena.create_pair()
    # The child fails when it unpickles its arguments, because it does not find the function.
    child = start(vanishing, sender, method=method)
    child.join(30)
    assert child.exitcode != 0
    sender.close()
    with pytest.raises((shmtree.PeerDied, shmtree.ChannelClosed)):
        receiver.get(timeout=30)


def vanishing(sender) -> None:
    raise AssertionError("not reached")


if mp.parent_process() is not None:
    del vanishing


def test_killed_sender_is_reported_after_the_last_one_exits(arena, start):
    sender, receiver = arena.create_pair()
    pipes = [mp.Pipe() for _ in range(2)]
    children = [start(peers.put_then_hang, sender, i, theirs) for i, (_, theirs) in enumerate(pipes)]
    for ours, _ in pipes:
        ours.recv()
    kill(children[0])
    assert sorted(receiver.get(timeout=30) for _ in range(2)) == [0, 1]
    with pytest.raises(queue.Empty):
        receiver.get(timeout=0.5)
    pipes[1][0].send("go")
    with pytest.raises(shmtree.PeerDied) as raised:
        receiver.get(timeout=30)
    assert raised.value.pids == (children[0].pid,)


@pytest.mark.guarantee("dead-memory-is-freed")
def test_memory_of_a_killed_receiver_is_freed(arena, start):
    sender, receiver = arena.create_pair()
    ours, theirs = mp.Pipe()
    child = start(peers.get_and_hang, receiver, theirs)
    sender.put(np.zeros(20_000_000, np.uint8))
    ours.recv()
    assert {holder.pid for holder in arena.holders()} == {child.pid}
    kill(child)
    child.join(30)
    for _ in range(3):  # 60 MB in an arena of 64 MB: fits only if the first block is free again
        sender.put(np.zeros(60_000_000, np.uint8), timeout=30)
        receiver.get()
    assert arena.holders() == []


def test_normal_exit_of_a_child_closes_its_ends_quietly(tmp_path):
    program = """if True:
        import multiprocessing as mp, shmtree
        import sys
        def child(sender):
            sender.put(1)
        if __name__ == "__main__":
            sender, receiver = shmtree.create_pair()
            process = mp.get_context("fork").Process(target=child, args=(sender,))
            process.start()
            print(receiver.get(timeout=30))
            try:
                receiver.get(timeout=30)
            except shmtree.ChannelClosed:
                print("closed")
        """
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "1\nclosed\n"
    assert ran.stderr == ""


def test_waiting_daemon_threads_do_not_disturb_exit():
    program = """if True:
        import threading, shmtree
        sender, receiver = shmtree.create_pair()
        for _ in range(4):
            threading.Thread(target=receiver.get, daemon=True).start()
        def busy():
            other, same = shmtree.create_pair()
            while True:
                other.put(b"x" * 100_000)
                same.get(copy=True)
        for _ in range(2):
            threading.Thread(target=busy, daemon=True).start()
        print("done")
        """
    for _ in range(5):
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "done\n", "")


def test_received_objects_are_collected_quietly_at_exit():
    program = """if True:
        import shmtree, numpy as np
        sender, receiver = shmtree.create_pair()
        sender.put(np.zeros(100_000))
        kept = receiver.get()
        delivery = None
        sender.put(2)
        delivery = receiver.take()
        """
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
