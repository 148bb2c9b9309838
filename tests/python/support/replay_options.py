"""Options of replay buffers from flat keyword arguments, for tests that combine their own options with common ones."""

from __future__ import annotations

import dataclasses
from typing import Any

from shmtree.replay import Episodes, Limits, Sampling

_GROUPS = {"sampling": Sampling, "episodes": Episodes, "limits": Limits}


def grouped(**options: Any) -> dict[str, Any]:
    """Returns arguments of ReplayBuffer: ``grouped(n_step=3)`` is ``{"episodes": Episodes(n_step=3)}``."""
    found: dict[str, Any] = {}
    for group, cls in _GROUPS.items():
        names = {field.name for field in dataclasses.fields(cls)} & options.keys()
        if names:
            found[group] = cls(**{name: options.pop(name) for name in names})
    return {**found, **options}
