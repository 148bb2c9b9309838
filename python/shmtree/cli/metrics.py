"""The observer's snapshot as OpenMetrics text, for Prometheus.

https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md
"""

from __future__ import annotations

import argparse
import http.server
import importlib.util
import json
import re
import socket
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from .._ipc.observer import Observer
from .._process import lifetime
from . import drawing
from .arguments import add_json, add_verb, address, port
from .results import failed

_STUCK_S = 10.0  # closes a connection if its client sends nothing for this long

#: Metrics of each kind of object in an arena: name, help, and the key of `observe`. Counters' names end with `_total`.
_ARENA = [
    ("arena_max_bytes", "The arena's budget.", "max_bytes"),
    ("arena_committed_bytes", "Memory that the kernel has allocated for the arena.", "committed_bytes"),
    ("arena_used_bytes", "Memory in allocated blocks.", "used_bytes"),
    ("arena_held_bytes", "Memory pinned by processes: views, and objects that they created.", "held_bytes"),
    ("arena_blocks", "Allocated blocks.", "blocks"),
    ("arena_participants", "Attached processes, and dead ones that await recovery.", "taking"),
    ("arena_killed", "Dead processes that await recovery.", "killed"),
    ("arena_stopped", "Attached processes that are stopped.", "stopped"),
    ("arena_reconciles_total", "Recoveries after the death of a process.", "reconciles"),
]
_HOLDER = [
    ("holder_bytes", "Memory that a process pins.", "bytes"),
    ("holder_seconds", "Time since the process pinned the oldest of these blocks.", "seconds"),
]
_WAIT = [
    ("waiting_threads", "Threads that are blocked in a call.", "threads"),
    ("waiting_seconds", "Time for which the longest of them has been blocked.", "seconds"),
]
_CHANNEL = [
    ("channel_queued", "Messages that can be received, including nacked ones.", "queued"),
    ("channel_queued_bytes", "Bytes of the messages that were put and not yet received.", "queued_bytes"),
    ("channel_capacity", "Number of messages at which put() waits.", "capacity"),
    ("channel_taken", "Unacked messages.", "taken"),
    ("channel_dead_letters", "Messages that reached max_attempts and are in dead_letters().", "dead_letters"),
    ("channel_put_total", "Messages put.", "put"),
    ("channel_received_total", "Messages received.", "received"),
    ("channel_dropped_total", "Messages dropped for newer ones.", "dropped"),
    ("channel_senders", "Processes attached as senders.", "senders_attached"),
    ("channel_receivers", "Processes attached as receivers.", "receivers_attached"),
    ("channel_full_seconds_total", "Time during which at least one thread waited for space.", "full_seconds"),
    ("channel_empty_seconds_total", "Time during which at least one thread waited for messages.", "empty_seconds"),
    ("channel_oldest_seconds", "Minimum age of the oldest message.", "oldest_seconds"),
]
_LIMITING = [("channel_limiting", "1: the other end of the channel waits for this end.", "limiting")]
_LATEST = [
    ("latest_versions_total", "Versions published.", "version"),
    ("latest_publishers", "Attached publishers.", "publishing"),
]
_BROADCAST = [
    ("broadcast_put_total", "Messages put.", "put"),
    ("broadcast_kept", "Messages that can still be read.", "kept"),
    ("broadcast_capacity", "Number of messages at which put() waits for a subscriber.", "capacity"),
    ("broadcast_publishers", "Attached publishers.", "publishing"),
]
_SUBSCRIBER = [
    ("subscriber_behind", "Messages that the subscriber has not read yet.", "behind"),
    ("subscriber_missed_total", "Messages that were overwritten before the subscriber read them.", "missed"),
]
_REPLAY = [
    ("replay_rows", "Rows that can be sampled.", "rows"),
    ("replay_capacity", "Maximum number of rows.", "capacity"),
    ("replay_chunks_opened_total", "Chunks that rows were added to.", "chunks_opened"),
]
_REFUSED = [("refused", "1: the object cannot be read; `reason` says why.", "one")]
_LOOK = [("look_seconds", "Duration of this snapshot.", "seconds")]
_ALL = [
    *_ARENA, *_HOLDER, *_WAIT, *_CHANNEL, *_LIMITING, *_LATEST, *_BROADCAST, *_SUBSCRIBER, *_REPLAY, *_REFUSED, *_LOOK
]  # fmt: skip


class _Page:
    """The samples of one snapshot. Stands for a registry of prometheus_client, which calls only `collect`."""

    def __init__(self) -> None:
        from prometheus_client.core import Metric

        self._metrics = {
            name: Metric(f"shmtree_{name.removesuffix('_total')}", text, "counter" if "_total" in name else "gauge")
            for name, text, _ in _ALL
        }

    def add(self, families: list[tuple[str, str, str]], entry: dict[str, Any], /, **labels: object) -> None:
        printable = {key: drawing.printable(str(value)) for key, value in labels.items()}
        for name, _, key in families:
            self._metrics[name].add_sample(f"shmtree_{name}", printable, entry[key])

    def collect(self) -> Iterable[Any]:
        return self._metrics.values()


def page(snapshot: dict[str, Any], seconds: float) -> str:
    """Returns a snapshot of an `Observer`, which took `seconds`, as OpenMetrics text."""
    from prometheus_client.openmetrics import exposition

    generate_latest: Any = exposition.generate_latest
    page = _Page()
    for arena in snapshot["arenas"]:
        _add_arena(page, arena)
    page.add(_LOOK, {"seconds": seconds})
    return bytes(generate_latest(page)).decode()


def _add_arena(page: _Page, arena: dict[str, Any]) -> None:
    uuid = arena["uuid"]
    if arena["refused"]:
        page.add(_REFUSED, {"one": 1}, arena=uuid, thing="arena", reason=arena["refused"])
        return
    processes = arena["participants"]
    killed = sum(not one["alive"] for one in processes)
    stopped = sum(one["alive"] and one["stopped"] for one in processes)
    page.add(_ARENA, {**arena, "taking": len(processes), "killed": killed, "stopped": stopped}, arena=uuid)
    for holder in arena["holders"]:
        page.add(_HOLDER, holder, arena=uuid, pid=holder["pid"])
    _add_waits(page, arena)
    for kind, families in (("channel", _CHANNEL), ("latest", _LATEST), ("broadcast", _BROADCAST), ("replay", _REPLAY)):
        for number, entry in enumerate(arena[f"{kind}s"]):
            labels = {"arena": uuid, kind: next(iter(entry["names"]), number)}
            if entry["refused"]:
                labels = {"arena": uuid, "thing": f"{kind} {labels[kind]}", "reason": entry["refused"]}
                page.add(_REFUSED, {"one": 1}, **labels)
                continue
            capacity = entry.get("capacity") or float("inf")
            page.add(
                families,
                {**entry, "capacity": capacity, "publishing": len(entry.get("publishers", ()))},
                **labels,
            )
            for end in ("sender", "receiver") if kind == "channel" else ():
                limits = (entry["limiting"] or {}).get("end") == end
                page.add(_LIMITING, {"limiting": int(limits)}, **labels, end=end)
            for number, subscriber in enumerate(entry["subscribers"] if kind == "broadcast" else ()):
                page.add(_SUBSCRIBER, subscriber, **labels, subscriber=number, pid=subscriber["pid"] or "")


def _add_waits(page: _Page, arena: dict[str, Any]) -> None:
    """Adds up the waits of a process for the same object: several of its threads may sleep."""
    waits: dict[tuple[int, str, str], list[float]] = defaultdict(list)
    for one in arena["participants"]:
        for wait in one["waits"] if one["alive"] else ():
            waits[one["pid"], wait["what"], wait["at"]].append(wait["seconds"])
    for (pid, what, at), seconds in waits.items():
        threads = {"threads": len(seconds), "seconds": max(seconds)}
        page.add(_WAIT, threads, arena=arena["uuid"], pid=pid, what=what, at=at)


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
        self.send_header("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
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
    if importlib.util.find_spec("prometheus_client") is None:
        return failed('metrics needs prometheus-client; run pip install "shmtree[metrics]"')
    try:
        server = Server(options.port, options.host, options.allow_host)
    except OSError as error:
        where = f"{_as_in_url(options.host)}, port {options.port}"
        return failed(f"cannot listen on {where}: {error.strerror or error}")
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
