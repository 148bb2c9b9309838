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
def test_who_starts_a_process_from_a_prompt_is_told_what_it_cannot_know(typed):
    ran = subprocess.run([sys.executable, "-i"], input=typed, capture_output=True, text=True, timeout=250)
    assert "told:" in ran.stdout
    assert "put the function into a module and import it" in ran.stdout.split("told:")[1]


def test_elsewhere_a_death_is_told_without_that():
    assert str(shmtree.PeerDied("no senders are left")) == "no senders are left"
