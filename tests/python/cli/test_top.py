"""The limiting stage that `top` reports, and how it redraws its output on a terminal."""

from __future__ import annotations

import subprocess
import sys

import pytest
from terminals import pseudo_terminal
from test_observe import channel_look, limiting_line


def test_full_channel_without_waiting_senders_limits_last():
    served = channel_look(
        "c0", full_share=0.5, sender_pids=[1], receiver_pids=[2], limiting={"end": "receiving", "pids": [2]}
    )
    waits = channel_look("c2", empty_share=0.9, sender_pids=[3], receiver_pids=[2])
    left = channel_look("c1", queued=9, sender_pids=[1], receiver_pids=[], limiting={"end": "receiving", "pids": []})
    assert limiting_line(served, waits, left) == "Bottleneck: the process that receives from c0, 2."
    assert limiting_line(left) == "Bottleneck: no process receives from c1."


def test_top_on_a_terminal_without_descriptors_is_an_error(runtime_directory):
    pytest.importorskip("rich")
    code = (
        "import os, resource, sys, rich.live, rich.text, shmtree; from shmtree.__main__ import main;"
        " free = os.dup(0); resource.setrlimit(resource.RLIMIT_NOFILE, (free, 4096)); os.close(free);"
        " sys.exit(main(['top']))"
    )
    with pseudo_terminal() as (_, theirs):
        ran = subprocess.run(
            [sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert ran.returncode == 1
    assert "Too many open files" in ran.stderr
    assert "Traceback" not in ran.stderr
