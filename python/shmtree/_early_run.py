"""Executes `shmtree run` before the other imports of the package, because it needs none of them.

These imports would take most of the time of a short program. Until a command begins, Ctrl-C ends the process
without a traceback of the imports.
"""

from __future__ import annotations

import os
import signal
import sys


def _is_command() -> bool:
    """Returns True in the process of `shmtree`, or of `python -m shmtree`."""
    words = getattr(sys, "argv", None) or [""]
    if words[0] == "-m":  # Python has not found the module yet
        return sys.orig_argv[-len(words)] == "shmtree"
    return bool(words[0] == os.path.join(os.path.dirname(sys.executable), "shmtree"))


if _is_command():
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:2] == ["run"]:
        from .cli.main import main

        raise SystemExit(main())
