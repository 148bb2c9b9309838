"""``python -m shmtree save`` and ``load``: replay buffers in files."""

from __future__ import annotations

import argparse
import time
from typing import Any

from ..replay import ReplayBuffer
from . import drawing, progress
from .arguments import add_json, add_verb, rows
from .results import count, print_line


def _save(options: argparse.Namespace) -> int:
    with ReplayBuffer.open(options.name) as buffer, progress.Bar("saving") as bar:
        saved = buffer.save(options.out, progress=bar.show_bytes)
    name, out = drawing.printable(options.name), drawing.printable(options.out)
    sizes = f"{drawing.size(saved.written)} written, {drawing.size(saved.nbytes)} in all files"
    text = f"saved {count(saved.rows, 'row')} of {name} to {out}: {sizes}"
    about = {"save": saved.save, "written": saved.written, "nbytes": saved.nbytes}
    print_line(options, text, saved=saved.rows, name=options.name, out=options.out, **about)
    return 0


def _load(options: argparse.Namespace) -> int:
    with progress.Bar("loading") as bar:
        buffer = ReplayBuffer.load(options.path, options.capacity, name=options.name, progress=bar.show_bytes)
    path, name = drawing.printable(options.path), drawing.printable(options.name)
    with buffer:
        text = f"loaded {count(len(buffer), 'row')} from {path} as {name}"
        print_line(options, text, loaded=len(buffer), path=options.path, name=options.name)
        while True:
            time.sleep(1.0)  # a signal that comes just before a longer sleep would not end it


def _add_save(verbs: Any) -> None:
    verb = add_verb(
        verbs,
        "save",
        "write a replay buffer to files",
        """
        shmtree save experience --out checkpoint
        shmtree save experience --out checkpoint --json
        """,
        "Other processes continue to use the buffer. Rows that DIR already has are not written again. After an error or"
        " an interrupt, DIR has the previous save.",
    )
    verb.add_argument("name", metavar="NAME", help="name of a replay buffer")
    verb.add_argument("--out", metavar="DIR", required=True, help="folder of the files; created if it does not exist")
    add_json(verb, "print the result as a line of JSON")
    verb.set_defaults(run=_save)


def _add_load(verbs: Any) -> None:
    verb = add_verb(
        verbs,
        "load",
        "make a replay buffer from saved files",
        """
        shmtree load checkpoint --name experience
        shmtree load checkpoint --name experience --capacity 100000
        """,
        "Keeps the buffer until Ctrl-C or SIGTERM. After that, processes that have opened the buffer keep it alive.",
    )
    verb.add_argument("path", metavar="DIR", help="folder of a saved replay buffer")
    verb.add_argument("--name", metavar="NAME", required=True, help="name of the new buffer")
    verb.add_argument(
        "--capacity",
        metavar="ROWS",
        type=rows,
        help="number of rows (default: as saved); a smaller one keeps the newest",
    )
    add_json(verb, "print the line as JSON")
    verb.set_defaults(run=_load)


def add_to(verbs: Any) -> None:
    for add in (_add_save, _add_load):
        add(verbs)
