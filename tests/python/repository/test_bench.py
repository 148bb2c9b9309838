"""The bench measures and compares, and gives a reason where it cannot: one small, quick workload of each kind."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(not (ROOT / "bench").is_dir(), reason="needs the checkout")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300
    )


def test_bench_writes_its_measurements(tmp_path):
    names = ["shmtree", "multiprocessing.Pipe", "multiprocessing.Queue"]

    done = bench(
        "E", "many-4x1", "--competitors", *names, "--runs=2", "--seconds=0.01", "--limit=100", f"--out={tmp_path}"
    )

    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "bench.json").read_text())
    rows = {(row["workload"], row["competitor"]): row for row in written["rows"]}
    assert set(rows) == {(workload, name) for workload in ("E", "many-4x1") for name in names}
    for name in names:
        row = rows["E", name]
        assert row["problem"] == ""
        assert len(row["all_items_per_s"]) == 2 and min(row["all_items_per_s"]) > 0
        assert row["cpu_us_per_item"] > 0
        assert row["put_us"]["p50"] <= row["put_us"]["max"]
    assert rows["many-4x1", "multiprocessing.Pipe"]["problem"] == "one producer and one consumer only"
    assert written["machine"]["versions"]["shmtree"]
    table = (tmp_path / "bench.md").read_text()
    assert "### Messages per second at the consumer\n\n| | E |\n" in table
    assert "- multiprocessing.Pipe: one producer and one consumer only (many-4x1)" in table


def test_unknown_workload_is_an_error():
    done = bench("no-such-workload")

    assert done.returncode == 1
    assert "no name matches no-such-workload" in done.stderr


@pytest.fixture
def pages(monkeypatch, tmp_path):
    """The module, with copies of the pages that it writes."""
    monkeypatch.syspath_prepend(ROOT)
    pages = importlib.import_module("bench.pages")
    (tmp_path / "docs").mkdir()
    for page in (pages.PAGE, pages.TABLES):
        shutil.copy(ROOT / page, tmp_path / page)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    return pages


ABOUT = {"time": "2026-12-01T00:00:00Z", "cpu": "a CPU", "cpus": 2, "memory_gb": 8, "kernel": "6", "python": "3.11"}
ABOUT |= {"versions": {"shmtree": "9.9"}, "load_before": 0.1, "load_after": 1.5, "runs": 3, "minutes": 1}
ABOUT |= {"commit": "abc1234"}


def without_figures(text):
    return re.sub(r"(?s)(written by ./dev bench --pages -->\n).*?(<!-- end -->)", r"\1\2", text)


def test_bench_replaces_the_figures_of_the_pages(pages, tmp_path):
    row = {"workload": "E", "competitor": "shmtree", "problem": "", "items_per_s": 123.0, "cpu_us_per_item": 4.5}
    idle = {"workload": "latency", "competitor": "shmtree", "problem": "", "one_way_us": {"p50": 7.0, "p99": 9.0}}

    pages.update(ABOUT, [row, idle], [])

    for page in (pages.PAGE, pages.TABLES):
        before, after = (root.joinpath(page).read_text() for root in (ROOT, tmp_path))
        assert "| shmtree | 123 |\n" in after
        assert "Measured on 2026-12-01 with commit abc1234" in after
        assert without_figures(before) == without_figures(after)
    after = (tmp_path / pages.TABLES).read_text()
    assert "| shmtree | 4.5 |\n" in after
    assert "| shmtree | 7 / 9 |\n" in after


def test_bench_refuses_a_page_without_its_marks(pages, tmp_path):
    (tmp_path / pages.TABLES).write_text("# Tables\n")

    with pytest.raises(ValueError, match="has no line <!-- queues: written by"):
        pages.update(ABOUT, [], [])


def test_program_names_the_size_from_which_an_arena_pays(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    spdl_arena = importlib.import_module("bench.spdl_arena")

    def row(mib, transport, rate):
        return {"kind": "bytes", "mib": mib, "transport": transport, "problem": "", "gb_per_s": rate}

    rates = {"queue": (1, 1, 1), "SPDL ring": (2, 0.5, 2), "SPDL pool": (2, 2, 0.5), "shmtree": (2, 2, 2)}
    rows = [row(mib, name, rate) for name, each in rates.items() for mib, rate in zip((1, 4, 16), each, strict=True)]

    assert spdl_arena.pays(rows) == (
        "- SPDL ring: bytes from 16 MiB\n- SPDL pool: bytes at no measured size\n- shmtree: bytes from 1 MiB\n"
    )
