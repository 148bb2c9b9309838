"""The observer's snapshot as OpenMetrics text, for Prometheus.

https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md
"""

from __future__ import annotations

import argparse
import http.server
import json
import re
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .._ipc.observer import Observer
from .._process import lifetime
from . import tables
from .arguments import add_json, add_verb, address, port

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
    _Family("arena_committed_bytes", "Memory that the kernel has allocated for the arena.", "committed_bytes"),
    _Family("arena_used_bytes", "Memory in allocated blocks.", "used_bytes"),
    _Family("arena_held_bytes", "Memory pinned by processes: views, and objects that they created.", "held_bytes"),
    _Family("arena_blocks", "Allocated blocks.", "blocks"),
    _Family("arena_participants", "Attached processes, and dead ones that await recovery.", "taking"),
    _Family("arena_killed", "Dead processes that await recovery.", "killed"),
    _Family("arena_stopped", "Attached processes that are stopped.", "stopped"),
    _counter("arena_reconciles", "Recoveries after the death of a process.", "reconciles"),
]  # fmt: skip
_HOLDER = [
    _Family("holder_bytes", "Memory that a process pins.", "bytes"),
    _Family("holder_seconds", "Time since the process pinned the oldest of these blocks.", "seconds"),
]
_WAIT = [
    _Family("waiting_threads", "Threads that are blocked in a call.", "threads"),
    _Family("waiting_seconds", "Time for which the longest of them has been blocked.", "seconds"),
]
_CHANNEL = [
    _Family("channel_queued", "Messages that can be received, including nacked ones.", "queued"),
    _Family("channel_queued_bytes", "Bytes of the messages that were put and not yet received.", "queued_bytes"),
    _Family("channel_capacity", "Number of messages at which put() waits.", "capacity"),
    _Family("channel_taken", "Unacked messages.", "taken"),
    _Family("channel_dead_letters", "Messages that reached max_attempts and are in dead_letters().", "dead_letters"),
    _counter("channel_put", "Messages put.", "put"),
    _counter("channel_received", "Messages received.", "received"),
    _counter("channel_dropped", "Messages dropped for newer ones.", "dropped"),
    _Family("channel_senders", "Processes attached as senders.", "senders_attached"),
    _Family("channel_receivers", "Processes attached as receivers.", "receivers_attached"),
    _counter("channel_full_seconds", "Time during which at least one thread waited for space.", "full_seconds"),
    _counter("channel_empty_seconds", "Time during which at least one thread waited for messages.", "empty_seconds"),
    _Family("channel_oldest_seconds", "Minimum age of the oldest message.", "oldest_seconds"),
]
_LIMITING = _Family("channel_limiting", "1: the other end of the channel waits for this end.", "limiting")
_LATEST = [
    _counter("latest_versions", "Versions published.", "version"),
    _Family("latest_publishers", "Attached publishers.", "publishing"),
]
_BROADCAST = [
    _counter("broadcast_put", "Messages put.", "put"),
    _Family("broadcast_kept", "Messages that can still be read.", "kept"),
    _Family("broadcast_capacity", "Number of messages at which put() waits for a subscriber.", "capacity"),
    _Family("broadcast_publishers", "Attached publishers.", "publishing"),
]
_SUBSCRIBER = [
    _Family("subscriber_behind", "Messages that the subscriber has not read yet.", "behind"),
    _counter("subscriber_missed", "Messages that were overwritten before the subscriber read them.", "missed"),
]
_REPLAY = [
    _Family("replay_rows", "Rows that can be sampled.", "rows"),
    _Family("replay_capacity", "Maximum number of rows.", "capacity"),
    _counter("replay_chunks_opened", "Chunks that rows were added to.", "chunks_opened"),
]
_REFUSED = _Family("refused", "1: the object cannot be read; `reason` says why.", "one")
_LOOK = _Family("look_seconds", "Duration of this snapshot.", "seconds")

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


def page(snapshot: dict[str, Any], seconds: float) -> str:
    """Returns a snapshot of an `Observer`, which took `seconds`, as OpenMetrics text."""
    made = _Page()
    for arena in snapshot["arenas"]:
        _add_arena(made, arena)
    made.add([_LOOK], {"seconds": seconds})
    return "\n".join(made.lines()) + "\n"


def _add_arena(made: _Page, arena: dict[str, Any]) -> None:
    uuid = arena["uuid"]
    if arena["refused"]:
        made.add([_REFUSED], {"one": 1}, arena=uuid, thing="arena", reason=arena["refused"])
        return
    processes = arena["participants"]
    killed = sum(not one["alive"] for one in processes)
    stopped = sum(one["alive"] and one["stopped"] for one in processes)
    made.add(_ARENA, {**arena, "taking": len(processes), "killed": killed, "stopped": stopped}, arena=uuid)
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
    for end in ("sender", "receiver"):
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
_DEFAULT_HOST, _DEFAULT_PORT = "127.0.0.1", 9123


def _as_in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class Server(http.server.ThreadingHTTPServer):
    """Serves a new snapshot for each request. `port` 0 takes a free one. Raises OSError.

    It answers only requests for a loopback host, for the address at which they arrive, for `host`, or for one of
    `names`. A browser that shows a web page sends the host of that page, so the page cannot read the counts.
    """

    daemon_threads = True

    def __init__(self, port: int, host: str = _DEFAULT_HOST, names: Iterable[str] = ()) -> None:
        self.hosts = _LOOPBACK | {_as_in_url(host).lower()} | {each.lower() for each in names}
        self._host = _as_in_url(host)
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)
        self._observer = Observer()
        self._lock = lifetime.lock_in(self, "_lock")
        self.page()  # metrics that need two snapshots are then available for the first request

    @property
    def address(self) -> str:
        return f"http://{self._host}:{self.server_port}/metrics"

    def page(self) -> str:
        with self._lock:
            began = time.perf_counter()
            snapshot = self._observer.look()
            return page(snapshot, time.perf_counter() - began)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores errors: a client may hang up at any moment."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    timeout = _STUCK_S

    def do_GET(self) -> None:
        if not self._is_for_this_host():
            self.send_error(421, "unknown host; use an address of this server, or start it with --allow-host")
            return
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "the metrics are at /metrics")
            return
        body = self.server.page().encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _is_for_this_host(self) -> bool:
        """Returns True if the request names a host that is served, or no host, as in HTTP/1.0."""
        here = self.connection.getsockname()[0].removeprefix("::ffff:")  # an IPv4 client at an IPv6 socket
        hosts = self.server.hosts | {_as_in_url(here)}
        asked = self.headers.get_all("Host") or []
        return all(_PORT.sub("", each.strip()).lower() in hosts for each in asked)

    def log_message(self, *_: object) -> None:
        """Logs no requests."""


def _run_metrics(options: argparse.Namespace) -> int:
    try:
        server = Server(options.port, options.host, options.allow_host)
    except OSError as error:
        where = f"{_as_in_url(options.host)}, port {options.port}"
        print(f"shmtree: cannot listen on {where}: {error.strerror}", file=sys.stderr)
        return 1
    with server:
        print(json.dumps({"address": server.address}) if options.json else server.address, flush=True)
        server.serve_forever()
    return 0


def add_to(verbs: Any) -> None:
    verb = add_verb(
        verbs,
        "metrics",
        "serve all statistics to Prometheus",
        """
        shmtree metrics
        shmtree metrics --port 0
        shmtree metrics --host 0.0.0.0 --allow-host node7.example
        """,
        "The format is OpenMetrics. It prints its address, and runs until you end it.",
    )
    verb.add_argument(
        "--host",
        metavar="ADDRESS",
        type=address,
        default=_DEFAULT_HOST,
        help="address to listen at (default: %(default)s, for processes of this machine only)",
    )
    verb.add_argument(
        "--port",
        metavar="N",
        type=port,
        default=_DEFAULT_PORT,
        help="TCP port (default: %(default)s); 0: any free port",
    )
    verb.add_argument(
        "--allow-host", action="append", default=[], metavar="HOST", help="also answer requests for this host name"
    )
    add_json(verb, "print the address as a line of JSON")
    verb.set_defaults(run=_run_metrics)
