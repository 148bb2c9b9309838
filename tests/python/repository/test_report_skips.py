"""CI reports skipped tests, and fails if the reason of a skip is not listed."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOOL = ROOT / "tools" / "report_skips.py"
pytestmark = pytest.mark.skipif(not TOOL.exists(), reason="needs the checkout")

PYTEST = """<testsuites><testsuite name="pytest">
<testcase classname="tests.python.test_a" name="test_one">
  <skipped type="pytest.skip" message="{reason}">a.py:3</skipped></testcase>
<testcase classname="tests.python.test_a" name="test_two" />
<testcase classname="" name="tests.python.test_b"><skipped message="collection skipped">
  ('b.py', 1, "Skipped: no torch")</skipped></testcase>
</testsuite></testsuites>"""

CTEST = """<testsuite name="dev">
<testcase name="memory/it holds" classname="memory/it holds" status="run"><system-out>x.cpp:3: SKIPPED:
explicitly with message:
  no huge pages

</system-out><skipped message="SKIP_RETURN_CODE=4"/></testcase></testsuite>"""


def run(folder: Path, rules: str) -> tuple[int, str]:
    (folder / "allowed").write_text("# a comment\n\n" + rules)
    done = subprocess.run(
        [sys.executable, TOOL, folder / "allowed", folder], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_listed_reason_is_reported_and_does_not_fail(tmp_path: Path) -> None:
    (tmp_path / "test-python.xml").write_text(PYTEST.format(reason="no GPU 7"))
    code, said = run(tmp_path, "* | no GPU \\d\ntest, wheel | no torch\n")
    assert code == 0
    assert "skipped: test: tests.python.test_a::test_one: no GPU 7\n" in said
    assert "skipped: test: tests.python.test_b: no torch\n" in said


@pytest.mark.parametrize("rules", ["* | no torch", "wheel | no GPU\n* | no torch", "* | no GP\n* | no torch"])
def test_reason_that_is_not_listed_for_the_step_fails(tmp_path: Path, rules: str) -> None:
    (tmp_path / "test-python.xml").write_text(PYTEST.format(reason="no GPU"))
    code, said = run(tmp_path, rules)
    assert code == 1
    assert "MAY NOT BE SKIPPED: test: tests.python.test_a::test_one: no GPU\n" in said


def test_skip_report_names_another_step_that_ran_the_module(tmp_path: Path) -> None:
    (tmp_path / "test-python.xml").write_text(PYTEST.format(reason="no GPU"))
    there = '<testsuite><testcase classname="tests.python.test_b" name="test_three" /></testsuite>'
    (tmp_path / "wheel-python.xml").write_text(there)
    code, said = run(tmp_path, "* | no .*")
    assert code == 0
    assert "tests.python.test_b: no torch (run in: wheel)" in said


def test_cpp_skip_is_reported_with_its_message(tmp_path: Path) -> None:
    (tmp_path / "asan-cpp.xml").write_text(CTEST)
    assert run(tmp_path, "* | no huge pages\n") == (0, "skipped: asan: memory/it holds: no huge pages\n")


def test_skipped_part_of_a_step_is_reported_too(tmp_path: Path) -> None:
    (tmp_path / "steps").write_text("pythons\tthere is no python3.14\n")
    assert run(tmp_path, "")[0] == 1
    assert run(tmp_path, "* | there is no .*") == (0, "skipped: pythons: a part of it: there is no python3.14\n")
