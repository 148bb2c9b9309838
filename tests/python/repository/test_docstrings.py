"""Docstrings as editors and the reference show them."""

import ast
import sys
from pathlib import Path

import pytest

import shmtree._core

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(not (ROOT / "tools").exists(), reason="needs the checkout")
sys.path.insert(0, str(ROOT / "tools"))

STUB = """
class _Both:
    def close(self) -> None: ...

class Frame(_Both):
    '''Old text.'''
    @property
    def nbytes(self) -> int: ...

def pack(obj: object) -> Frame: ...
"""


class Core:
    """Stands for the compiled module."""

    class Frame:
        """Some bytes."""

        nbytes = property(doc="Size in bytes.")

        def close(self):
            pass

        close.__doc__ = "close(self: Frame) -> None\n\nEnds it."

    def pack(self):
        """Encodes.

        Returns a frame.
        """


def test_stub_has_the_docstrings_of_the_module():
    import stub_docs

    assert stub_docs.differences(stub_docs.STUB.read_text(), shmtree._core) == []


def test_stub_tool_copies_docstrings_and_finds_differences():
    import stub_docs

    written = stub_docs.with_docs(STUB, Core)
    assert "Old text" not in written
    assert [ast.get_docstring(node) for node in ast.walk(ast.parse(written)) if hasattr(node, "returns")] == [
        "Encodes.\n\nReturns a frame.",
        "Ends it.",
        "Size in bytes.",
    ]
    assert stub_docs.with_docs(written, Core) == written
    assert stub_docs.differences(written, Core) == []
    assert stub_docs.differences(written.replace("Encodes", "Packs"), Core) == ["pack"]


INCOMPLETE = [
    ("def f(n: int) -> None: 'Does it.'", "args"),
    ("def f() -> int: 'The number.'", "returns"),
    ("def f() -> None:\n    'Does it.'\n    raise ValueError", "raises"),
    ("def f() -> None: 'Does it, or raises PeerDied.'", "raises"),
    ("def f() -> int: 'Counts.\\n\\nReturns:\\n    The number: 0, 1 and so on.'", "colon"),
    ("def f() -> None: 'Does it.\\n\\nRaises:\\n    PeerDied: A peer was killed.'", "module"),
]
COMPLETE = [
    "def f() -> int: 'Returns the number.'",
    "def f(n: int) -> int: 'Does the same as `g` in a coroutine.'",
    """def f(n: int) -> int:
    '''Counts.

    Args:
        n: Where it begins.

    Returns:
        The number.

    Raises:
        shmtree.PeerDied: A peer was killed.
    '''
    raise PeerDied
""",
]


def rules_broken_in(source: str) -> list[str]:
    import docstrings

    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    doc = ast.get_docstring(function)
    assert doc is not None
    return [each.rule for each in docstrings.check_function("f", function, doc, is_property=False)]


def test_public_docstrings_are_complete():
    import docstrings

    assert list(docstrings.findings()) == []


@pytest.mark.parametrize(("source", "rule"), INCOMPLETE)
def test_an_incomplete_docstring_is_found(source, rule):
    assert rules_broken_in(source) == [rule]


@pytest.mark.parametrize("source", COMPLETE)
def test_a_complete_docstring_is_accepted(source):
    assert rules_broken_in(source) == []
