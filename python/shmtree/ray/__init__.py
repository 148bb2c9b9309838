"""Pairs, queues, values, weights and replay buffers between the nodes of a Ray cluster; see docs/ray.md.

Needs ``shmtree[ray]``.
"""

from .._public import claim_names
from ._deaths import PeerDied
from ._ends import Receiver, Sender
from ._latest import Latest
from ._pairs import create_pair
from ._queue import Queue
from ._replay import ReplayBuffer
from ._store import get, put

__all__ = ["Latest", "PeerDied", "Queue", "Receiver", "ReplayBuffer", "Sender", "create_pair", "get", "put"]
__dir__ = claim_names(globals())
