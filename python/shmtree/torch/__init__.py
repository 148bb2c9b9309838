"""For programs that train with PyTorch: batches that are written once, shared tensors and modules.

::

    loader = DataLoader(data, batch_size=64, num_workers=4, collate_fn=shmtree.torch.collate,
                        multiprocessing_context=shmtree.multiprocessing.get_context("spawn"))
    model = shmtree.torch.share_(model)      # each process that gets it uses the same memory for its parameters
    weights = shmtree.torch.share(model)     # a copy of them that each put() sends as a reference
    shmtree.torch.publish(latest, model)     # the newest weights for all readers, in a shmtree.Latest
    shmtree.torch.load_into(model, value)    # a received version, without allocating

Tensors as such do not need this module: channels and queues carry them like arrays.

If this module is imported, a running torch.profiler shows the spans ``shmtree.put``, ``put_many``, ``get``,
``get_many`` and ``take``, including the time that they wait.
"""

from __future__ import annotations

from typing import Any

import torch.autograd.profiler
import torch.profiler

from .. import _core
from .._public import claim_names
from .._torch.devices import move_to
from ._batches import collate
from ._sharing import SharedParameter, SharedTensor, share, share_
from ._weights import load_into, publish

__all__ = ["SharedParameter", "SharedTensor", "collate", "load_into", "move_to", "publish", "share", "share_"]
__dir__ = claim_names(globals())


def _begin_span(name: str) -> Any:
    span: Any = torch.profiler.record_function(name)
    span.__enter__()
    return span


_core.set_spans(vars(torch.autograd.profiler), "_is_profiler_enabled", _begin_span)  # exists since torch 2.2
