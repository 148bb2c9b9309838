"""Executes `shmtree run` while the package is imported: the command needs neither NumPy nor the extension.

They would take most of the time of a short program.
"""

from __future__ import annotations

import os
import sys


def _is_command() -> bool:
    """Returns True in the process of `shmtree run`, or of `python -m shmtree run`."""
    words = getattr(sys, "argv", [])
    if words[1:2] != ["run"]:
        return False
    if words[0] == "-m":  # Python looks for the module
        return sys.orig_argv[-len(words)] == "shmtree"
    return bool(words[0] == os.path.join(os.path.dirname(sys.executable), "shmtree"))


if _is_command():
    from .cli.main import main

    raise SystemExit(main())
