"""Replay buffers: rows in shared memory that many processes add and sample, without a server.

Example::

    buffer = ReplayBuffer(1_000_000, example={"obs": obs, "action": 0, "reward": 0.0, "done": False})
    buffer.add({"obs": obs, "action": a, "reward": r, "done": d})      # in any process
    batch = buffer.sample(256)                                         # in any other
"""

from .. import _core as _core
from .._public import claim_names
from . import _in_messages as _in_messages  # so that messages may carry buffers
from ._batch import Batch, SequenceBatch, TensorBatch
from ._buffer import ReplayBuffer
from ._files import Saved
from ._hindsight import Hindsight
from ._loader import Loader
from ._options import Episodes, Limits, Sampling
from ._samplers import Fifo, Lifo, MaxPriority, Prioritized, RateLimit, Sampler, Uniform
from ._stats import ReplayStats
from ._writers import VectorWriter, Writer

__all__ = [
    "Batch",
    "Episodes",
    "Fifo",
    "Hindsight",
    "Lifo",
    "Limits",
    "Loader",
    "MaxPriority",
    "Prioritized",
    "RateLimit",
    "ReplayBuffer",
    "ReplayStats",
    "Sampler",
    "Sampling",
    "Saved",
    "SequenceBatch",
    "TensorBatch",
    "Uniform",
    "VectorWriter",
    "Writer",
]
__dir__ = claim_names(globals())
