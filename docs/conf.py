"""Configuration of the documentation site. `./dev docs` builds it with Sphinx in build/site/html.

Sphinx treats warnings as errors and reads the pages of docs/ unchanged. docs/site has the pages that exist only on the
site: the references of Python and C++, and wrappers of the pages in the repository's root.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.ext.autodoc.mock import mock

from shmtree._public import DEFINED_IN

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
guarantees = importlib.import_module("guarantees")
MODULES = (
    "shmtree",
    "shmtree.replay",
    "shmtree.torch",
    "shmtree.cuda",
    "shmtree.spdl",
    "shmtree.ray",
    "shmtree.recording",
)

project = "shmtree"
copyright = "the authors of shmtree, MIT license"
version = release = re.findall(r"set\(SHMTREE_VERSION (\S+)\)", (ROOT / "CMakeLists.txt").read_text())[0]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "breathe",
]
suppress_warnings = [
    "myst.header",  # a section of a page may be two levels down
    "duplicate_declaration.cpp",  # the namespace, once for each header
]
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!shmtree\b).*"),  # no other project's reference is at hand
    ("py:.*", r"shmtree\..*\._.*|shmtree\._.*|shmtree\.multiprocessing.*"),
    ("cpp:.*", r"(?!shmtree\b).*"),
    ("cpp:.*", r"shmtree::(detail|api|value)\b.*"),
]

myst_heading_anchors = 4
myst_links_external_new_tab = True

default_role = "code"
autodoc_default_options = {"member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_mock_imports = ["torch", "ray"]  # whether they are here or not
python_use_unqualified_type_names = True
add_module_names = False

breathe_projects = {"shmtree": str(ROOT / "build/site/cpp/xml")}
breathe_default_project = "shmtree"
breathe_default_members = ("members",)
cpp_maximum_signature_line_length = python_maximum_signature_line_length = 100

copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"  # not the output of programs

html_theme = "furo"
html_title = f"shmtree {version}"
html_show_sphinx = html_copy_source = html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
html_static_path = ["site/static"]
html_css_files = ["site.css"]


# Files of the root that are pages of the site.
ROOT_PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "reporting.md"}


def _lead_within(_app: Any, page: str, source: list[str]) -> None:
    """Replaces a link to a file outside of docs/ by a link to its page, or by its path if the site has no page."""

    up = "../" * page.count("/")

    def target(link: re.Match[str]) -> str:
        words, path, anchor = link.groups()
        return f"[{words}]({up}site/{ROOT_PAGES[path]}{anchor})" if path in ROOT_PAGES else f"`{path}`"

    if not page.startswith("site/"):
        source[0] = re.sub(rf"\[([^\]]*)\]\({re.escape(up)}\.\./([^)#]*)(#[^)]*|)\)", target, source[0])


# The search indexes only the titles of these pages, because only contributors read them.
NOT_SEARCHED = r"internals/.*|site/(guarantee-tests|changelog|contributing)"


def _limit_search(_app: Any, env: Any) -> None:
    for page in env.found_docs:
        if re.fullmatch(NOT_SEARCHED, page):
            env.metadata[page]["nosearch"] = ""


def _list_tests(_app: Any, page: str, source: list[str]) -> None:
    """Adds the tests of the guarantees, which the repository has as marks in its tests only."""
    if page == "guarantees":
        source[0] = guarantees.with_links(source[0], "site/guarantee-tests.md")
    elif page == "site/guarantee-tests":
        source[0] += "\n" + guarantees.page()


def _keep_units(_app: Any, _page: str, source: list[str]) -> None:
    """Figures in tables, such as 1.02 M, are not broken over lines."""
    source[0] = re.sub(r"(?<=\d) (?=[kM](?:, | \|))", "\N{NO-BREAK SPACE}", source[0])


def _defined_in(_app: Any, module: str, attribute: str | None) -> str | None:
    """Returns the module with the source of a public name, for the link to it. Some signatures name no attribute."""
    return DEFINED_IN.get((module, (attribute or "").partition(".")[0]))


def _no_constructor(
    _app: Any, what: str, _name: str, thing: Any, _options: Any, signature: str | None, returns: str | None
) -> tuple[str, None] | None:
    """Shows no parentheses after a class without a public constructor, and none after an error."""
    is_bare = what == "exception" or (what == "class" and signature == "()")
    return ("", None) if is_bare and signature else None


def setup(app: Any) -> None:
    with mock(autodoc_mock_imports):
        for name in MODULES:  # each names its public classes by itself
            importlib.import_module(name)
    app.connect("autodoc-process-signature", _no_constructor)
    app.connect("source-read", _lead_within)
    app.connect("env-updated", _limit_search)
    app.connect("source-read", _list_tests)
    app.connect("source-read", _keep_units)
    app.connect("viewcode-follow-imported", _defined_in)
