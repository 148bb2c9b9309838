"""Types of the results of `stats()`, for type checkers. At run time each is a dict."""

from __future__ import annotations

from typing import TypedDict


class _ChannelCounts(TypedDict):
    put: int
    received: int
    queued: int
    queued_bytes: int
    taken: int
    returned: int
    dead_letters: int
    dropped: int
    capacity: int
    max_bytes: int
    max_unacked: int
    max_attempts: int
    senders: int
    receivers: int
    senders_attached: int
    receivers_attached: int
    senders_never_used: list[int]
    receivers_never_used: list[int]
    senders_in_transit: int
    receivers_in_transit: int
    put_per_s: float
    received_per_s: float


class ChannelStats(_ChannelCounts, total=False):
    """Result of `Sender.stats`, which describes the keys. `pickled` and `unfinished` are not in every result."""

    pickled: int
    unfinished: int


class LatestStats(TypedDict):
    """Result of `Latest.stats`, which describes the keys."""

    version: int
    history: int
    versions: int
    bytes: int
    publishers: list[int]
    pickled: int


class BroadcastStats(TypedDict):
    """Result of `Broadcast.stats`, which describes the keys."""

    put: int
    capacity: int
    history: int
    kept: int
    subscribers: int
    publishers: list[int]
    pickled: int


class ArenaStats(TypedDict):
    """Result of `Arena.stats`, which describes the keys."""

    max_bytes: int
    committed_bytes: int
    used_bytes: int
    held_bytes: int
    blocks: int
    participants: int
    reconciles: int
