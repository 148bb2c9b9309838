"""One row: the figures of one competitor at one workload, or the reason why there are none."""

from __future__ import annotations

import statistics
from typing import Any

from bench.workloads import Workload

Row = dict[str, Any]


class Measured:
    def __init__(self, name: str) -> None:
        self.name = name
        self.problem = ""
        self.result: Row = {}  # measured once
        self.runs: list[Row] = []  # measured in each round

    def row(self, workload: Workload) -> Row:
        """Returns the median of every number over the runs. Rates also keep the values of each run."""
        made: Row = {"workload": workload.name, "competitor": self.name, "problem": self.problem}
        if self.problem or not self.runs:
            return made
        for key, value in self.runs[0].items():
            if isinstance(value, dict):
                made[key] = {part: statistics.median(run[key][part] for run in self.runs) for part in value}
            elif isinstance(value, list):
                made[key] = [sample for run in self.runs for sample in run[key]]
            else:
                made[key] = statistics.median(run[key] for run in self.runs)
        if "items_per_s" in made:
            made["all_items_per_s"] = [run["items_per_s"] for run in self.runs]
            made["gb_per_s"] = made["items_per_s"] * workload.nbytes / 1e9
        return made | self.result
