"""Places in a program: the line of its own code that creates an object, and the line of a library between them.

A key names the row of such an object in the counters. It is "KIND\\tFILE:LINE\\tFILE:LINE", with the line of the
program and that of the library, which is empty if the program creates the object itself.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple

from .counters import HIDDEN

_SHMTREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STDLIB = os.path.realpath(os.path.dirname(os.__file__)) + os.sep
#: Parts of paths by which files are recognised that only pass a call on.
_PASSING = (
    _SHMTREE,
    os.path.join(_STDLIB, "multiprocessing", "context.py"),
    os.path.join(_STDLIB, "multiprocessing", "queues.py"),
    os.path.join(_STDLIB, "multiprocessing", "connection.py"),
    os.sep + os.path.join("torch", "multiprocessing") + os.sep,
)
_LIBRARIES = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
_LONGEST = 130  # characters of a path: a key has to fit its row
#: Kinds of the queues inside a pool or executor, by a word of the line that creates them.
_INNER_KINDS = (
    (os.path.join("multiprocessing", "pool.py"), "_inqueue", "Pool tasks"),
    (os.path.join("multiprocessing", "pool.py"), "_outqueue", "Pool results"),
    (os.path.join("multiprocessing", "pool.py"), "_change_notifier", ""),
    (os.path.join("joblib", "pool.py"), "", "Pool pipe"),
    (os.path.join("futures", "process.py"), "_call_queue", "Executor calls"),
    (os.path.join("futures", "process.py"), "super().__init__", "Executor calls"),
    (os.path.join("futures", "process.py"), "_result_queue", "Executor results"),
)


class Site(NamedTuple):
    kind: str  #: empty for an object that is no part of the program's data
    place: str  #: file and line in the program
    via: str  #: file and line in a library

    @property
    def key(self) -> str:
        return "\t".join(self) if self.kind else HIDDEN


def here(kind: str) -> Site:
    """Returns the place that creates an object of this kind now."""
    inner = _first(sys._getframe(1), lambda file: not (file.startswith(_PASSING[:4]) or _PASSING[4] in file))
    if inner is None:
        return Site(kind, "", "")
    file = inner.f_code.co_filename
    for end, word, inner_kind in _INNER_KINDS:
        if file.endswith(os.sep + end) and word in linecache.getline(file, inner.f_lineno):
            kind = inner_kind
            break
    outer = _first(inner, lambda file: not (_is_standard(file) or _is_installed(file)))
    if outer is None:  # the program is itself a library, started with -m or a script that pip wrote
        outer = _first(inner, lambda file: not _is_standard(file))
    places = [f"{each.f_code.co_filename[-_LONGEST:]}:{each.f_lineno}" for each in (outer or inner, inner)]
    return Site(kind, places[0], places[1] if places[1] != places[0] else "")


def _first(frame: FrameType | None, is_wanted: Callable[[str], bool]) -> FrameType | None:
    """Returns the first of this frame and its callers with a file that is wanted."""
    while frame is not None and not is_wanted(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _is_installed(file: str) -> bool:
    return any(part in file for part in _LIBRARIES)


def _is_standard(file: str) -> bool:
    return file.startswith((_SHMTREE, "<")) or (file.startswith(_STDLIB) and not _is_installed(file))
