"""Classes are replaced and changed between messages. Values arrive as with pickle, or raise."""

from __future__ import annotations

import pickle
import sys
import types
from typing import Any

import attrs  # noqa: F401
import pydantic  # noqa: F401
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shmtree

MODULE = "shmtree_test_story"

# For each kind: two versions of the cell that defines `C`, with different fields or members, and the instances.
CELLS: dict[str, tuple[str, str, Any]] = {
    "dataclass": (
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n    a: int\n    b: object = None",
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n    a: int\n    c: object = None",
        lambda c, x: c(1, x),
    ),
    "frozen slots": (
        "import dataclasses as d\n@d.dataclass(frozen=True, slots=True)\nclass C:\n    a: int\n    b: object = None",
        "import dataclasses as d\n@d.dataclass(frozen=True, slots=True)\nclass C:\n    a: int\n    c: object = None",
        lambda c, x: c(1, x),
    ),
    "namedtuple": (
        "import collections\nC = collections.namedtuple('C', 'a b', module=__name__)",
        "import collections\nC = collections.namedtuple('C', 'a b c', defaults=[0], module=__name__)",
        lambda c, x: c(1, x),
    ),
    "enum": (
        "import enum\nclass C(enum.Enum):\n    A = 1\n    B = 2",
        "import enum\nclass C(enum.Enum):\n    B = 1\n    C = 3",
        lambda c, x: list(c)[0 if x else 1],
    ),
    "str enum": (
        "import enum\nclass C(str, enum.Enum):\n    A = 'x'\n    B = 'y'",
        "import enum\nclass C(str, enum.Enum):\n    B = 'x'\n    C = 'z'",
        lambda c, x: list(c)[0 if x else 1],
    ),
    "flag": (
        "import enum\nclass C(enum.Flag):\n    R = 1\n    W = 2\n    X = 4",
        "import enum\nclass C(enum.Flag):\n    R = 1\n    X = 2",
        lambda c, x: c(3),
    ),
    "attrs": (
        "import attrs\n@attrs.define\nclass C:\n    a: int\n    b: object = None",
        "import attrs\n@attrs.define\nclass C:\n    a: int\n    c: object = None",
        lambda c, x: c(1, x),
    ),
    "pydantic": (
        "import pydantic, typing\nclass C(pydantic.BaseModel):\n    a: int\n    b: typing.Any = None",
        "import pydantic, typing\nclass C(pydantic.BaseModel):\n    a: int\n    c: typing.Any = None",
        lambda c, x: c(a=1, b=x) if "b" in c.model_fields else c(a=1, c=x),
    ),
    "plain": (
        "class C:\n    def __init__(self, a): self.a = a",
        "class C:\n    def __init__(self, a): self.b = a",
        lambda c, x: c(x),
    ),
    "registered": (
        "import shmtree\nclass C:\n    def __init__(self, a): self.a = a\nshmtree.register(C, lambda v: v.a, C)",
        "import shmtree\nclass C:\n    def __init__(self, a): self.a = a\nshmtree.register(C, lambda v: v.a, C)",
        lambda c, x: c(x),
    ),
}

contents = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=3))
steps = st.lists(
    st.sampled_from(["run again", "other version", "reduce", "put old", "put new", "put beside", "get", "get"]),
    min_size=3,
    max_size=14,
)


def state(value: object) -> Any:
    """Returns a comparable form of a value. Two classes with the same name are not equal."""
    if type(value) in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return type(value), [state(each) for each in value]  # type: ignore[attr-defined]
    slots = {name: getattr(value, name, None) for name in getattr(type(value), "__slots__", ()) if name[0] != "_"}
    return type(value), getattr(value, "value", None), getattr(value, "__dict__", None), slots, str(value)[:20]


class Story:
    def __init__(self, kind: str, content: object) -> None:
        self.kind, self.content = kind, content
        self.module = types.ModuleType(f"{MODULE}_{kind.replace(' ', '_')}")
        sys.modules[self.module.__name__] = self.module
        self.version = 0
        self.run()
        self.old = self.instance()
        self.old_version = 0
        self.sender, self.receiver = shmtree.create_pair(capacity=64)
        self.sent: list[tuple[bytes, Any]] = []

    def close(self) -> None:
        del sys.modules[self.module.__name__]
        self.sender.close()
        self.receiver.close()

    def run(self) -> None:
        exec(compile(CELLS[self.kind][self.version], "<cell>", "exec", dont_inherit=True), self.module.__dict__)

    def instance(self) -> Any:
        return CELLS[self.kind][2](self.module.C, self.content)

    def put(self, value: object, version: int) -> None:
        try:
            pickled = pickle.dumps(value)
        except (pickle.PicklingError, TypeError) as refusal:
            with pytest.raises(type(refusal)):
                self.sender.put(value)
            return
        self.sender.put(value)
        self.sent.append((pickled, (version, self.is_reduced())))

    def is_reduced(self) -> bool:
        return "__reduce__" in vars(self.module.C)

    def get(self) -> None:
        if not self.sent:
            return
        pickled, sent_as = self.sent.pop(0)
        is_as_sent = sent_as == (self.version, self.is_reduced())
        try:
            got = self.receiver.get(timeout=60)
        except shmtree.IncompatibleMessage as error:
            assert not is_as_sent and f"'{self.module.__name__}:C'" in str(error) and error.frame is not None
            return
        except Exception as error:  # an error from pickle
            with pytest.raises(type(error)):
                pickle.loads(pickled)
            return
        if is_as_sent or self.kind == "plain":
            assert state(got) == state(pickle.loads(pickled))

    def step(self, step: str) -> None:
        if step == "run again":
            self.run()
        elif step == "other version" and self.kind != "registered":
            self.version = 1 - self.version
            self.run()
        elif step == "reduce" and self.kind not in ("registered", "enum", "str enum", "flag"):
            self.module.C.__reduce__ = lambda self: (str, ("reduced",))
        elif step == "put old":
            self.put([self.old], self.old_version)
        elif step == "put new":
            self.old, self.old_version = self.instance(), self.version
            self.put(self.old, self.version)
        elif step == "put beside":
            self.put([self.old, types.SimpleNamespace, self.old], self.old_version)
        elif step == "get":
            self.get()


@pytest.mark.guarantee("changed-class")
@pytest.mark.parametrize("kind", CELLS)
@settings(max_examples=40, deadline=None)
@given(content=contents, story=steps)
def test_value_arrives_as_with_pickle_or_raises(kind: str, content: object, story: list[str]) -> None:
    told = Story(kind, content)
    try:
        for step in [*story, *["get"] * len(story)]:
            told.step(step)
    finally:
        told.close()
