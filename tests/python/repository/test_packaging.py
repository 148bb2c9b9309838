"""The source package and the metadata of wheels: licences, and what they say to pip."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(not (ROOT / "src").exists(), reason="needs the checkout")

LICENSES = {"LICENSE", *(f"licenses/{name}.txt" for name in ("capnproto", "gcc-runtime", "numpy", "pybind11"))}


def built(hook: str, folder: Path) -> Path:
    """Returns what a hook of the build backend makes: the source package, or the metadata of a wheel."""
    script = f"import sys, scikit_build_core.build as build; print(build.{hook}(sys.argv[1]))"
    made = subprocess.run([sys.executable, "-c", script, folder], cwd=ROOT, check=True, capture_output=True, text=True)
    return folder / made.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel_info(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder *.dist-info of a wheel."""
    return built("prepare_metadata_for_build_wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def source_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("build_sdist", tmp_path_factory.mktemp("sdist"))


def words(text: str) -> str:
    """Returns a text without line ends and years, which differ between releases."""
    return re.sub(r"\d{4}(-\d{4})?", "YEAR", " ".join(text.split()))


def test_a_wheel_has_every_licence(wheel_info: Path) -> None:
    folder = wheel_info / "licenses"
    assert {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()} == LICENSES
    for name in LICENSES:
        assert (folder / name).read_text() == (ROOT / name).read_text()


def test_the_source_package_has_every_licence(source_package: Path) -> None:
    with tarfile.open(source_package) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert files >= LICENSES


@pytest.mark.parametrize("name", ["numpy", "pybind11"])
def test_a_licence_is_that_of_the_package_compiled_in(name: str) -> None:
    files = importlib.metadata.files(name) or []
    own = next(file for file in files if re.search(r"(licenses/|\.dist-info/)LICENSE(\.txt)?$", str(file)))
    assert words(own.read_text()).startswith(words((ROOT / f"licenses/{name}.txt").read_text()))


def test_the_page_on_installing_names_every_licence() -> None:
    page = (ROOT / "docs/install.md").read_text()
    assert set(re.findall(r"^\| `(LICENSE|licenses/[\w-]+\.txt)` \|", page, re.MULTILINE)) == LICENSES


def test_wheels_name_only_what_users_install(wheel_info: Path) -> None:
    metadata = importlib.metadata.PathDistribution(wheel_info)
    assert set(metadata.metadata.get_all("Provides-Extra") or []) == {"cli", "metrics", "ray", "spdl", "torch"}
    assert [need for need in metadata.requires or [] if "extra ==" not in need] == ["numpy>=1.24"]


def test_classifiers_name_each_python_that_has_wheels(wheel_info: Path) -> None:
    metadata = importlib.metadata.PathDistribution(wheel_info).metadata
    named = re.findall(r"Python :: 3\.(\d+)$", "\n".join(metadata.get_all("Classifier") or []), re.MULTILINE)
    settings = (ROOT / "pyproject.toml").read_text()
    assert named == re.findall(r'"cp3(\d+)-\*"', settings)
    assert metadata["Requires-Python"] == f">=3.{named[0]}"


def test_the_description_has_no_relative_link_or_image(wheel_info: Path) -> None:
    text = (wheel_info / "METADATA").read_text().partition("\n\n")[2]
    assert text.startswith("# shmtree\n")
    assert re.findall(r"\]\((?!https?://)[^)]*\)|^\[[^\]]+\]:|<(?:img|a)\b", text, re.MULTILINE) == []
    parts = re.compile(r"^```.*?^```$|^#[^\n]*", re.DOTALL | re.MULTILINE)  # code and headings
    assert parts.findall(text) == parts.findall((ROOT / "README.md").read_text())


def test_the_description_keeps_words_of_links_and_absolute_links() -> None:
    spec = importlib.util.spec_from_file_location("package_description", ROOT / "tools/package_description.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = "[a page](docs/a.md#b), [a site](https://example.org).\n\n![a plot](docs/a.svg)\n\n```python\nx[0](1)\n```\n"
    wanted = "a page, [a site](https://example.org).\n\n```python\nx[0](1)\n```\n"
    assert module.without_relative_links(text) == wanted
