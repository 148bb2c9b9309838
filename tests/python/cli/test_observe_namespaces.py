"""Observing across PID namespaces: from outside with pids that are valid there; from inside it is not possible."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import shmtree

NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc"]


@pytest.fixture(autouse=True)
def may_make_namespaces(runtime_directory) -> None:
    if subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode != 0:
        pytest.skip("this user may not make a PID namespace")


def test_observer_reports_the_outer_pid_of_a_namespaced_process(name):
    program = f"""if True:
        import os, sys, shmtree
        sender, receiver = shmtree.create_pair(name={name!r})
        sender.put("x")
        print(os.getpid(), flush=True)
        sys.stdin.read()
        """
    command = [*NAMESPACE, sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as inside:
        assert inside.stdout is not None
        said = int(inside.stdout.readline())
        ((arena, channel),) = [
            (arena, channel)
            for arena in shmtree.observe()["arenas"]
            for channel in arena.get("channels", ())
            if channel["name"] == name
        ]
        (participant,) = arena["participants"]
        assert (participant["namespace_pid"], participant["alive"]) == (said, True)
        assert participant["pid"] in [opener["pid"] for opener in arena["openers"]]
        assert os.stat(f"/proc/{participant['pid']}").st_uid == os.geteuid()
        assert channel["sender_pids"] == [participant["pid"]]
        inside.communicate()


def test_arena_of_an_outer_pid_namespace_is_reported_as_refused(name):
    _sender, receiver = shmtree.create_pair(name=name)
    program = "import json, shmtree; print(json.dumps(shmtree.observe()))"
    ran = subprocess.run(
        [*NAMESPACE, sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    (seen,) = [arena for arena in json.loads(ran.stdout)["arenas"] if name in arena["names"]]
    assert "PID namespace" in seen["refused"]
    assert seen["openers"] == []
    assert "channels" not in seen
    assert receiver.stats()["put"] == 0
