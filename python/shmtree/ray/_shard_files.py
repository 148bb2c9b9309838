"""Saved shards, and the assignment of nodes that load them.

`save` lets each node write its shard into a folder of its own. The folder may be on a file system that all nodes share,
or on a disk of each node. Therefore `load` asks every node which folders it sees, and assigns each folder to a node
that sees it. A node has one shard.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import NamedTuple

from .._codec import whole_files
from ..replay import Episodes, Limits, Sampling, _files
from ..replay._buffer import ReplayBuffer
from ..replay._memory import Size
from ..replay._spec import Spec
from . import _parts

_FOLDER = "shard-"
_VERSION = 1  # version of a shard's JSON file; version 1 has no "version" key


def folder_of(path: str, shard: int) -> str:
    return os.path.join(path, f"{_FOLDER}{shard}")


class Saving(NamedTuple):
    """One call of `save`, stored in a file beside the folder of each shard."""

    buffer: int  # the same for a buffer and for those that were loaded from it
    time_ns: int  # since the epoch, by the caller's clock
    shards: list[int]  # all shards at that time

    def write(self, path: str, shard: int) -> None:
        """Writes the complete file, or none."""
        with whole_files.replacing(_note_of(path, shard), "w") as file:
            json.dump(self._asdict(), file)


def _note_of(path: str, shard: int) -> str:
    return f"{folder_of(path, shard)}.json"


def _read_note(path: str, shard: int) -> Saving | None:
    """Returns None if the file is missing because the first save did not finish.

    Raises ValueError if it is damaged, or of another version.
    """
    name = _note_of(path, shard)
    try:
        with open(name) as file:
            saved = json.load(file)
        version = saved.get("version", _VERSION)
        if version == _VERSION:
            return Saving(**saved)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{name} is damaged: {error}") from None
    raise ValueError(f"{name} has version {version}; this library reads version {_VERSION}")


class Found(NamedTuple):
    """A saved shard that a node sees."""

    note: bytes  # its packed `Spec`
    size: Size
    saving: Saving | None


class Loading(NamedTuple):
    """Arguments with which shards are loaded; None keeps the saved value."""

    capacity: int | None
    sampling: Sampling | None
    episodes: Episodes | None
    limits: Limits | None

    @property
    def seed(self) -> int | None:
        return None if self.sampling is None else self.sampling.seed

    def find(self, path: str) -> dict[int, Found]:
        """Returns the shards below a path on this node, by number."""
        try:
            names = os.listdir(path)
        except FileNotFoundError:
            return {}
        found = {}
        for name in names:
            number = name.removeprefix(_FOLDER)
            if name.startswith(_FOLDER) and number.isdecimal():
                files = _files.open_files(os.path.join(path, name))
                # its errors name the file; errors of other nodes do not
                _files.spec_of(files, os.path.join(path, name))
                asked = _files.size_of(self.capacity, self.limits)
                rows, chunk = files.size_for(*asked)
                size = Size(rows, None, chunk, asked[-1])
                found[int(number)] = Found(files.note, size, _read_note(path, int(number)))
        return found

    def load(self, path: str, shard: int) -> ReplayBuffer:
        return ReplayBuffer.load(folder_of(path, shard), **self._asdict())

    def with_changes(self, saved: Spec) -> Spec:
        """Returns the saved spec with the options that this load asks for."""
        return saved.changed(self.sampling, self.episodes, self.limits)


class Loads(NamedTuple):
    """The shard that each node has to load, and the arguments for shards that are made later."""

    nodes: dict[int, str]
    plan: _parts.Plan
    buffer: int | None  # see `Saving`


def assign(path: str, seen: Mapping[str, Mapping[int, Found]], how: Loading, missing_ok: bool) -> Loads:
    """Assigns shards to nodes.

    Raises FileNotFoundError if no node sees a shard, and ValueError if the shards are not of one buffer, too many, or
    too few.
    """
    found = {shard: each for shards in seen.values() for shard, each in shards.items()}
    if not found:
        raise FileNotFoundError(f"no node of {len(seen)} has shards of a replay buffer in {path!r}")
    specs = {shard: Spec.unpack(each.note) for shard, each in found.items()}
    _check_same(path, found, specs)
    last = max((each.saving for each in found.values() if each.saving), key=lambda saving: saving.time_ns, default=None)
    if last is not None and not missing_ok:
        _check_complete(path, last, found, len(seen))
    nodes: dict[str, int] = {}
    for shard in sorted(found):
        if not _place(shard, seen, nodes, set()):
            where = sum(shard in shards for shards in seen.values())
            raise ValueError(
                f"no node is left for shard {shard} of {len(found)} in {path!r}: {where} of {len(seen)} nodes can read "
                "it, and each node loads one shard"
            )
    largest = max(found, key=lambda shard: found[shard].size.capacity or 0)
    plan = _parts.Plan(how.with_changes(specs[largest]), found[largest].size, how.seed)
    return Loads({shard: node for node, shard in nodes.items()}, plan, None if last is None else last.buffer)


def _check_same(path: str, found: Mapping[int, Found], specs: Mapping[int, Spec]) -> None:
    first = min(found)
    for shard, each in found.items():
        saved = {saving.buffer for saving in (each.saving, found[first].saving) if saving is not None}
        if len(saved) > 1 or specs[shard] != specs[first]:
            raise ValueError(f"{folder_of(path, first)} and {folder_of(path, shard)} belong to different buffers")


def _check_complete(path: str, last: Saving, found: Mapping[int, Found], nodes: int) -> None:
    missing = sorted(set(last.shards) - found.keys())
    if missing:
        raise ValueError(
            f"no node of {nodes} has {os.path.basename(folder_of(path, missing[0]))}, one of the {len(last.shards)} "
            f"shards that were saved last in {path!r}; pass missing_ok=True to load the others"
        )


def _place(shard: int, seen: Mapping[str, Mapping[int, Found]], nodes: dict[str, int], tried: set[str]) -> bool:
    """Finds a node for one more shard.

    Other shards may move to other nodes (an augmenting path of a bipartite matching).
    """
    for node, shards in seen.items():
        if shard in shards and node not in tried:
            tried.add(node)
            if node not in nodes or _place(nodes[node], seen, nodes, tried):
                nodes[node] = shard
                return True
    return False
