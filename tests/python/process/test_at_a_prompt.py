"""Processes that are started from an interactive Python."""

from __future__ import annotations

import subprocess
import sys

import pytest

import shmtree

PAIR = """
import multiprocessing as mp
import shmtree
def work(sender): sender.put(1)

sender, receiver = shmtree.create_pair()
process = mp.get_context("spawn").Process(target=work, args=(sender,)); process.start()
try: receiver.get(timeout=60)
except shmtree.PeerDied as error: print("told:", error)

"""
ITERATED = """
import shmtree
def work(): yield 1

try: list(shmtree.iterate_in_subprocess(work))
except AttributeError as error: print("told:", error)

"""


@pytest.mark.parametrize("typed", [PAIR, ITERATED], ids=["process", "iterated"])
def test_error_for_a_function_of_a_prompt_suggests_a_module(typed):
    ran = subprocess.run([sys.executable, "-i"], input=typed, capture_output=True, text=True, timeout=250)
    assert "told:" in ran.stdout
    assert "put the function into a module and import it" in ran.stdout.split("told:")[1]


def test_peer_died_outside_a_prompt_has_no_hint():
    assert str(shmtree.PeerDied("no senders are left")) == "no senders are left"
