"""kind.h has the number and meaning of each kind, grammar.h its rule.

tools/kinds.py generates the table in frame.md.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(not (ROOT / "src").exists(), reason="needs the checkout")


def test_every_kind_has_a_rule_and_a_meaning() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    import kinds

    numbers = kinds.kinds()
    assert len(numbers) > 50
    assert sorted(kinds.rules()) == sorted(numbers)
    assert [kind for kind, (_, meaning) in numbers.items() if not meaning] == []


def test_the_page_on_frames_has_the_table_of_kinds() -> None:
    checked = subprocess.run([sys.executable, ROOT / "tools/kinds.py", "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
