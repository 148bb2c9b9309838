"""The shards of one buffer from the view of one process: their nodes, their weights, and calls to all of them.

The process uses the shard of its own node in shared memory, without a call.
"""

from __future__ import annotations

import pickle
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .._process import lifetime
from ..errors import ChannelClosed
from ..replay import Saved
from ..replay._buffer import ReplayBuffer
from . import _parts
from ._deaths import PeerDied, told_of_end
from ._gateways import Ended
from ._shard_files import Loading, Loads, Saving, assign
from ._shards import Call

_CHECK_S = 1.0  # interval of checks for nodes with new shards
_SHUT_DOWN = "the replay buffer was shut down, or Ray was shut down in this process"
_FRESH_S = 0.2  # time for which a weight is used for samples


class Own(NamedTuple):
    """The shard of this node."""

    id: int
    buffer: ReplayBuffer


class Cluster:
    """The shards of one buffer object. Thread-safe."""

    def __init__(self, number: int, home: str, plan: _parts.Plan) -> None:
        from . import _actors

        self.lost: set[str] = set()  # nodes with a shard that no longer exist
        self._number, self._home, self._plan = number, home, plan
        self._here = _actors.here()
        self._own: Own | None = None
        self._opening = lifetime.lock_in(self, "_opening")
        self._nodes: dict[int, str] = {}  # nodes of the shards elsewhere
        self._last_check = -_CHECK_S
        self._largest: defaultdict[int, float] = defaultdict(float)  # largest priority of all shards, by sampler
        # by sampler and shard: the time of the answer, and the weights
        self._weights: dict[tuple[int, int], tuple[float, _parts.Weights]] = {}

    # --- The shard of this node

    def own(self) -> Own:
        """Returns the shard of this node, and makes it if there is none."""
        return self._own or self._open()

    def _open(self) -> Own:
        with self._opening:
            while self._own is None:
                shard, handle = self._told("open", self._number, self._home, self._plan)
                try:
                    self._own = Own(shard, pickle.loads(handle))
                except FileNotFoundError:  # all processes that had it were killed
                    time.sleep(_FRESH_S)
            return self._own

    def _told(self, method: str, *arguments: Any) -> Any:
        from . import _actors

        with told_of_end(_SHUT_DOWN):
            return _actors.call(self._here, "replay", method, *arguments)

    # --- All shards

    def _check_shards(self, at_once: bool) -> None:
        """Finds new shards."""
        from . import _actors

        if not at_once and time.monotonic() - self._last_check < _CHECK_S:
            return
        try:
            shards = _actors.call(self._home, "replay", "shards", self._number)
        except Ended as ended:
            if not ended.peers:
                self._nodes = {}
                raise ChannelClosed(_SHUT_DOWN) from None
            if not self._nodes and self._own is None:
                raise PeerDied(ended.peers) from None
        else:
            self._nodes = {s: node for s, (node, _) in shards.items() if node not in self.lost | {self._here}}
            self._check_own({s: handle for s, (node, handle) in shards.items() if node == self._here})
        self._last_check = time.monotonic()

    def _check_own(self, found: dict[int, bytes]) -> None:
        with self._opening:
            for shard, handle in found.items():
                if self._own is None or self._own.id != shard:
                    try:
                        self._own = Own(shard, pickle.loads(handle))
                    except FileNotFoundError:
                        continue  # the shard was lost; the next writer makes another one

    def weights(self, table: int, with_least: bool, *, fresh: bool) -> dict[int, _parts.Weights]:
        """Returns the weights of all shards.

        With `fresh`, they are current; otherwise, those of other nodes may be `_FRESH_S` old.
        """
        self._check_shards(fresh)
        oldest = time.monotonic() if fresh or with_least else time.monotonic() - _FRESH_S
        nodes = dict(self._nodes)
        stale = {node for s, node in nodes.items() if self._weights.get((table, s), (-_FRESH_S, None))[0] < oldest}
        largest = self._largest[table]
        for answer in self._ask(dict.fromkeys(stale, ("weigh", (table, with_least, largest)))).values():
            if answer is not None:
                self._note(table, *answer)
        known = {s: self._weights[table, s][1] for s in self._nodes if (table, s) in self._weights}
        if (own := self._own) is not None:
            known[own.id] = _parts.weigh(own.buffer, table, with_least, self._largest[table])
            self._hear(table, known[own.id])
        return known

    def forget_weights(self) -> None:
        self._weights.clear()

    def _note(self, table: int, shard: int, weights: _parts.Weights) -> None:
        self._weights[table, shard] = (time.monotonic(), weights)
        self._hear(table, weights)

    def _hear(self, table: int, weights: _parts.Weights) -> None:
        self._largest[table] = max(self._largest[table], weights.largest)

    def draw(self, counts: Mapping[int, int], terms: _parts.Terms, table: int) -> dict[int, _parts.Part]:
        """Samples `counts` rows of each shard. A shard that had none is missing in the result."""
        nodes = {s: self._nodes[s] for s in counts if s in self._nodes}
        own, largest = self._own, self._largest[table]
        calls: dict[str, Call] = {node: ("draw", (s, counts[s], terms, largest)) for s, node in nodes.items()}

        def sample_own() -> Any:
            if own is None or own.id not in counts:
                return None
            return _parts.draw(own.buffer, counts[own.id], terms, largest)

        mine, answers = self._ask_with(calls, sample_own)
        parts = {shard: answers.get(node) for shard, node in nodes.items()}
        for shard, part in parts.items():
            if part is not None:
                self._note(table, shard, part.weights)
            else:
                self._weights.pop((table, shard), None)
        if own is not None and mine is not None:
            parts[own.id] = mine
        return {shard: part for shard, part in parts.items() if part is not None}

    def update(self, asked: Mapping[int, tuple[Any, Any]], sampler: str | None) -> dict[int, Any]:
        """Updates priorities. Returns the masks of the shards that exist."""
        own = self._own
        if any(s not in self._nodes and not (own is not None and s == own.id) for s in asked):
            self._check_shards(True)
            own = self._own
        nodes = {s: self._nodes[s] for s in asked if s in self._nodes}
        calls: dict[str, Call] = {node: ("update", (s, sampler, *asked[s])) for s, node in nodes.items()}

        def update_own() -> Any:
            return own.buffer.update_priorities(*asked[own.id], sampler=sampler) if own and own.id in asked else None

        mine, answers = self._ask_with(calls, update_own)
        masks = {s: answers.get(node) for s, node in nodes.items()}
        if own is not None:
            masks[own.id] = mine
        return {shard: mask for shard, mask in masks.items() if mask is not None}

    def ask_all(self, method: str, *arguments: Any) -> dict[str, Any]:
        """Calls the gateways of all nodes, also this one. Returns the answers by node."""
        answers = self._ask(dict.fromkeys(self._all().values(), (method, arguments)))
        return {node: answer for node, answer in answers.items() if answer is not None}

    def _all(self) -> dict[int, str]:
        """Returns the current nodes of all shards."""
        self._check_shards(True)
        return {**self._nodes, **({self._own.id: self._here} if self._own is not None else {})}

    def _ask(self, calls: Mapping[str, Call]) -> dict[str, Any]:
        return self._ask_with(calls, lambda: None)[1]

    def _ask_with(self, calls: Mapping[str, Call], meanwhile: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
        """Calls the gateways, and runs `meanwhile` before it waits for them.

        Records nodes that no longer exist as lost.
        """
        from . import _actors

        buffer = self._number, self._home
        with told_of_end(_SHUT_DOWN):
            in_flight = _actors.Calls(
                {node: (method, *buffer, *arguments) for node, (method, arguments) in calls.items()}
            )
            mine = meanwhile()
            answers, gone = in_flight.answers()
        self.lost |= gone
        self._nodes = {s: node for s, node in self._nodes.items() if node not in gone}
        return mine, answers

    # --- Files

    def save(self, path: str, buffer: int) -> list[Saved]:
        nodes = self._all()
        saving = Saving(buffer, time.time_ns(), sorted(nodes))
        answers = self._ask(dict.fromkeys(nodes.values(), ("save", (path, saving))))
        return [saved for saved in answers.values() if saved is not None]

    def load(self, nodes: Mapping[int, str], path: str, how: Loading) -> None:
        """Makes each node load the shard with the given number. Raises the error of a node that fails."""
        try:
            self._ask({node: ("load", (path, shard, how)) for shard, node in nodes.items()})
            if self.lost:
                raise PeerDied((node, 0) for node in sorted(self.lost))
        except BaseException:
            self.shutdown()
            raise

    # --- Shutdown

    def shutdown(self) -> None:
        from . import _actors

        with told_of_end(_SHUT_DOWN):
            _actors.call(self._home, "replay", "end", self._number)

    def close(self) -> None:
        with self._opening:
            own, self._own = self._own, None
        if own is not None:
            own.buffer.close()


def find(path: str, how: Loading, missing_ok: bool) -> Loads:
    """Returns which node loads which of the shards that are saved below `path`."""
    from . import _actors

    seen, _ = _actors.Calls(dict.fromkeys(_actors.nodes(), ("saved", path, how))).answers()
    return assign(path, seen, how, missing_ok)
