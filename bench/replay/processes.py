"""Measures with several processes, and with files."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.replay import rows
from bench.replay.measures import Figures, Measure
from bench.replay.peers import Base, Unsupported, Wanted
from bench.replay.workloads import Workload

WRITERS = 4
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9


def _write(peer: Any, columns: rows.Columns, total: Any, stop: Any) -> None:
    """Adds rows as fast as it can, and counts them."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    made = rows.made(columns, 64)
    own = [peer.own_row(rows.one(made, at)) for at in range(64)]
    count = 0
    while not stop.value:
        peer.add(own[count % 64])
        count += 1
        total.value = count


class Writers(Measure):
    """Measures the rows of all writers while one sampler samples and updates. Reports both rates."""

    def prepare(self) -> None:
        self.fill()
        context: Any = multiprocessing.get_context(self.peer.context)
        self.stop = context.Value("b", 0, lock=False)
        self.totals = [context.Value("q", 0, lock=False) for _ in range(WRITERS)]
        self.random = np.random.default_rng(2)
        for total in self.totals:
            arguments = (self.peer.writer(), self.workload.columns, total, self.stop)
            context.Process(target=_write, args=arguments, daemon=True).start()
        end = time.monotonic() + 60
        while not all(total.value for total in self.totals):
            if time.monotonic() > end:
                raise Unsupported("its writers added no rows within 60 s")
            time.sleep(0.01)

    def call(self) -> None:
        drawn = self.peer.sample_prioritized(self.workload.batch)
        self.peer.update(drawn, self.random.random(self.workload.batch, np.float32))

    def run(self) -> Figures:
        before, begin = sum(total.value for total in self.totals), time.perf_counter()
        figures = super().run()
        added = sum(total.value for total in self.totals) - before
        return {
            "rate": added / (time.perf_counter() - begin),
            "batches_per_s": figures["rate"],
            "p99_us": figures["p99_us"],
        }

    def close(self) -> None:
        self.stop.value = 1


class Files(Measure):
    """Measures the first save of a whole buffer (`rate`, in MB/s of rows), and a copy of the same files (`cp`)."""

    def __init__(self, peer: type[Base], workload: Workload, seconds: float) -> None:
        super().__init__(peer, workload, seconds)
        self.folder = Path(tempfile.mkdtemp(prefix="bench-replay-", dir=os.environ.get("BENCH_FILES")))

    def wanted(self) -> Wanted:
        return Wanted(self.workload.capacity, self.workload.columns)

    def call(self) -> None:
        raise NotImplementedError

    def run(self) -> Figures:
        megabytes = self.workload.capacity * rows.row_bytes(self.workload.columns) / 1e6
        path = self.folder / "saved"
        try:
            first = self._timed(lambda: self.peer.save(path))
            self._add(self.workload.capacity // 100)
            again = self._timed(lambda: self.peer.save(path))
            loaded = self._timed(lambda: self.peer.load(path))
            during = self._slowest_add(path)
            copied = self._copied(path)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir()
        return {
            "rate": megabytes / first,
            "again_percent": 100 * again / first,
            "load_mb_per_s": megabytes / loaded,
            "cp_mb_per_s": megabytes / copied,
            **during,
        }

    @staticmethod
    def _timed(do: Any) -> float:
        begin = time.perf_counter()
        do()
        return time.perf_counter() - begin

    def _add(self, count: int) -> None:
        self.peer.extend(self.peer.own_rows(rows.made(self.workload.columns, count)))

    def _copied(self, path: Path) -> float:
        """Copies all saved files to the disk and times it."""
        source = path if path.exists() else Path(f"{path}.npz")
        target = self.folder / "copied"

        def copy() -> None:
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                shutil.copyfile(source, target)
            for each in target.rglob("*") if target.is_dir() else [target]:
                if each.is_file():
                    with each.open("rb") as file:
                        os.fsync(file.fileno())

        return self._timed(copy)

    def _slowest_add(self, path: Path) -> Figures:
        """Returns the 99.9th percentile of the time to add a row: alone, and while another thread saves."""
        row = self.peer.own_row(rows.one(rows.made(self.workload.columns, 1), 0))

        def slowest(enough: Any) -> float:
            times: list[int] = []
            while not enough(times):
                begin = time.perf_counter_ns()
                self.peer.add(row)
                times.append(time.perf_counter_ns() - begin)
                time.sleep(0.0002)
            times.sort()
            return times[len(times) * 999 // 1000] / 1e3

        alone = slowest(lambda times: len(times) >= 3000)
        shutil.rmtree(path, ignore_errors=True)
        saving = threading.Thread(target=self.peer.save, args=(path,))
        saving.start()
        meanwhile = slowest(lambda _: not saving.is_alive())
        return {"add_p999_us": alone, "add_p999_saving_us": meanwhile}
