"""Metrics of the observer, as Prometheus reads them."""

from __future__ import annotations

import contextlib
import http.client
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import numpy as np
import pytest
from test_observe import channel_called, file_bytes, run

import shmtree
from shmtree.cli.metrics import page
from shmtree.replay import ReplayBuffer

parser = pytest.importorskip("prometheus_client.openmetrics.parser")

pytestmark = pytest.mark.usefixtures("runtime_directory")

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@contextlib.contextmanager
def metrics_of(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Yields the address that the command prints, and its process."""
    command = [sys.executable, "-W", "error", "-m", "shmtree", "metrics", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            yield server.stdout.readline().strip(), server
        finally:
            server.kill()


def read(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        text: str = answer.read().decode()
    return text


def samples(address: str) -> Samples:
    return parsed(read(address))


def parsed(text: str) -> Samples:
    """Parses metrics with the reference parser, which rejects anything but OpenMetrics."""
    found: Samples = {}
    for family in parser.text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            found[sample.name, frozenset(sample.labels.items())] = sample.value
    return found


def value(of: Samples, name: str, **labels: Any) -> float:
    wanted = {(key, str(each)) for key, each in labels.items()}
    (found,) = [each for (sample, has), each in of.items() if sample == f"shmtree_{name}" and wanted <= has]
    return found


def test_metrics_count_messages_of_a_channel(name):
    sender, receiver = shmtree.create_pair(3, name=name)
    endless, _receiver = shmtree.create_pair(None)
    for number in range(3):
        sender.put(number)
    receiver.get()
    with metrics_of() as (address, _):
        assert address.startswith("http://127.0.0.1:") and address.endswith("/metrics")
        seen = samples(address)
        arena, _channel = channel_called(shmtree.observe(), name)
        for metric, count in (("put_total", 3), ("received_total", 1), ("queued", 2), ("capacity", 3), ("senders", 1)):
            assert value(seen, f"channel_{metric}", channel=name, arena=arena["uuid"]) == count
        assert value(seen, "channel_limiting", channel=name, end="receiver") == 0
        assert math.inf in [each for (sample, _), each in seen.items() if sample == "shmtree_channel_capacity"]
        assert value(seen, "arena_participants", arena=arena["uuid"]) == 1
        assert value(seen, "look_seconds") > 0
        sender.put(3)
        again = samples(address)
        assert value(again, "channel_put_total", channel=name) == 4
        assert value(again, "channel_limiting", channel=name, end="receiver") == 1  # the channel is full
    endless.close()


def test_metrics_count_waiting_threads_and_pinned_bytes(name):
    sender, receiver = shmtree.create_pair(2, name=name)
    sender.put(np.zeros(1 << 20, np.uint8))
    view = receiver.get()
    waiting = threading.Thread(target=receiver.get, daemon=True)
    waiting.start()
    with metrics_of() as (address, _):

        def waiting_threads() -> list[Any]:
            of_channel = ("at", f"channel {name}")
            return [key for key in samples(address) if key[0] == "shmtree_waiting_threads" and of_channel in key[1]]

        while not waiting_threads():
            time.sleep(0.01)
        seen = samples(address)
        # Select this arena: this process may still hold messages of other arenas, from earlier tests.
        here = {"arena": channel_called(shmtree.observe(), name)[0]["uuid"], "pid": os.getpid()}
        assert value(seen, "waiting_threads", what="message", at=f"channel {name}", **here) == 1
        assert value(seen, "waiting_seconds", what="message", **here) >= 0
        assert value(seen, "holder_bytes", **here) >= view.nbytes
        assert value(seen, "holder_seconds", **here) >= 0
        while value(samples(address), "channel_empty_seconds_total", channel=name) < 0.3:
            time.sleep(0.01)
        sender.put(None)
        waiting.join(60)
        assert not waiting_threads()


def test_metrics_of_latest_broadcast_and_replay_buffer():
    latest = shmtree.Latest(name="weights", history=2)
    broadcast = shmtree.Broadcast(4, name="frames")
    subscriber = broadcast.subscribe(on_lag="skip")
    replay = ReplayBuffer(100, example={"x": 0.0}, name="rows")
    for number in range(6):
        latest.publish(number)
        broadcast.put(number)
        replay.add({"x": float(number)})
    assert subscriber.get() == 2
    with metrics_of() as (address, _):
        seen = samples(address)
    assert value(seen, "latest_versions_total", latest="weights") == 6
    assert value(seen, "latest_publishers", latest="weights") == 1
    assert value(seen, "broadcast_put_total", broadcast="frames") == 6
    assert value(seen, "subscriber_behind", broadcast="frames", pid=os.getpid()) == 3
    assert value(seen, "subscriber_missed_total", broadcast="frames", subscriber=0) == 2
    assert value(seen, "replay_rows", replay="rows") == 6
    assert value(seen, "replay_capacity", replay="rows") == 100


def test_metrics_escape_names_in_labels():
    odd = 'a"b\\c'
    _sender, _receiver = shmtree.create_pair(name=odd)
    with metrics_of() as (address, _):
        assert value(samples(address), "channel_put_total", channel=odd) == 0


def test_metrics_report_unreadable_objects_with_the_reason(name):
    _sender, _receiver = shmtree.create_pair(name=name)
    arena, channel = channel_called(shmtree.observe(), name)
    channel["refused"] = "of another version"
    seen = parsed(page({"arenas": [arena, {"uuid": "abc", "refused": 'it said "no"'}]}, 0.5))
    assert value(seen, "refused", arena="abc", thing="arena", reason='it said "no"') == 1
    assert value(seen, "refused", arena=arena["uuid"], thing=f"channel {name}", reason="of another version") == 1
    assert value(seen, "look_seconds") == 0.5
    assert not [key for key in seen if key[0] == "shmtree_channel_queued"]


def be_killed(name: str) -> None:
    sender = shmtree.open_sender(name)
    sender.put(1)
    os.kill(os.getpid(), signal.SIGKILL)


def test_dead_processes_are_counted_until_recovery(start, name):
    sender, receiver = shmtree.create_pair(name=name)
    child = start(be_killed, name)
    child.join(60)
    sender.close()
    with metrics_of() as (address, _):
        uuid = channel_called(shmtree.observe(), name)[0]["uuid"]
        assert value(samples(address), "arena_killed", arena=uuid) == 1
        assert receiver.get() == 1
        with pytest.raises(shmtree.PeerDied):
            receiver.get(timeout=60)
        assert value(samples(address), "arena_killed", arena=uuid) == 0
        assert value(samples(address), "arena_reconciles_total", arena=uuid) >= 1


@pytest.mark.guarantee("observer-is-passive")
def test_requests_change_no_byte_even_if_the_server_is_killed(name):
    sender, _receiver = shmtree.Arena(8 << 20).create_pair(name=name)
    sender.put(np.zeros(1 << 20, np.uint8))
    arena, _channel = channel_called(shmtree.observe(), name)
    before = file_bytes(arena)
    for pause in (0.0, 0.001, 0.01):
        with metrics_of() as (address, server):
            with futures.ThreadPoolExecutor(4) as threads:
                asked = [threads.submit(read, address) for _ in range(20)]
                time.sleep(pause)
                server.send_signal(signal.SIGKILL)
                futures.wait(asked)
            assert server.wait(60) == -signal.SIGKILL
    assert file_bytes(arena) == before


def test_server_answers_many_clients_while_one_is_silent(name):
    _sender, _receiver = shmtree.create_pair(name=name)
    with metrics_of() as (address, _):
        port = int(address.split(":")[2].split("/")[0])
        with socket.create_connection(("127.0.0.1", port), timeout=60), futures.ThreadPoolExecutor(8) as threads:
            asked = [threads.submit(samples, address) for _ in range(40)]
            assert all(value(each.result(60), "channel_put_total", channel=name) == 0 for each in asked)


def test_other_path_is_404_and_port_in_use_is_an_error():
    with metrics_of() as (address, server):
        with pytest.raises(urllib.error.HTTPError, match="404") as caught:
            urllib.request.urlopen(address.removesuffix("metrics"), timeout=60)
        caught.value.close()
        port = address.split(":")[2].split("/")[0]
        assert f"port {port}: Address already in use" in run("metrics", "--port", port, code=1)
        assert "it must be 0 to 65535; 0 is any free port" in run("metrics", "--port", "65536", code=2)
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0


def status_of(address: str, host: str | None) -> int:
    """Returns the status of a request with this Host header, or without one if `host` is None."""
    place = urllib.parse.urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    connection.putrequest("GET", "/metrics", skip_host=True)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    with contextlib.closing(connection):
        return connection.getresponse().status


def port_of(address: str) -> int:
    return urllib.parse.urlsplit(address).port or 0


def test_server_listens_at_another_address_and_answers_for_it() -> None:
    with metrics_of("--host", "127.0.0.2") as (address, _):
        assert address.startswith("http://127.0.0.2:")
        assert [status_of(address, host) for host in ("127.0.0.2", "localhost", "evil.example")] == [200, 200, 421]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port_of(address)), timeout=60)
    with metrics_of("--host", "0.0.0.0") as (address, _):
        at = f"http://127.0.0.3:{port_of(address)}/metrics"
        assert [status_of(at, host) for host in ("127.0.0.3", "0.0.0.0", "127.0.0.4")] == [200, 200, 421]
    assert "cannot listen on 192.0.2.1, port 0: " in run("metrics", "--host", "192.0.2.1", "--port", "0", code=1)


def test_server_listens_at_an_ipv6_address() -> None:
    with contextlib.closing(socket.socket(socket.AF_INET6)) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
    with metrics_of("--host", "::1") as (address, _):
        assert address.startswith("http://[::1]:")
        assert [status_of(address, host) for host in ("[::1]:80", "localhost", "evil.example")] == [200, 200, 421]


def test_server_answers_only_requests_for_its_own_host() -> None:
    with metrics_of("--allow-host", "here.example") as (address, _):
        for host in ("127.0.0.1", "localhost:9000", "LOCALHOST", "[::1]:80", "here.example:1", None):
            assert status_of(address, host) == 200
        for host in ("evil.example", "evil.example:80", "", "127.0.0.1.evil.example", "localhost.evil.example"):
            assert status_of(address, host) == 421
