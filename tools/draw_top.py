"""Draws `shmtree top` for a small pipeline, as in docs/top.svg: `python tools/draw_top.py docs/top.svg`."""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import tempfile
import time

import numpy as np
from rich.console import Console

import shmtree
from shmtree._ipc.observer import Observer
from shmtree.cli import drawing, screen

WIDTH = 80
SECONDS = 2.0


def act(samples: shmtree.Sender) -> None:
    while True:
        samples.put({"obs": np.zeros((4, 84, 84), np.uint8), "reward": 1.0})


def collate(samples: shmtree.Receiver, batches: shmtree.Sender) -> None:
    while True:
        batch = [samples.get() for _ in range(8)]
        time.sleep(0.02)  # this stage limits the pipeline
        batches.put({"obs": np.stack([sample["obs"] for sample in batch])})


def learn(batches: shmtree.Receiver) -> None:
    while True:
        batches.get()


def draw(path: str) -> None:
    samples, batches = shmtree.create_pair(64, name="samples"), shmtree.create_pair(4, name="batches")
    stages = [(act, samples[0]), (act, samples[0]), (collate, samples[1], batches[0]), (learn, batches[1])]
    processes = [mp.Process(target=stage, args=ends, daemon=True) for stage, *ends in stages]
    for process in processes:
        process.start()
    for end in (*samples, *batches):
        end.close()
    observer = Observer()
    for _ in range(2):
        time.sleep(SECONDS)
        look = observer.look()
    look["arenas"] = [arena for arena in look["arenas"] if {"samples", "batches"} & {*names_in(arena)}]
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere)
        console.print(*(drawing.drawn(block, WIDTH) for block in screen.blocks(look)), sep="\n")
    console.save_svg(path, title="shmtree top")
    for process in processes:
        process.kill()


def names_in(arena: dict) -> list[str]:
    return [name for channel in arena.get("channels", ()) for name in channel["names"]]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SHMTREE_NAMES_DIR"] = f"{folder}/shmtree"  # avoids conflicts with names of other programs
        draw(parser.parse_args().path)
