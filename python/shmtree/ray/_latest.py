"""The newest version of a value, on every node that reads it."""

from __future__ import annotations

import queue
from typing import Any, NamedTuple

from .. import errors
from .._codec.frames import pack
from .._ipc.arguments import deadline_after, left, natural
from .._ipc.latest import Latest as LocalLatest
from . import _frames, _handles
from ._deaths import told_of_end
from ._ends import new_token

_SHUT_DOWN = "this Latest is no more, or Ray was shut down in this process"


class _Location(NamedTuple):
    """Data of a value that every Latest of it has."""

    number: int
    home: str  # node id
    machine: str  # machine of the home
    handle: bytes  # handle at the home


class Latest:
    """A `shmtree.Latest` for all nodes of a cluster: each node with readers fetches each version once.

    Reading is a local operation: `get` takes no lock and copies nothing of large arrays, which are read-only views of
    the node's memory. Nodes other than the home may skip versions that are followed quickly by others. It can be
    pickled as an argument of tasks and actors, and in messages.

    Args:
        home: Where the value is published: the handle of the publishing actor, or the id of a node; None is this node.
            Other processes may publish as well, with a call to the home.
    """

    def __init__(self, *, home: Any = None) -> None:
        from . import _actors

        number, node = new_token(), _actors.node_of(home)
        with told_of_end(_SHUT_DOWN):
            handle, machine = _actors.call(node, "host_latest", number)
        self._open(_Location(number, node, machine, handle))

    def _open(self, location: _Location) -> None:
        from . import _actors

        self._location = location
        self._is_home = location.machine == _actors.machine()
        handle = location.handle
        if not self._is_home:
            with told_of_end(_SHUT_DOWN):
                handle = _actors.call_own("mirror_latest", location.number, location.home)
        self._local: LocalLatest = _handles.open_latest(handle)

    def publish(self, obj: object) -> int:
        """Makes an object the newest version. See `shmtree.Latest.publish`.

        Returns:
            The number of the version.
        """
        from . import _actors

        if self._is_home:
            return self._local.publish(obj)
        batch = _frames.join([pack(obj, portable=True)])
        with told_of_end(_SHUT_DOWN):
            version: int = _actors.call(self._location.home, "publish", self._location.number, batch)
        return version

    def get(self, newer_than: int = 0, timeout: float | None = None, *, copy: bool | None = None) -> tuple[int, Any]:
        """Returns the number and value of the newest version, as soon as its number is more than `newer_than`.

        Args:
            newer_than: Number of a version that you have already.
            timeout: Seconds to wait; None waits indefinitely, 0 does not wait.
            copy: See `shmtree.Latest.get`, also for the errors.
        """
        if self._is_home:
            return self._local.get(newer_than, timeout, copy=copy)
        natural("newer_than", newer_than)
        deadline = deadline_after(timeout)
        here = 0
        while True:
            try:
                here, (version, value) = self._local.get(here, left(deadline), copy=copy)
            except (errors.ChannelClosed, errors.PeerDied):
                if self._local.closed:
                    raise
                self._open(self._location)  # the gateway was killed: the next one has another mirror
                here = 0
                continue
            if version > newer_than:
                return version, value

    @property
    def version(self) -> int:
        """Number of the newest version that has arrived here; 0 before the first one."""
        if self._is_home:
            return self._local.version
        try:
            return self.get(timeout=0)[0]
        except queue.Empty:
            return 0

    @property
    def closed(self) -> bool:
        """True if `close` was called on this object."""
        return self._local.closed

    def close(self) -> None:
        """Closes this object. Idempotent."""
        self._local.close()

    def __enter__(self) -> Latest:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Latest over Ray, {'closed' if self.closed else f'home {self._location.home}'}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.closed:
            raise errors.ChannelClosed("a closed Latest cannot be handed to another process")
        return _arrive, (tuple(self._location),)


def _arrive(location: tuple[Any, ...]) -> Latest:
    latest = Latest.__new__(Latest)
    latest._open(_Location(*location))
    return latest
