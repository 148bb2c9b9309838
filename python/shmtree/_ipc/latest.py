"""The newest version of a value, for any number of readers."""

from __future__ import annotations

import functools
from typing import Any

from .. import _core
from .._process.names import LATEST
from .arena import Arena
from .arguments import natural, seconds
from .publisher import Published
from .waiting import until
from .wake_hub import Awaited


class Latest(Published, _core.LatestBase):
    """A value that some processes publish, and others want the newest version of: the weights of a policy.

    Versions are numbered 1, 2, ..., whoever publishes. Readers take no lock, wait for nobody and hold nobody up; each
    may miss any number of versions. All of them read the same memory: `publish` copies a value once, `get` copies
    nothing of its large arrays, which are read-only views that stay as they are for as long as they are held. What is
    kept is the newest version, `history` older ones, and what somebody holds.

    It can be used from several threads and processes, any number of them publishing or reading. It pickles: as an
    argument of Process with fork, spawn and forkserver, through a pipe or queue, and in messages.

    A process publishes from its first `publish` until it closes its last object of the Latest, drops it, or ends. Who
    waits for a newer version when nobody is left who publishes gets ChannelClosed, or PeerDied if one of those who did
    was killed, until somebody publishes again. Publishers that were killed half-way have published nothing.

    Args:
        name: by which `Latest.open` finds it from any process of this user; FileExistsError when that is in use.
        arena: where it lives; by default the one of this process's channels, and with a name one of its own.
        history: how many versions are kept besides the newest.
        allow_pickle: whether what has no kind of its own may be published, and loaded, as a pickle. By default without
            a name, but not with one.
        exist_ok: with a name that a Latest has already, opens that one; ValueError, with the values of both, when it
            was made with other arguments.
    """

    _WHAT, _KIND, _THING, _BASE = "Latest", LATEST, _core.LatestStore, _core.LatestBase

    def __init__(
        self,
        *,
        name: str | None = None,
        arena: Arena | None = None,
        history: int = 0,
        allow_pickle: bool | None = None,
        exist_ok: bool = False,
    ) -> None:
        natural("history", history)
        allow = name is None if allow_pickle is None else bool(allow_pickle)
        self._create(name, arena, exist_ok, allow, history, allow)

    @property
    def _thing(self) -> _core.LatestStore:
        return self._store

    def publish(self, obj: object, timeout: float | None = None, *, move: bool = False) -> int:
        """Makes an object the newest version, and returns its number: from the return on everybody reads it.

        The object is copied, and may be changed afterwards; but for arrays of `new_empty`, which are given away and
        become read-only here (with `move=True` parts of them, and received arrays, too).

        Waits for memory, for `timeout` seconds at most (None: for ever): queue.Full after that. OutOfSharedMemory,
        after a second, when only views that somebody holds are in the way: it names who holds how much since when.
        TimeoutError when a process that was stopped kept the arena's lock: it is named. An object that cannot be sent
        raises as with `Sender.put`, and nothing is published.
        """
        return self._publish(obj, timeout, move)

    def get(
        self,
        newer_than: int = 0,
        timeout: float | None = None,
        *,
        version: int | None = None,
        copy: bool | None = None,
    ) -> tuple[int, Any]:
        """The newest version and its number, as soon as that is more than `newer_than`.

        queue.Empty when there was none within `timeout` seconds (None: for ever; 0: at once). With `version` just that
        one, without waiting; KeyError when the history does not have it.

        copy=None: arrays of 4 KiB and more in values over 16 KiB are read-only views of shared memory, and all others
        copies; while over half of the arena's budget is held, everything is copied. Tensors are always copied, since
        torch has none that are read-only. copy=False views all, tensors too: whoever
        writes to one changes it for everybody. copy=True copies all.
        """
        if version is not None:
            return self._at(natural("version", version), copy)
        if type(newer_than) is not int or newer_than < 0:
            newer_than = natural("newer_than", newer_than)
        return self._get(newer_than, timeout, copy)

    async def get_async(
        self, newer_than: int = 0, timeout: float | None = None, *, copy: bool | None = None
    ) -> tuple[int, Any]:
        """`get` for coroutines."""
        known = natural("newer_than", newer_than)
        return await until(
            lambda: self._get(known, 0, copy),
            lambda: Awaited(
                (self._name_to_get(), id(self)),
                functools.partial(self._await_newer, known),
                functools.partial(self._is_newer, known),
            ),
            None if timeout is None else seconds("timeout", timeout),
        )

    def stats(self) -> dict[str, Any]:
        """Counts and bytes.

        version: the newest. history: as it was made. versions: how many are there, and bytes: their messages'.
        publishers: pids of the processes that publish. pickled: what this object has published that needed a pickle.
        """
        return self._stats()

    def __repr__(self) -> str:
        return "<Latest, closed>" if self.closed else f"<Latest, version {self.version}>"
