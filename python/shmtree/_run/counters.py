"""The counters of a process of `shmtree run`: a file with one row for each place that creates queues or pipes.

Each process maps a file of its own, and adds to it in place. So the figures of a killed process stay in its file, and
no process waits for another. A forked process gets a new file with the same rows, so that objects keep their row.

A row has `CELLS` 64-bit numbers and then its key in UTF-8. Threads add without a lock: on a Python without a GIL, a
few additions may be lost.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

#: Indexes into the cells of a row. `PUTS` and `GETS` are the numbers of calls. The next indexes are relative to them.
PUTS, GETS = 0, 5
NS, SAMPLES, CPU_NS = 1, 2, 3
PUT_BYTES, POLL_NS = 4, 9
OBJECTS, SHARED_TENSORS = 10, 11
#: Trials with messages of standard queues and pipes: number of messages, and CPU time of three steps. These are
#: pickling and unpickling, the same with a pipe in between, and a put and a get with shmtree.
TRIALS, PICKLE_NS, STANDARD_NS, OURS_NS = 12, 13, 14, 15
#: CPU time of the threads that send the messages of standard queues, in a run with `--profile`.
FEED_NS = 16
#: CPU time of the import of shmtree. Used only in the first row.
IMPORT_NS = 17

#: Bytes of a message that a pipe holds.
CHUNK = 1 << 16

CELLS = 24
_ROWS = 256
_ROW_CELLS = 64
_SIZE = _ROWS * _ROW_CELLS * 8
_REST = "other\t\t"  # key of the places for which there is no row left

_directory: str | None = getattr(sys, "_shmtree_run", {}).get("directory")
#: The first row is for objects without a key, and for objects that do not pass data of the program.
HIDDEN = "\t\t"
_offsets: dict[str, int] = {HIDDEN: 0}
_lock = threading.Lock()
_mapped: mmap.mmap = mmap.mmap(-1, _SIZE)
#: Cells of all rows of this process. A fork rebinds it: look it up for each use.
cells: memoryview = memoryview(_mapped).cast("q")


def _map_new_file() -> None:
    """Maps a new file with the rows that this process knows. If there is no space for a file, the counts are
    discarded."""
    global _lock, _mapped, cells
    _lock = threading.Lock()
    _mapped = mmap.mmap(-1, _SIZE)
    with contextlib.suppress(OSError):
        path = os.path.join(_directory or "", f"{os.getpid()}-{time.time_ns()}.counters")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, _SIZE)  # now, because a full file system would later raise SIGBUS
            _mapped = mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
    cells = memoryview(_mapped).cast("q")
    for key, offset in _offsets.items():
        _write_key(key, offset)


def _write_key(key: str, offset: int) -> None:
    begin, size = (offset + CELLS) * 8, (_ROW_CELLS - CELLS) * 8
    _mapped[begin : begin + size] = key.encode()[:size].ljust(size, b"\0")


def row_of(key: str) -> int:
    """Returns the index of the first cell of the row of `key`."""
    offset = _offsets.get(key)
    if offset is not None:
        return offset
    with _lock:
        if key not in _offsets and len(_offsets) >= _ROWS - 1:
            key = _REST
        if key not in _offsets:
            _offsets[key] = len(_offsets) * _ROW_CELLS
            _write_key(key, _offsets[key])
        return _offsets[key]


def read_all(directory: Path) -> Iterator[dict[str, list[int]]]:
    """Yields the rows of each process, by key."""
    for path in sorted(directory.glob("*.counters")):
        data = path.read_bytes()
        rows: dict[str, list[int]] = {}
        numbers = memoryview(data[: len(data) // 8 * 8]).cast("q")
        for offset in range(0, len(numbers) - _ROW_CELLS + 1, _ROW_CELLS):
            key = data[(offset + CELLS) * 8 : (offset + _ROW_CELLS) * 8].rstrip(b"\0").decode(errors="replace")
            if key:
                rows[key] = list(numbers[offset : offset + CELLS])
        yield rows


if _directory is not None:
    _map_new_file()
    os.register_at_fork(after_in_child=_map_new_file)
