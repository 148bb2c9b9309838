"""Damages each word of an arena's memory in turn, receives, and prints how often each outcome occurred.

The argument selects what to receive: the messages of a "channel" or a "broadcast", or a message that contains a
"receiver" or a "subscriber". For each word and each value, a forked child creates new objects, overwrites the word with
the value, and receives twice. A word that is the handle of a block is also overwritten with the handle of each other
block.
"""

from __future__ import annotations

import collections
import os
import queue
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import shmtree

PAGE = 4096
INLINE, LONG = "short", b"x" * 3000  # the first is stored in a slot, the second in its own block
MIN_HANDLE = 1 << 59  # smallest handle of a block, as src/memory/layout.h packs it; the lower bits are a generation


def make(what: str) -> tuple[Callable[[float], Any], Any]:
    """Returns a call that receives the messages, and the objects that it needs."""
    arena = shmtree.Arena(64 << 20)
    broadcast = shmtree.Broadcast(arena=arena)
    subscriber = broadcast.subscribe()
    if what == "broadcast":
        broadcast.put_many([INLINE, LONG, INLINE])
        return lambda timeout: subscriber.get(timeout=timeout), (arena, broadcast)
    sender, receiver = arena.create_pair()
    kept: list[Any] = [arena, broadcast, sender]
    if what == "channel":
        sender.put_many([INLINE, LONG, INLINE])
    elif what == "subscriber":
        sender.put(subscriber)
    else:
        kept += arena.create_pair()
        sender.put(kept[-1])
    return lambda timeout: receiver.get(timeout=timeout), kept


def memory_file() -> int:
    for number in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{number}"
        if os.path.lexists(path) and "memfd:shmtree" in os.readlink(path):
            return os.open(path, os.O_RDWR)
    raise AssertionError("no arena")


def _pages(file: int) -> Iterator[tuple[int, bytes]]:
    """Yields the offset and the contents of each page outside of the file's holes."""
    at = 0
    while True:
        try:
            at = os.lseek(file, at, os.SEEK_DATA)
        except OSError:
            return
        end = os.lseek(file, at, os.SEEK_HOLE)
        while at < end:
            yield at, os.pread(file, PAGE, at)
            at += PAGE


def words_of(file: int) -> list[tuple[int, int]]:
    """Returns offset and value of each word that is not 0, and of all others in the same cache lines."""
    found = []
    for at, page in _pages(file):
        for line in range(0, PAGE, 64):
            words = struct.unpack_from("<8Q", page, line)
            if any(words) and page[line : line + 64] != b"x" * 64:
                found += [(at + line + 8 * i, word) for i, word in enumerate(words)]
    return found


def _receive(get: Callable[[float], Any], timeout: float) -> str:
    try:
        get(timeout)
    except shmtree.CorruptMessage:
        return "CorruptMessage"
    except queue.Empty:
        return "Empty"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "a value"


def _in_child(function: Callable[[], Any]) -> str:
    """Runs the function in a forked child. Returns the repr of its result, or how the child ended."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            os.write(theirs, repr(function()).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as answers:
        answer = answers.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return answer if status == 0 and answer else f"it ended with {status}"


def _damage_one(what: str, at: int, value: int) -> list[str]:
    get, _kept = make(what)
    os.pwrite(memory_file(), struct.pack("<Q", value), at)
    return [_receive(get, 0.02), _receive(get, 0)]


def _words(what: str) -> list[tuple[int, int]]:
    _, _kept = make(what)
    return words_of(memory_file())


def _is_handle(word: int) -> bool:
    return word >= MIN_HANDLE and 0 < word & 0xFFFFFFFF < 256


def main(what: str) -> None:
    outcomes: collections.Counter[str] = collections.Counter()
    words = eval(_in_child(lambda: _words(what)))
    handles = {word for _, word in words if _is_handle(word)}
    for at, before in words:
        values = {0, before + 1, 2**64 - 6} | (handles if _is_handle(before) else set())
        for value in values - {before}:
            outcome = _in_child(partial(_damage_one, what, at, value))
            for each in eval(outcome) if outcome.startswith("[") else [f"{outcome}: {value} at {at:#x}"]:
                outcomes[each] += 1
    print(f"{len(words)} words, {len(handles)} handles")
    for outcome, count in outcomes.items():
        print(f"{count} times {outcome}")


if __name__ == "__main__":
    main(sys.argv[1])
