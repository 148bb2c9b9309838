"""tools/cli_page.py makes the page on the command line from its parser."""

import argparse
import importlib.util
import sys
from pathlib import Path

import pytest

from shmtree.cli.main import make_parser

ROOT = Path(__file__).resolve().parents[3]
TOOL = ROOT / "tools/cli_page.py"
pytestmark = pytest.mark.skipif(not TOOL.exists(), reason="needs the checkout")
SPEC = importlib.util.spec_from_file_location("cli_page", TOOL)
assert SPEC is not None
assert SPEC.loader is not None
cli_page = importlib.util.module_from_spec(SPEC)
sys.modules["cli_page"] = cli_page
SPEC.loader.exec_module(cli_page)

PART = """\
| command | does |
|---|---|
| [pack](#pack) | wrap what is given |

Options without a command:

- `--version`: print the version.

### pack

Wrap what is given. It takes time.

```text
tool pack [FILE...] --format box|bag [--rate N] [--json]
```

- `FILE`: files; see `--format`.
- `--format box|bag`: of the result.
- `--rate N`: speed (default: 2.5).

```sh
tool pack x --format box
```
"""


@pytest.fixture
def parser():
    parser = argparse.ArgumentParser(prog="tool")
    parser.add_argument("--version", action="version", version="1", help="print the version")
    verbs = parser.add_subparsers(metavar="COMMAND")
    pack = verbs.add_parser(
        "pack",
        help="wrap what is given",
        description="Wrap what is given.\nIt takes time.",
        epilog="examples:\n  tool pack x --format box",
    )
    pack.add_argument("-f", "--format", choices=("box", "bag"), required=True, help="of the result")
    pack.add_argument("--rate", metavar="N", default=2.5, help="speed (default: %(default)s)")
    pack.add_argument("--json", action="store_true", help="for scripts: the page says once what it does")
    pack.add_argument("files", metavar="FILE", nargs="*", help="files; see --format")
    return parser


def test_the_page_on_the_command_line_is_up_to_date():
    page = (ROOT / "docs/cli.md").read_text()
    assert cli_page.page_of(page, make_parser()) == page, "run tools/cli_page.py"


def test_page_has_each_command_with_options_and_examples(parser):
    assert cli_page.generated(parser) == PART


def test_synopsis_is_the_usage_of_a_command_that_has_one(parser):
    commands = cli_page.commands_of(parser)
    commands["pack"][0].usage = "tool pack (THIS | THAT)"
    assert "```text\ntool pack (THIS | THAT)\n```" in cli_page.generated(parser)


def test_text_outside_the_markers_stays(parser):
    page = "# Tool\n\n" + cli_page.BEGIN + "{}" + cli_page.END + "\n## By hand\n"
    assert cli_page.page_of(page.format("old\n"), parser) == page.format(f"\n{PART}\n")


def test_page_without_markers_is_an_error(parser):
    with pytest.raises(ValueError, match="markers"):
        cli_page.page_of("# Tool\n", parser)
