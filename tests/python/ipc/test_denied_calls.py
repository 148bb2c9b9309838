"""System calls that a seccomp filter refuses, as older container profiles do. Calls work or raise a clear error."""

import ctypes
import errno
import platform
import struct
import subprocess
import sys

import pytest

NUMBERS = {
    "x86_64": {"pidfd_open": 434, "socket": 41, "sendto": 44, "sendmsg": 46, "io_setup": 206, "io_submit": 209},
    "aarch64": {"pidfd_open": 434, "socket": 198, "sendto": 206, "sendmsg": 211, "io_setup": 0, "io_submit": 2},
}.get(platform.machine())

pytestmark = pytest.mark.skipif(NUMBERS is None, reason="the numbers of the system calls are not known here")

#: First lines of each program.
PREPARE = """
import asyncio, errno, os, select, signal, sys
sys.path.insert(0, {folder!r})
from test_denied_calls import deny
import shmtree
from shmtree import multiprocessing as shm_mp

def peer(sender, receiver):
    child = os.fork()
    if child == 0:
        receiver.close()
        told = os.read(go, 1)
        sender.put(1)
        os.read(go, 1)
        os.kill(os.getpid(), signal.SIGKILL)
    sender.close()
    return child

go, teller = os.pipe()
deny({calls!r}, {error})

def refusal(call):
    before = len(os.listdir("/proc/self/fd"))
    try:
        call()
    except OSError as error:
        assert error.errno == {error}, error
        assert "seccomp" in str(error), error
        assert len(os.listdir("/proc/self/fd")) == before, "a descriptor was left open"
        return str(error)
    raise AssertionError("not refused")
"""


def deny(calls: list[str], error: int) -> None:
    """Makes these system calls fail in this process and its children."""
    assert NUMBERS is not None
    load, jump_if_equal, answer = 0x20, 0x15, 0x06
    fail, allow = 0x00050000 | error, 0x7FFF0000
    program = [(load, 0, 0, 0)]
    for call in calls:
        program += [(jump_if_equal, 0, 1, NUMBERS[call]), (answer, 0, 0, fail)]
    program.append((answer, 0, 0, allow))
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *each) for each in program))
    filter_ = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, set_seccomp, with_filter = 38, 22, 2
    assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0
    assert libc.prctl(set_seccomp, with_filter, filter_, 0, 0) == 0


def run(calls: list[str], error: int, program: str) -> None:
    begin = PREPARE.format(folder=__file__.rpartition("/")[0], calls=calls, error=error)
    done = subprocess.run(
        [sys.executable, "-c", begin + program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("error", [errno.EPERM, errno.EACCES, errno.ENOSYS])
def test_without_pidfd_open_fileno_raises_and_waits_still_work(error: int) -> None:
    run(
        ["pidfd_open"],
        error,
        """
sender, receiver = shmtree.create_pair()
child = peer(sender, receiver)
assert "pidfd_open" in refusal(receiver.fileno)
here, there = shm_mp.Pipe()
assert "shmtree.wait()" in refusal(here.fileno)

os.write(teller, b"1")
assert shmtree.wait([receiver], timeout=60) == [receiver]
assert asyncio.run(receiver.get_async(timeout=60)) == 1
os.write(teller, b"1")
assert shmtree.wait([receiver], timeout=60) == [receiver]
os.waitpid(child, 0)
try:
    receiver.get(timeout=60)
except shmtree.PeerDied:
    pass
""",
    )


def test_without_sockets_descriptors_signal_messages_and_deaths() -> None:
    run(
        ["socket", "sendto", "sendmsg"],
        errno.EPERM,
        """
sender, receiver = shmtree.create_pair()
child = peer(sender, receiver)
descriptor = receiver.fileno()
os.write(teller, b"1")
assert select.select([descriptor], [], [], 60)[0]
assert receiver.get(timeout=60) == 1
os.write(teller, b"1")
assert select.select([descriptor], [], [], 60)[0]
os.waitpid(child, 0)
""",
    )


@pytest.mark.parametrize("call", ["io_setup", "io_submit"])
def test_without_aio_a_connection_signals_messages_but_not_space(call: str) -> None:
    run(
        [call],
        errno.EPERM,
        """
here, there = shm_mp.Pipe()
for _ in range(2):
    assert select.select([here], [here], [], 0) == ([], [], [])
    there.send(1)
    assert select.select([here], [], [], 60)[0] == [here]
    assert here.recv() == 1
before = len(os.listdir("/proc/self/fd"))
here.fileno()
assert len(os.listdir("/proc/self/fd")) == before, "a descriptor was left open"
""",
    )
