"""``python -m shmtree``: shows and sweeps the names of arenas, channels and arrays."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from . import clean_names, list_names


def _printable(name: str) -> str:
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in name)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="shmtree", description="The names of this user's shared arenas.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser(
        "ls", help="show the names, what they are of, and which processes have them; remove those left over"
    )
    verbs.add_parser("clean", help="remove the names that a kill left over")
    verb = parser.parse_args(arguments).verb
    if verb == "ls":
        for known in list_names():
            who = ", ".join(str(pid) if pid else "out of sight" for pid in known.pids) or "nobody, left over: removed"
            print(f"{_printable(known.name)}\t{known.kind}\t{who}")
    else:
        for name in clean_names():
            print(f"removed {_printable(name)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
