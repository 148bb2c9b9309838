"""Latest: the newest version of a value, for any number of readers."""

from __future__ import annotations

import functools
from typing import cast

from .. import _core
from .._process.names import LATEST
from .arena import Arena
from .arguments import natural
from .channel import home_of
from .ends import shown
from .item_type import T
from .publisher import Published
from .stats import LatestStats
from .waiting import until
from .wake_hub import Awaited


class Latest(Published, _core.LatestBase[T]):
    """A value that some processes publish and others read in its newest version, such as the weights of a policy.

    Versions are numbered 1, 2, ... over all publishers. Reading is wait-free: readers take no lock and delay no other
    process. Each reader may miss any number of versions. All readers share the same memory: `publish` copies a value
    once, and `get` copies nothing of its large arrays. These are read-only views that do not change while they are
    referenced. The newest version, `history` older ones, and pinned versions are kept.

    Several threads and processes may publish and read at the same time. A Latest can be pickled as an argument of
    Process with fork, spawn and forkserver, through a pipe or queue, and in messages.

    A process is a publisher from its first `publish` until it closes or drops its last object of the Latest, or exits.
    If a reader waits for a newer version and no publisher is left, it gets ChannelClosed, or PeerDied if one was
    killed or failed, until a process publishes again. A publisher killed during `publish` has published nothing.
    Before the first version, the process that made the Latest counts as a publisher until it closes it. Each process
    that opened or inherited it also counts, unless it waits for a version itself.

    Args:
        name: Name under which any process of this user finds it with `Latest.open`.
        arena: Arena for the value. None takes the arena of this process's channels, and for a named Latest a new one.
        history: Number of versions that are kept besides the newest.
        allow_pickle: True if objects without a native kind may be published, and loaded, as pickles. None (default)
            allows it without a name, and refuses it with one.
        exist_ok: If a Latest has this name already, opens that one instead.

    Raises:
        FileExistsError: The name is in use and `exist_ok` is False.
        ValueError: The Latest of that name was made with other arguments (the error has both values).

    Example::

        weights = shmtree.Latest(name="policy")      # in the learner
        weights.publish({"layer": array})
        weights = shmtree.Latest.open("policy")      # in each actor
        version, value = weights.get(newer_than=0)
    """

    _KIND, _SHARED = LATEST, _core.LatestStore

    def __init__(
        self,
        *,
        name: str | None = None,
        arena: Arena | None = None,
        history: int = 0,
        allow_pickle: bool | None = None,
        exist_ok: bool = False,
    ) -> None:
        self._attach(*_core.make_latest(history, name, home_of(arena, name), allow_pickle, exist_ok))

    async def get_async(
        self, newer_than: int = 0, timeout: float | None = None, *, copy: bool | None = None
    ) -> tuple[int, T]:
        """Does the same as `get` in a coroutine."""
        known = natural("newer_than", newer_than)
        return await until(
            lambda: self.get(known, 0, copy=copy),
            lambda: Awaited(
                (self._name_to_get(), id(self)),
                functools.partial(self._await_newer, known),
                functools.partial(self._is_newer, known),
            ),
            timeout,
        )

    def stats(self) -> LatestStats:
        """Returns counts and byte totals.

        Returns:
            A dict with `version` (the newest), `history` (as given), `versions` (number of versions that exist) and
            `bytes` (of their messages). `publishers` are pids. `pickled` counts the values that this object has
            published and that needed a pickle.
        """
        return cast("LatestStats", self._stats())

    def __repr__(self) -> str:
        return shown(self, lambda: f"version {self.version}")
