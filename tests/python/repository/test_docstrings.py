"""Docstrings as editors and the reference show them."""

import ast
import inspect
import operator
import sys
from pathlib import Path

import pytest

import shmtree

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(not (ROOT / "tools").exists(), reason="needs the checkout")
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "cmake")]

STUB = """
class _Both(Generic[_T]):
    def close(self, now: bool = False) -> None:
        'Ends it.'
    def put(self, obj: _T) -> None:
        'Puts it.'

class Frame(_Both[_T]):
    'Some bytes.'
    @property
    def nbytes(self) -> int:
        'Size in bytes.'
    def put(self, obj: _T, /, *, block: bool = True) -> int:
        'Sends it.'
    @staticmethod
    def open(name: str) -> Frame:
        'Opens one.'
    def __len__(self) -> int: ...
    _name: str | None
    'Its name.'

def pack(obj: object) -> Frame:
    'Encodes it.'
"""


def test_table_has_the_signature_and_text_of_each_definition():
    import docstring_table

    assert {each.name: each.text for each in docstring_table.docstrings(ast.parse(STUB))} == {
        "pack": "pack(obj)\n--\n\nEncodes it.",
        "Frame": "Some bytes.",
        "Frame.close": "close($self, now=False)\n--\n\nEnds it.",
        "Frame.put": "put($self, obj, /, *, block=True)\n--\n\nSends it.",
        "Frame.nbytes": "Size in bytes.",
        "Frame.open": "open(name)\n--\n\nOpens one.",
        "Frame._name": "Its name.",
    }


def test_module_has_the_texts_and_signatures_of_the_stub():
    import docstring_table

    stub = ast.parse((ROOT / "python/shmtree/_core.pyi").read_text())
    texts = {each.name: each.text for each in docstring_table.docstrings(stub)}
    assert len(texts) > 150
    for name, text in texts.items():
        thing = operator.attrgetter(name)(shmtree._core)
        signature, _, body = text.rpartition("\n--\n\n")
        assert inspect.getdoc(thing) == body, name
        if signature:
            # The interpreter shows the class of a class method, and no default "...".
            parameters = (
                signature[signature.index("(") :].replace("$cls, ", "").replace("$", "").replace("...", "Ellipsis")
            )
            shown = str(inspect.signature(thing))
            assert shown in (parameters, parameters.replace("(self", "(self, /", 1)), name


def test_a_queue_has_texts_of_its_own():
    for name in ("put", "put_nowait", "get"):
        text = inspect.getdoc(getattr(shmtree.Queue, name))
        assert "ticket" not in text
        assert "sender." not in text
        assert "receiver." not in text
    assert "queue.put(" in inspect.getdoc(shmtree.Queue.put)


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
