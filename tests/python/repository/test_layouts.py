"""tools/layouts.py makes the tables of structures in the pages on layouts from the headers."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOOL = ROOT / "tools/layouts.py"
SPEC = importlib.util.spec_from_file_location("layouts", TOOL)
assert SPEC is not None
assert SPEC.loader is not None
layouts = importlib.util.module_from_spec(SPEC)
sys.modules["layouts"] = layouts
SPEC.loader.exec_module(layouts)

HEADER = """
constexpr std::uint64_t kCount = 1 << 2;
using Identity = std::uint32_t;
enum class Kind : std::uint32_t {
  kSmall = 1,  // fits a slot
  kLarge = 2,
};
struct alignas(64) Header {
  // Written once.
  std::uint32_t magic;
  std::atomic<std::uint64_t> words[kCount];  // one for
                                             // each end
  Identity first, second;                    // of this; of that

  // Returns true if it is new.
  bool is_new() const noexcept {
    if (magic == 0) { return true; }
    return false;
  }

  alignas(64) double rate;  // per a_second
  PerEnd<Kind> kinds;
};
static_assert(sizeof(Header) == 128 && offsetof(Header, rate) == 64);
"""


def test_tables_of_layouts_match_the_headers() -> None:
    checked = subprocess.run([sys.executable, TOOL, "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_layout_has_offsets_types_and_comments() -> None:
    header = layouts.Layouts([HEADER]).struct("Header")
    assert [tuple(field) for field in header.fields()] == [
        (0, 4, "magic", "u32", ""),
        (8, 32, "words", "u64[4]", "one for each end"),
        (40, 4, "first", "`Identity`", "of this"),
        (44, 4, "second", "`Identity`", "of that"),
        (64, 8, "rate", "f64", "per a_second"),
        (72, 8, "kinds", "`Kind`[2]", ""),
    ]
    lines = layouts.table(header).splitlines()
    assert lines[2] == "| | | | *Written once* |"
    assert lines[-3:] == [
        "| 64 | `rate` | f64 | Per `a_second` |",
        "| 72 | `kinds` | `Kind`[2] |  |",
        "| 128 | | | *end* |",
    ]


def test_table_of_an_enumeration_has_its_values() -> None:
    rows = ["| 1 | `kSmall` | Fits a slot |", "| 2 | `kLarge` |  |"]
    assert layouts.table_of_values("Kind", HEADER).splitlines()[2:] == rows
    assert layouts.table_of_values("Header", HEADER) == ""


@pytest.mark.parametrize(("old", "new"), [("== 128", "== 192"), ("rate) == 64", "rate) == 72")])
def test_assertion_that_the_tool_does_not_meet_is_an_error(old: str, new: str) -> None:
    text = HEADER.replace(old, new)
    assert list(layouts.Layouts([HEADER]).errors(HEADER)) == []
    assert len(list(layouts.Layouts([text]).errors(text))) == 1
