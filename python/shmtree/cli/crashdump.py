"""``python -m shmtree crashdump``: writes the state of an arena to a file when an attached process was killed."""

from __future__ import annotations

import argparse
import contextlib
import errno
import itertools
import json
import os
import resource
import select
import time
from collections.abc import Generator, Iterable, Iterator
from typing import Any

from .. import _core
from .._codec import whole_files
from .._ipc.observer import Observer, add_messages, is_of, seen
from .arguments import add_json, add_verb, seconds
from .results import count, failed, print_line
from .tables import label, pid_list

MAX_MESSAGES = 1000  # messages of each channel in a dump
SPARE = 4  # descriptors that snapshots and dumps need

_Dead = tuple[str, int, int]  # a killed process: arena, slot, pid


def _dead(arena: dict[str, Any], one: dict[str, Any]) -> _Dead:
    return arena["uuid"], one["slot"], one["namespace_pid"]


class Watch:
    """Takes snapshots and keeps the previous one. Keeps a descriptor of each arena, which also keeps the arena's
    memory.

    A dump is a file that only its user can read: JSON with `time`, `killed` (the last state of each killed process:
    `waits`, `senders`, `receivers`, `held`, `locks`), `arena` as it was found, with descriptions of queued messages,
    and `before`, the same from the previous snapshot, `seconds` earlier. To release the arenas, close the object or
    drop it. `trouble` lists what failed at the last snapshot: watching an arena (no descriptors left, or another layout
    version), or writing a dump (for example, the disk is full).
    """

    def __init__(self, directory: str, names: Iterable[str] = ()) -> None:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self.trouble = ""
        self._directory = directory
        self._names = tuple(names)
        self._observer = Observer()
        self._kept: dict[str, int] = {}  # descriptors, by uuid
        self._before: dict[str, tuple[float, dict[str, Any]]] = {}
        self._told: set[_Dead] = set()  # dead processes that are in a dump, until recovery has removed them
        self._processes: dict[int, int] = {}  # descriptors that become readable when the process exits

    def __len__(self) -> int:
        return len(self._kept)

    def look(self) -> Iterator[tuple[str, list[int]]]:
        """Takes one snapshot. Yields the path of each dump that it wrote, and the pids of the killed processes."""
        now = time.monotonic()
        self.trouble = ""
        try:
            observed = seen(self._observer.look())["arenas"]
        except OSError as error:
            self.trouble = str(error)
            return
        arenas = []
        for arena in filter(self._is_watched, observed):
            if arena["refused"]:
                self.trouble = f"cannot watch arena {label(arena)}: {arena['refused']}"
            else:
                arenas.append(arena)
        owed = yield from self._dumps(arenas, now)
        kept = {uuid: self._before[uuid] for uuid in owed & self._before.keys()}
        self._before = {arena["uuid"]: (now, arena) for arena in arenas} | kept
        self._let_go(arenas, owed)
        with contextlib.ExitStack() as spare:  # descriptors that later snapshots and dumps need
            with contextlib.suppress(OSError):
                for _ in range(SPARE):
                    spare.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            for arena in arenas:
                self._keep(arena)
            self._follow(arenas)

    def _dumps(self, arenas: list[dict[str, Any]], now: float) -> Generator[tuple[str, list[int]], None, set[str]]:
        """Returns the arenas that could not be dumped: the next snapshot tries again."""
        told: set[_Dead] = set()
        owed: set[str] = set()
        for arena in arenas:
            killed = [one for one in arena["participants"] if not one["alive"] and not one["leaving"]]
            new = [one for one in killed if _dead(arena, one) not in self._told]
            told |= {_dead(arena, one) for one in killed if one not in new}
            if not new:
                continue
            try:
                yield self._dump(arena, new, now), [one["namespace_pid"] for one in new]
                told |= {_dead(arena, one) for one in new}
            except OSError as error:
                owed.add(arena["uuid"])
                self.trouble = f"cannot write a dump to {self._directory}: {error.strerror}"
        self._told = told
        return owed

    def wait(self, seconds: float) -> None:
        """Blocks until an attached process exits, or for `seconds`."""
        poll = select.poll()
        for fd in self._processes.values():
            poll.register(fd, select.POLLIN)
        ended = [fd for fd, _ in poll.poll(seconds * 1000)]
        for pid in [pid for pid, fd in self._processes.items() if fd in ended]:
            os.close(self._processes.pop(pid))

    def close(self) -> None:
        for fd in (*self._kept.values(), *self._processes.values()):
            os.close(fd)
        self._kept, self._processes = {}, {}

    def _is_watched(self, arena: dict[str, Any]) -> bool:
        return arena["uuid"] in self._kept or not self._names or any(is_of(arena, name) for name in self._names)

    def _keep(self, arena: dict[str, Any]) -> None:
        for opener in arena["openers"] if arena["uuid"] not in self._kept else ():
            if opener["read_only"]:
                continue
            uuid = arena["uuid"]
            try:
                self._kept[uuid] = _core.open_arena_for_reading(bytes.fromhex(uuid), opener["pid"], opener["fd"])
                return
            except OSError as error:  # the process has exited, or its pidfd cannot be opened for another reason
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self.trouble = f"cannot keep arena {arena['uuid'][:8]} for a last dump: {error.strerror}"

    def _let_go(self, arenas: list[dict[str, Any]], owed: set[str]) -> None:
        """Closes the descriptors of arenas that no process uses any more, once every death in them has a dump.

        The kernel closes a killed process's descriptors before it releases the lock that marks it as alive, so an
        arena is also kept while a participant is alive.
        """
        used = {
            arena["uuid"]
            for arena in arenas
            if arena["uuid"] in owed
            or any(one["alive"] for one in arena["participants"])
            or not all(each["read_only"] for each in arena["openers"])
        }
        for uuid in self._kept.keys() - used:
            os.close(self._kept.pop(uuid))
            self._before.pop(uuid, None)

    def _follow(self, arenas: list[dict[str, Any]]) -> None:
        living = {one["pid"] for arena in arenas for one in arena["participants"] if one["alive"] and one["pid"]}
        for pid in self._processes.keys() - living:
            os.close(self._processes.pop(pid))
        for pid in living - self._processes.keys():
            with contextlib.suppress(OSError):  # exited, or no descriptors are left: later snapshots detect the death
                self._processes[pid] = os.pidfd_open(pid)

    def _dump(self, arena: dict[str, Any], killed: list[dict[str, Any]], now: float) -> str:
        add_messages(arena, MAX_MESSAGES)
        at, before = self._before.get(arena["uuid"], (now, arena))
        content = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "killed": [_last_of(one, arena, before) for one in killed],
            "seconds": now - at,
            "arena": arena,
            "before": before,
        }
        path = os.path.join(self._directory, f"{arena['uuid'][:8]}-{killed[0]['namespace_pid']}-{time.time_ns()}.json")
        with whole_files.replacing(path, "w", private=True) as file:
            file.write(json.dumps(content, indent=1))
        return path


def _last_of(one: dict[str, Any], arena: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Returns the last state of a killed process, from the arena and the previous snapshot."""
    was = next((each for each in before["participants"] if _dead(before, each) == _dead(arena, one)), one)
    pids = {was["pid"], one["namespace_pid"]} - {0}
    last: dict[str, Any] = {"pid": was["pid"] or one["namespace_pid"], "waits": one["waits"]}
    for end in ("sender", "receiver"):
        last[f"{end}s"] = [name for name, each in _named_channels(before) if pids & set(each[f"{end}_pids"])]
    last["held"] = [each for each in before["holders"] if each["pid"] in pids]
    last["locks"] = [
        f"the {end}s of {name}"
        for name, each in _named_channels(arena)
        for end in ("sender", "receiver")
        if each[f"{end}_locked_by"] in pids
    ]
    return last


def _named_channels(arena: dict[str, Any]) -> list[tuple[str | int, dict[str, Any]]]:
    """Returns the readable channels with their names, or their numbers if they have none."""
    channels = [each for each in enumerate(arena["channels"]) if each[1]["refused"] is None]
    return [(number if each["name"] is None else each["name"], each) for number, each in channels]


def _run_crashdump(options: argparse.Namespace) -> int:
    # The command keeps one descriptor for each arena and each process, so it raises its limit.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    watch, trouble = Watch(options.out, options.names), ""
    for is_first in itertools.chain([True], itertools.repeat(False)):
        for path, pids in watch.look():
            text = f"{pid_list(pids)} {'was' if len(pids) == 1 else 'were'} killed: {path}"
            print_line(options, text, dump=path, killed=pids)
        if watch.trouble not in ("", trouble):
            failed(watch.trouble)
        trouble = watch.trouble
        if is_first:
            print_line(options, f"watching {count(len(watch), 'arena')}", watching=len(watch))
        watch.wait(options.interval)
    return 0


def add_to(verbs: Any) -> None:
    examples = """
        shmtree crashdump --out dumps
        shmtree crashdump --out dumps 4711 samples
        """
    details = "The file has the state of the arena that the process used. It runs until you end it."
    verb = add_verb(verbs, "crashdump", "write a file when a process was killed", examples, details)
    names = "only arenas with these processes or names (default: all)"
    verb.add_argument("names", metavar="PID|NAME", nargs="*", help=names)
    verb.add_argument("--out", metavar="DIR", required=True, help="folder for the files; created if it does not exist")
    interval = "seconds between snapshots (default: %(default)s)"
    verb.add_argument("--interval", metavar="S", type=seconds, default=0.2, help=interval)
    add_json(verb, "print one line of JSON for each file")
    verb.set_defaults(run=_run_crashdump)
