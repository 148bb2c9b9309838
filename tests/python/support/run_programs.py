"""Programs that tests run under `shmtree run`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

LIMIT_S = 120


class Ran(NamedTuple):
    code: int
    out: str
    err: str
    report: dict[str, Any]

    def rows(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self.report["rows"] if row["kind"] == kind]


Run = Callable[..., Ran]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "shmtree", "run", *arguments]
