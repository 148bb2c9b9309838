"""The command line of ``python -m shmtree``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from . import crashdump, inspect, metrics, names, recordings, top, why


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="shmtree", description="Shows, records and plays what processes share.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for each in (names, inspect, top, why, crashdump, metrics, recordings):
        each.add_to(verbs)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if sys.stdout is None:  # the descriptor was closed before Python started
        if sys.stderr is not None:
            print("shmtree: standard output is closed, so nothing can be printed", file=sys.stderr)
        return 1
    try:
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130 if options.verb not in ("top", "crashdump", "metrics") else 0
    except BrokenPipeError:  # the reader has closed the pipe; prevents a second error at interpreter exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"shmtree: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
