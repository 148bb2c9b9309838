"""A storage and samplers for `torchrl.data.ReplayBuffer`, with the rows in shared memory.

from shmtree.replay.torchrl import PrioritizedSampler, SharedStorage
buffer = torchrl.data.TensorDictReplayBuffer(
    storage=SharedStorage(100_000), sampler=PrioritizedSampler(100_000, alpha=0.6, beta=0.4), batch_size=256
)

The first row that is added determines the keys, shapes and dtypes of all rows. After that, any number of processes may
use the storage, each with its own buffer, to add, sample and update priorities. `storage.shared` is the
`shmtree.replay.ReplayBuffer` with the rows. Indices are places, from 0 to `max_size` - 1, as in a `LazyTensorStorage`.
"""

from __future__ import annotations

from torchrl.data.replay_buffers.samplers import RandomSampler

from .._public import claim_names
from ._torch_sampler import PrioritizedSampler
from ._torch_storage import SharedStorage

__all__ = ["PrioritizedSampler", "SharedStorage", "UniformSampler"]

UniformSampler = RandomSampler  # TorchRL's own; its other samplers work with a SharedStorage too

__dir__ = claim_names(globals())
