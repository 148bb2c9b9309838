"""Receivers and subscribers survive memory that another process has damaged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

# A damaged word may still be valid: it says that a queue was shut down, or names another frame version or class.
POSSIBLE = (
    r"a value|Empty|CorruptMessage|ShutDown: the queue was shut down|ChannelClosed: this subscription was closed"
    r"|ChannelClosed: the stream has ended: every sender has closed or exited"
    r"|IncompatibleMessage: The frame has version \d+; this library reads version 2"
    r"|PickleRefused: The message needs '.*', which is not registered here: call shmtree.register\(\) for it"
)


@pytest.mark.parametrize("what", ["channel", "broadcast", "receiver", "subscriber"])
def test_get_survives_any_damaged_word_and_reports_corruption(what):
    program = Path(__file__).parents[1] / "support" / "damaged_words.py"
    ran = subprocess.run([sys.executable, program, what], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    words, *outcomes = ran.stdout.splitlines()
    seen = dict(reversed(re.fullmatch(r"(\d+) times (.*)", each).groups()) for each in outcomes)
    assert int(words.split()[0]) >= 200
    assert int(seen["CorruptMessage"]) > 50
    assert [each for each in seen if not re.fullmatch(POSSIBLE, each)] == []
