"""The observer's snapshot as OpenMetrics text, for Prometheus.

https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md
"""

from __future__ import annotations

import argparse
import http.server
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .._ipc.observer import Observer
from .._process import lifetime
from . import tables

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_STUCK_S = 10.0  # closes a connection if its client sends nothing for this long


class _Family(NamedTuple):
    """A metric, and the value that it takes from an object."""

    name: str
    help: str
    key: str
    kind: str = "gauge"


def _counter(name: str, text: str, key: str) -> _Family:
    return _Family(name, text, key, "counter")


#: Metrics of each kind of object in an arena. The keys are those of `observe`.
_ARENA = [
    _Family("arena_max_bytes", "The arena's budget.", "max_bytes"),
    _Family("arena_committed_bytes", "Memory that the arena has from the system.", "committed_bytes"),
    _Family("arena_used_bytes", "Memory in blocks.", "used_bytes"),
    _Family("arena_held_bytes", "Memory that processes hold, by views and by what they made.", "held_bytes"),
    _Family("arena_blocks", "Blocks.", "blocks"),
    _Family("arena_participants", "Processes that take part, and killed ones not cleaned up after.", "taking"),
    _Family("arena_killed", "Killed ones not cleaned up after.", "killed"),
    _Family("arena_stopped", "Those that are stopped.", "stopped"),
    _counter("arena_reconciles", "Times that somebody was cleaned up after.", "reconciles"),
]  # fmt: skip
_HOLDER = [
    _Family("holder_bytes", "Memory that a process holds.", "bytes"),
    _Family("holder_seconds", "For how long it has held the oldest of it.", "seconds"),
]
_WAIT = [
    _Family("waiting_threads", "Threads that sleep in a call.", "threads"),
    _Family("waiting_seconds", "For how long the one has slept that came first.", "seconds"),
]
_CHANNEL = [
    _Family("channel_queued", "Messages to be received, with those that were given back.", "queued"),
    _Family("channel_queued_bytes", "Bytes of the messages that were put and not received.", "queued_bytes"),
    _Family("channel_capacity", "Messages that it takes before put() waits.", "capacity"),
    _Family("channel_taken", "Messages that were taken and not acknowledged.", "taken"),
    _Family("channel_rejected", "Messages that were given up after max_attempts, and wait in rejected().", "rejected"),
    _counter("channel_put", "Messages put.", "put"),
    _counter("channel_received", "Messages received.", "received"),
    _counter("channel_dropped", "Messages dropped for newer ones.", "dropped"),
    _Family("channel_senders", "Processes that take part in sending.", "senders_counting"),
    _Family("channel_receivers", "Processes that take part in receiving.", "receivers_counting"),
    _counter("channel_full_seconds", "Time in which somebody slept for room.", "full_seconds"),
    _counter("channel_empty_seconds", "Time in which somebody slept for messages.", "empty_seconds"),
    _Family("channel_oldest_seconds", "The oldest message has been there for at least so long.", "oldest_seconds"),
]
_LIMITING = _Family("channel_limiting", "1: the end that the other one waits for.", "limiting")
_LATEST = [
    _counter("latest_versions", "Versions published.", "version"),
    _Family("latest_publishers", "Processes that publish.", "publishing"),
]
_BROADCAST = [
    _counter("broadcast_put", "Messages put.", "put"),
    _Family("broadcast_kept", "Messages that are there.", "kept"),
    _Family("broadcast_capacity", "Messages that it takes before put() waits for a subscriber.", "capacity"),
    _Family("broadcast_publishers", "Processes that publish.", "publishing"),
]
_SUBSCRIBER = [
    _Family("subscriber_behind", "Messages that a subscriber has not read.", "behind"),
    _counter("subscriber_missed", "Messages that were gone before it read them.", "missed"),
]
_REPLAY = [
    _Family("replay_rows", "Rows that can be drawn.", "rows"),
    _Family("replay_capacity", "Rows that fit.", "capacity"),
    _counter("replay_chunks_opened", "Chunks that rows were added to.", "chunks_opened"),
]
_REFUSED = _Family("refused", "1: what could not be read, and why.", "one")
_LOOK = _Family("look_seconds", "How long this look took.", "seconds")

_FAMILIES = [*_ARENA, *_HOLDER, *_WAIT, *_CHANNEL, _LIMITING, *_LATEST, *_BROADCAST, *_SUBSCRIBER, *_REPLAY]
_FAMILIES += [_REFUSED, _LOOK]


class _Page:
    """The samples of one snapshot, by family."""

    def __init__(self) -> None:
        self._samples: dict[str, list[str]] = defaultdict(list)

    def add(self, families: list[_Family], thing: dict[str, Any], /, **labels: object) -> None:
        text = ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())
        braces = f"{{{text}}}" if text else ""
        for family in families:
            self._samples[family.name].append(f"{braces} {_number(thing[family.key])}")

    def lines(self) -> Iterator[str]:
        for family in _FAMILIES:
            name = f"shmtree_{family.name}"
            suffix = "_total" if family.kind == "counter" else ""
            yield f"# TYPE {name} {family.kind}"
            yield f"# HELP {name} {family.help}"
            for sample in self._samples[family.name]:
                yield f"{name}{suffix}{sample}"
        yield "# EOF"


def _escaped(text: str) -> str:
    return tables.printable(text).replace("\\", "\\\\").replace('"', '\\"')


def _number(value: float) -> str:
    return "+Inf" if value == float("inf") else str(value)


def page(look: dict[str, Any], seconds: float) -> str:
    """Returns a snapshot of an `Observer`, which took `seconds`, as OpenMetrics text."""
    made = _Page()
    for arena in look["arenas"]:
        _add_arena(made, arena)
    made.add([_LOOK], {"seconds": seconds})
    return "\n".join(made.lines()) + "\n"


def _add_arena(made: _Page, arena: dict[str, Any]) -> None:
    uuid = arena["uuid"]
    if arena["refused"]:
        made.add([_REFUSED], {"one": 1}, arena=uuid, thing="arena", reason=arena["refused"])
        return
    people = arena["participants"]
    killed = sum(not one["alive"] for one in people)
    stopped = sum(one["alive"] and one["stopped"] for one in people)
    made.add(_ARENA, {**arena, "taking": len(people), "killed": killed, "stopped": stopped}, arena=uuid)
    for holder in arena["holders"]:
        made.add(_HOLDER, holder, arena=uuid, pid=holder["pid"])
    _add_waits(made, arena)
    for kind, add in (("channel", _add_channel), ("latest", _add_latest), ("broadcast", _add_broadcast),
                      ("replay", _add_replay)):  # fmt: skip
        for number, thing in enumerate(arena[f"{kind}s"]):
            labels = {"arena": uuid, kind: next(iter(thing["names"]), number)}
            if thing["refused"]:
                labels = {"arena": uuid, "thing": f"{kind} {labels[kind]}", "reason": thing["refused"]}
                made.add([_REFUSED], {"one": 1}, **labels)
            else:
                add(made, thing, labels)


def _add_waits(made: _Page, arena: dict[str, Any]) -> None:
    """Adds up the waits of a process for the same object: several of its threads may sleep."""
    waits: dict[tuple[int, str, str], list[float]] = defaultdict(list)
    for one in arena["participants"]:
        for wait in one["waits"] if one["alive"] else ():
            waits[one["pid"], wait["what"], wait["at"]].append(wait["seconds"])
    for (pid, what, at), seconds in waits.items():
        threads = {"threads": len(seconds), "seconds": max(seconds)}
        made.add(_WAIT, threads, arena=arena["uuid"], pid=pid, what=what, at=at)


def _add_channel(made: _Page, channel: dict[str, Any], labels: dict[str, Any]) -> None:
    made.add(_CHANNEL, {**channel, "capacity": channel["capacity"] or float("inf")}, **labels)
    limiting = (channel["limiting"] or {}).get("end")
    for end in ("sending", "receiving"):
        made.add([_LIMITING], {"limiting": int(limiting == end)}, **labels, end=end)


def _add_latest(made: _Page, latest: dict[str, Any], labels: dict[str, Any]) -> None:
    made.add(_LATEST, {**latest, "publishing": len(latest["publishers"])}, **labels)


def _add_broadcast(made: _Page, broadcast: dict[str, Any], labels: dict[str, Any]) -> None:
    made.add(_BROADCAST, {**broadcast, "publishing": len(broadcast["publishers"])}, **labels)
    for number, subscriber in enumerate(broadcast["subscribers"]):
        made.add(_SUBSCRIBER, subscriber, **labels, subscriber=number, pid=subscriber["pid"] or "")


def _add_replay(made: _Page, replay: dict[str, Any], labels: dict[str, Any]) -> None:
    made.add(_REPLAY, replay, **labels)


#: Host names and addresses that always mean this machine, whatever a name server answers.
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
_PORT = re.compile(r":[0-9]*$")


class Server(http.server.ThreadingHTTPServer):
    """Serves a new snapshot for each request, on 127.0.0.1. `port` 0 takes a free one. Raises OSError.

    It answers only requests for a loopback host or for one of `hosts`. A browser on this machine that shows a web page
    sends the host of that page, so the page cannot read the counts.
    """

    daemon_threads = True

    def __init__(self, port: int, hosts: Iterable[str] = ()) -> None:
        self.hosts = _LOOPBACK | {each.lower() for each in hosts}
        super().__init__(("127.0.0.1", port), _Handler)
        self._observer = Observer()
        self._lock = lifetime.lock_in(self, "_lock")
        self.page()  # metrics that need two snapshots are then available for the first request

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/metrics"

    def page(self) -> str:
        with self._lock:
            began = time.perf_counter()
            look = self._observer.look()
            return page(look, time.perf_counter() - began)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores errors: a client may hang up at any moment."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    timeout = _STUCK_S

    def do_GET(self) -> None:
        if not self._is_for_this_host():
            self.send_error(421, "unknown host; use 127.0.0.1 or localhost, or start the server with --host")
            return
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "it is at /metrics")
            return
        body = self.server.page().encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _is_for_this_host(self) -> bool:
        """Returns True if the request names a host that is served, or no host, as in HTTP/1.0."""
        asked = self.headers.get_all("Host") or []
        return all(_PORT.sub("", each.strip()).lower() in self.server.hosts for each in asked)

    def log_message(self, *_: object) -> None:
        """Logs no requests."""


def _run_metrics(options: argparse.Namespace) -> int:
    try:
        server = Server(options.port, options.host)
    except OSError as error:
        print(f"shmtree: port {options.port}: {error.strerror}", file=sys.stderr)
        return 1
    with server:
        print(server.address, flush=True)
        server.serve_forever()
    return 0


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text} is no port: they go from 0, which takes a free one, to 65535")
    return port


def add_to(verbs: Any) -> None:
    verb = verbs.add_parser("metrics", help="all counts as OpenMetrics, for a Prometheus on this machine")
    verb.add_argument("--port", type=_port, required=True, help="on 127.0.0.1; 0 takes a free one")
    verb.add_argument(
        "--host", action="append", default=[], metavar="NAME", help="also answer requests for this host name"
    )
    verb.set_defaults(run=_run_metrics)
