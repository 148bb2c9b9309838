"""Passes nested Python data between processes through shared memory.

Tasks, and the classes and functions for them:

- replace a multiprocessing.Queue: `Queue`, `JoinableQueue`, `SimpleQueue`
- replace the multiprocessing module in a whole program: `shmtree.multiprocessing`
- send from one process to another: `create_pair` returns a `Sender` and a `Receiver`
- send each message to many readers: `Broadcast`
- publish the newest version of a value, such as weights: `Latest`
- ask another process and get its answer: `Service` and `Client`
- store transitions and sample batches: `shmtree.replay.ReplayBuffer`
- let processes change one array in place: `SharedArray`
- share a data set that no process changes: `SharedList`
- load data in another process: `iterate_in_subprocess`
- convert an object to bytes and back: `pack` and `unpack`, or `dump` and `load` with a file
- see which process waits for which: `observe`, or the command ``shmtree top``
- send to another machine: `shmtree.ray`

Example::

    sender, receiver = shmtree.create_pair(capacity=8)
    sender.put({"obs": obs, "reward": 1.0})        # in one process
    sample = receiver.get(timeout=3)               # in another; large arrays are views

A timeout raises ``queue.Full``, ``queue.Empty`` or ``TimeoutError``; all other errors are a `shmtree.Error`.
"""

from . import _early_run  # noqa: F401, I001  # first: `shmtree run` needs none of the imports below
import numpy as _numpy  # noqa: F401  # first: an interrupt while the core imports it would become an ImportError

from . import _torch as _torch  # registers functions that the core needs
from . import replay as replay  # so that messages may carry replay buffers
from ._codec.capnp import CapnpMessage
from ._codec.frames import Frame, describe, dump, load, pack, register, unpack
from ._core import VERSION as __version__  # noqa: F401
from ._core import Delivery, descriptors
from ._ipc import ends_in_messages as _ends_in_messages  # noqa: F401  # so that messages may carry them
from ._ipc.arena import Arena, HolderInfo, default_arena
from ._ipc.broadcast import Broadcast, Subscriber
from ._ipc.channel import Receiver, Sender
from ._ipc.client import Client
from ._ipc.inherited_ends import keep_only
from ._ipc.latest import Latest
from ._ipc.observer import Observer, observe
from ._ipc.pairs import (
    NameInfo,
    clean_names,
    create_pair,
    list_names,
    open_receiver,
    open_sender,
)
from ._ipc.queue import JoinableQueue, Queue, SimpleQueue
from ._ipc.request import Request
from ._ipc.request_batch import RequestBatch
from ._ipc.service import Service
from ._ipc.shared_array import SharedArray
from ._ipc.shared_list import SharedList
from ._ipc.stats import ArenaStats, BroadcastStats, ChannelStats, LatestStats
from ._ipc.subprocess_iterator import SubprocessIterator, iterate_in_subprocess
from ._ipc.waiting import wait
from ._process import fork_imports as _fork_imports  # noqa: F401  # so that no forked child blocks on an import
from ._process import lifetime as _lifetime  # noqa: F401  # detaches this process at its exit
from ._public import claim_names as _claim_names
from .errors import (
    ChannelClosed,
    ConnectionLost,
    CorruptMessage,
    DeviceError,
    Error,
    IncompatibleArena,
    IncompatibleMessage,
    MessageTooLarge,
    NotPortable,
    OutOfSharedMemory,
    Overrun,
    PeerDied,
    PickleRefused,
    RemoteError,
    ShutDown,
    UnusedEndWarning,
    WorkerFailed,
)

__all__ = [
    "Arena",
    "ArenaStats",
    "Broadcast",
    "BroadcastStats",
    "CapnpMessage",
    "ChannelClosed",
    "ChannelStats",
    "Client",
    "ConnectionLost",
    "CorruptMessage",
    "Delivery",
    "DeviceError",
    "Error",
    "Frame",
    "HolderInfo",
    "IncompatibleArena",
    "IncompatibleMessage",
    "JoinableQueue",
    "Latest",
    "LatestStats",
    "MessageTooLarge",
    "NameInfo",
    "NotPortable",
    "Observer",
    "OutOfSharedMemory",
    "Overrun",
    "PeerDied",
    "PickleRefused",
    "Queue",
    "Receiver",
    "RemoteError",
    "Request",
    "RequestBatch",
    "Sender",
    "Service",
    "SharedArray",
    "SharedList",
    "ShutDown",
    "SimpleQueue",
    "SubprocessIterator",
    "Subscriber",
    "UnusedEndWarning",
    "WorkerFailed",
    "clean_names",
    "create_pair",
    "default_arena",
    "describe",
    "descriptors",
    "dump",
    "iterate_in_subprocess",
    "keep_only",
    "list_names",
    "load",
    "observe",
    "open_receiver",
    "open_sender",
    "pack",
    "register",
    "unpack",
    "wait",
]
__dir__ = _claim_names(globals(), ("compat", "cuda", "multiprocessing", "ray", "recording", "replay", "spdl", "torch"))
