"""The code in README.md and in the pages with programs runs, and prints the output that follows it."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from starts import OF_THIS_MACHINE

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text()
MIGRATION = (ROOT / "docs/migration.md").read_text()
CHANGED = {page: (ROOT / page).read_text() for page in ("docs/queues.md", "docs/migration.md")}
PROGRAMS = ["README.md", "docs/recipes.md", "docs/training.md", "docs/replay.md"]
PROGRAMS += ["docs/index.md", "docs/tutorial.md", "docs/observe.md", "docs/deploy.md", "docs/security.md"]
PROGRAMS += ["docs/channels.md", "docs/errors.md", "docs/fork.md", "docs/services.md"]
PROGRAMS += ["docs/latest-and-broadcast.md", "docs/memory.md", "docs/names.md", "docs/types.md"]
PROGRAMS += ["docs/shared-list.md", "docs/concepts.md", "docs/queues.md", "docs/install.md", "docs/ray.md"]
PROGRAMS += ["docs/run.md", "docs/faq.md"]
PAGES = {page: (ROOT / page).read_text() for page in PROGRAMS}


def examples(text, language="python"):
    return re.findall(rf"^```{language}\n(.*?)^```\n\n```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def side(change, other):
    """Returns one side of a diff: the program without the lines that only the other side has."""
    return "".join(line[1:] or "\n" for line in change.splitlines(keepends=True) if line[0] != other)


EXAMPLES = [
    pytest.param(*example, id=f"{page}-{number}")
    for page, text in PAGES.items()
    for number, example in enumerate(examples(text), 1)
]
CHANGES = [
    pytest.param(side(change, other), output, id=f"{which}-{page}-{number}")
    for page, text in CHANGED.items()
    for number, (change, output) in enumerate(examples(text, "diff"), 1)
    for which, other in {"old": "+", "new": "-"}.items()
]


@pytest.mark.parametrize("page", PAGES)
def test_every_python_block_of_a_page_has_its_output(page):
    assert len(examples(PAGES[page])) == PAGES[page].count("```python") > 0


@pytest.mark.parametrize("page", CHANGED)
def test_every_change_on_a_page_has_its_output(page):
    assert len(examples(CHANGED[page], "diff")) == CHANGED[page].count("```diff") > 0


def test_every_section_of_the_migration_page_has_a_change():
    assert MIGRATION.count("```diff") == MIGRATION.count("\n## From ")


@pytest.mark.parametrize(("code", "output"), CHANGES)
def test_both_sides_of_a_change_print_the_output_below(tmp_path, code, output):
    test_python_block_prints_the_output_below(tmp_path, code, output)


@pytest.mark.parametrize(("code", "output"), EXAMPLES)
def test_python_block_prints_the_output_below(tmp_path, code, output):
    for package in re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    script = tmp_path / "example.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", *OF_THIS_MACHINE, str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stderr == "" or "# prints a traceback" in code
    assert done.returncode == 0
    assert done.stdout == output


def test_paths_that_the_pages_name_exist():
    made = (ROOT / "docs/architecture.md").read_text()
    texts = README + made + "".join((ROOT / page).read_text() for page in ("CONTRIBUTING.md", "SECURITY.md"))
    paths = re.findall(r"`((?:src|include|schema|docs|examples|bench|tests|python)/[\w./-]*)`", texts)
    assert len(paths) > 3
    assert [path for path in paths if not (ROOT / path).exists()] == []
    row = re.compile(r"^\| `([\w/]+)` \|.*\| ([^|]+) \|$", re.MULTILINE)
    missing = [
        f"{folder}/{name}"
        for folder, names in row.findall(made)
        for name in re.findall(r"`([^`]+)`", names)
        if not (ROOT / folder / name).exists() and not (ROOT / name).exists()
    ]
    assert missing == []


def test_the_readme_has_at_most_900_words():
    assert len(README.split()) <= 900


def test_every_page_is_in_a_table_of_contents():
    index = PAGES["docs/index.md"]
    listed = "\n".join(re.findall(r"^```{toctree}\n(.*?)^```", index, re.DOTALL | re.MULTILINE))
    files = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/internals").glob("*.md")]
    pages = {page.relative_to(ROOT / "docs").with_suffix("").as_posix() for page in files} - {"index"}
    assert {page for page in pages if not re.search(rf"^(?:.* <)?{page}>?$", listed, re.MULTILINE)} == set()


def anchors(text):
    """Returns the headings of a page in the form that links to them use."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "page",
    sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/internals").glob("*.md")]),
    ids=lambda page: page.name,
)
def test_every_link_of_a_page_has_a_target(page):
    for name, anchor in re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", page.read_text()):
        target = page.parent / name if name else page
        assert target.exists(), name
        assert not anchor or anchor in anchors(target.read_text()), f"{name}#{anchor}"
