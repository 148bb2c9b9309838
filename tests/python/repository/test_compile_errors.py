"""What the compiler prints for common mistakes in C++: a few lines with the type or the member, and the remedy."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
COMPILER = shutil.which("g++")

TYPES = """
#include <shmtree/shmtree.h>
struct Inner { int number; };
struct Outer { int number; Inner inner; };
SHMTREE_FIELDS(Outer, number, inner)
int main() { auto [sender, receiver] = shmtree::make_pair(); %s }
"""


def compiled(program: str, standard: str) -> list[str]:
    """Returns the lines that the compiler prints."""
    assert COMPILER is not None
    command = [COMPILER, "-x", "c++", f"-std={standard}", f"-I{ROOT / 'include'}", "-fsyntax-only", "-"]
    result = subprocess.run(command, input=program, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode != 0
    return result.stderr.splitlines()


@pytest.mark.skipif(COMPILER is None, reason="no g++")
@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("sender.put(Inner{1}).value();", ["Inner", "SHMTREE_FIELDS(Type, members...)", "shmtree::ValueOf"]),
        ('sender.put(shmtree::Dict{{"a", Inner{1}}}).value();', ["Inner", "SHMTREE_FIELDS(Type, members...)"]),
        ("sender.put(Outer{}).value();", ["&Outer::inner", "cannot send the member", "SHMTREE_FIELDS"]),
        ("receiver.get().value().as<Outer>();", ["&Outer::inner", "cannot receive the member", "SHMTREE_FIELDS"]),
        ("receiver.get().value().as<Inner>();", ["Inner", "SHMTREE_FIELDS(Type, members...)", "shmtree::ItemAs"]),
        ("sender.put(receiver.get()).value();", ["Result", ".value()"]),
    ],
)
def test_a_type_without_a_conversion_gives_one_error(statement, words):
    lines = compiled(TYPES % statement, "c++20")
    errors = [line for line in lines if " error: " in line]
    assert len(errors) == 1, lines
    assert len(lines) < 60
    for word in words:
        assert any(word in line for line in lines), word


@pytest.mark.skipif(COMPILER is None, reason="no g++")
def test_an_older_standard_gives_one_error_that_names_the_option():
    lines = compiled(TYPES % "", "c++17")
    assert len(lines) < 15
    assert any("#error" in line and "-std=c++20" in line for line in lines)
