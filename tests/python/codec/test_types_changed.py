"""Classes that a program replaces or changes after it has sent instances of them."""

from __future__ import annotations

import copyreg
import dataclasses
import enum
import multiprocessing.reduction
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import attrs
import pydantic
import pytest

import shmtree

NAME = "shmtree_test_cell"

# Notebook cells, with an expression that makes an instance. Tests run a cell again to replace its classes.
CELLS = {
    "dataclass": ("import dataclasses\n@dataclasses.dataclass\nclass C:\n    a: int = 1", lambda c: c(2)),
    "slots": ("import dataclasses\n@dataclasses.dataclass(slots=True)\nclass C:\n    a: int = 1", lambda c: c(2)),
    "namedtuple": ("from typing import NamedTuple\nclass C(NamedTuple):\n    a: int", lambda c: c(2)),
    "enum": ("import enum\nclass C(enum.Enum):\n    LOW = 1\n    HIGH = 2", lambda c: c.LOW),
    "int enum": ("import enum\nclass C(enum.IntEnum):\n    LOW = 1\n    HIGH = 2", lambda c: c.LOW),
    "flag": ("import enum\nclass C(enum.Flag):\n    R = 1\n    W = 2", lambda c: c.R | c.W),
    "attrs": ("import attrs\n@attrs.define\nclass C:\n    a: int = 1", lambda c: c(2)),
    "pydantic": ("import pydantic\nclass C(pydantic.BaseModel):\n    a: int = 1", lambda c: c(a=2)),
    "nested": (
        "import dataclasses\nclass Outer:\n    @dataclasses.dataclass\n    class C:\n        a: int = 1\nC = Outer.C",
        lambda c: c(2),
    ),
}


def run(module: types.ModuleType, cell: str) -> None:
    exec(compile(cell, "<cell>", "exec", flags=0, dont_inherit=True), module.__dict__)


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType(NAME)
    monkeypatch.setitem(sys.modules, NAME, module)
    return module


@pytest.fixture
def pair() -> Iterator[tuple[Any, Any]]:
    sender, receiver = shmtree.create_pair()
    with sender, receiver:
        yield sender, receiver


def raised_by(function: Callable[[], object]) -> BaseException | None:
    try:
        function()
    except Exception as error:
        return error
    return None


@pytest.mark.guarantee("changed-class")
@pytest.mark.parametrize("kind", CELLS)
def test_instance_of_a_replaced_class_is_refused(kind: str, cell: types.ModuleType, pair: tuple[Any, Any]) -> None:
    sender, receiver = pair
    source, make = CELLS[kind]
    run(cell, source)
    old = make(cell.C)
    sender.put(old)
    assert type(receiver.get()) is type(old)
    run(cell, source)
    with pytest.raises(pickle.PicklingError, match="not the same object"):
        pickle.dumps(old)
    with pytest.raises(pickle.PicklingError, match="not the same object"):
        sender.put(old)
    with pytest.raises(pickle.PicklingError, match="not the same object"):
        sender.put({"deep": [old, 1]})
    with pytest.raises(shmtree.PickleRefused, match=f"{NAME}.*now refers to another class"):
        shmtree.pack([old], allow_pickle=False)
    new = make(cell.C)
    sender.put(new)
    assert type(receiver.get()) is cell.C


@pytest.mark.parametrize("kind", ["dataclass", "namedtuple", "attrs", "pydantic"])
def test_class_deleted_from_its_module_is_refused(kind: str, cell: types.ModuleType, pair: tuple[Any, Any]) -> None:
    source, make = CELLS[kind]
    run(cell, source)
    old = make(cell.C)
    pair[0].put(old)
    pair[1].get()
    del cell.C
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pair[0].put(old)


@pytest.mark.parametrize("kind", ["dataclass", "slots", "namedtuple", "attrs", "pydantic", "enum", "flag"])
@pytest.mark.parametrize("way", ["__reduce__", "__reduce_ex__", "copyreg", "base", "multiprocessing"])
def test_later_reduction_of_a_class_is_used(
    kind: str, way: str, cell: types.ModuleType, pair: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver = pair
    source, make = CELLS[kind]
    run(cell, "class Base:\n    __slots__ = ()\n")
    if way == "base":
        if kind in ("namedtuple", "flag", "enum", "slots", "attrs"):
            pytest.skip("has a base of its own kind alone")
        source = source.replace("class C:", "class C(Base):").replace("(pydantic", "(Base, pydantic")
    if way == "__reduce__" and kind in ("enum", "flag"):
        pytest.skip("Enum defines __reduce_ex__, which goes before")
    run(cell, source)
    value = make(cell.C)
    sender.put(value)
    assert receiver.get() == value

    def reduce(self: object, protocol: int = 0) -> Any:
        return str, ("reduced",)

    if way in ("__reduce__", "__reduce_ex__"):
        setattr(cell.C, way, reduce)
    elif way == "base":
        cell.Base.__reduce__ = reduce
    elif way == "copyreg":
        monkeypatch.setitem(copyreg.dispatch_table, cell.C, reduce)
    else:
        extra = multiprocessing.reduction.ForkingPickler._extra_reducers  # type: ignore[attr-defined]
        monkeypatch.setitem(extra, cell.C, reduce)
    sender.put([value])
    assert receiver.get() == ["reduced"]


def test_removed_reduction_of_a_class_is_not_used(cell: types.ModuleType, pair: tuple[Any, Any]) -> None:
    run(cell, CELLS["dataclass"][0])
    value = cell.C(2)
    for _ in range(20):
        cell.C.__reduce__ = lambda self: (str, ("reduced",))
        pair[0].put(value)
        assert pair[1].get() == "reduced"
        del cell.C.__reduce__
        pair[0].put(value)
        assert pair[1].get() == value
        assert pair[0].stats()["pickled"] <= 20


def test_class_changed_for_each_instance_stays_native(cell: types.ModuleType) -> None:
    run(cell, "import dataclasses\n@dataclasses.dataclass\nclass C:\n    a: int\n    made = 0")
    for number in range(3000):  # more often than CPython gives new versions to a class
        cell.C.made = number
        assert shmtree.unpack(shmtree.pack(cell.C(number), allow_pickle=False)).a == number


class Watched(type):
    """Metaclass that counts the lookups of a class's name."""

    asked = 0

    def __getattribute__(cls, name: str) -> Any:
        if name == "__qualname__":
            Watched.asked += 1
        return super().__getattribute__(name)


@dataclasses.dataclass
class Unversioned(metaclass=Watched):
    a: int
    changes: ClassVar[int] = 0


def test_class_without_a_version_is_classified_once_per_message() -> None:
    while Unversioned.changes < 3000:  # since 3.13, CPython gives a class at most 1,000 versions
        Unversioned.changes += 1
    asked = []
    for count in (1, 100):
        frame = bytes(shmtree.pack([Unversioned(i) for i in range(count)], allow_pickle=False))
        before = Watched.asked
        assert shmtree.unpack(frame) == [Unversioned(i) for i in range(count)]
        asked.append(Watched.asked - before)
    assert asked[0] == asked[1]


def test_instance_is_refused_if_its_name_was_reregistered(
    pair: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver = pair
    cell = types.ModuleType(f"{NAME}_registered")  # the registration cannot be undone
    monkeypatch.setitem(sys.modules, cell.__name__, cell)
    source = "class C:\n    def __init__(self, a): self.a = a"

    def register() -> None:
        run(cell, source)
        shmtree.register(cell.C, lambda value: value.a, cell.C)

    register()
    old = cell.C(1)
    sender.put(old)
    assert type(receiver.get()) is type(old)
    register()
    for message in (old, [old, {1: print}]):
        with pytest.raises(pickle.PicklingError, match="not the same object"):
            sender.put(message)
    with pytest.raises(shmtree.PickleRefused, match="now refers to another class"):
        shmtree.pack(old, allow_pickle=False)
    sender.put([cell.C(2), print])
    assert type(receiver.get()[0]) is cell.C


def test_enum_uses_its_own_reduction() -> None:
    assert shmtree.unpack(shmtree.pack(Shade.DARK)) == "dark"


class Shade(enum.Enum):
    DARK = 1

    def __reduce_ex__(self, protocol: Any) -> Any:
        return str, ("dark",)


@dataclasses.dataclass
class Kept:
    a: int


@attrs.define
class KeptToo:
    a: int


class KeptModel(pydantic.BaseModel):
    a: int


def test_unchanged_class_needs_no_pickle() -> None:
    for value in (Kept(1), KeptToo(1), KeptModel(a=1)):
        for _ in range(3):
            assert shmtree.unpack(shmtree.pack([value, value], allow_pickle=False)) == [value, value]


# --- a class that differs between sender and receiver -----------------------------------------------------------------

# Module source at the sender and at the receiver, the value to send, and parts of the error text.
OTHERS = {
    "dataclass loses a field": (
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n    lr: float\n    momentum: float = 0.9",
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n    lr: float\n    beta: float = 0.9",
        lambda c: c(0.1),
        ["has no field 'momentum' here", "in the message: lr, momentum; fields here: lr, beta"],
    ),
    "dataclass gets a field": (
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n    lr: float",
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n    lr: float\n    beta: list",
        lambda c: c(0.1),
        ["has a field 'beta' here", "in the message: lr; fields here: lr, beta"],
    ),
    "dataclass gets a field with a factory": (
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n    lr: float",
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n    lr: float\n"
        "    beta: list = dataclasses.field(default_factory=list)",
        lambda c: c(0.1),
        ["has a field 'beta' here", "in the message: lr; fields here: lr, beta"],
    ),
    "attrs": (
        "import attrs\n@attrs.define\nclass C:\n    lr: float\n    momentum: float = 0.9",
        "import attrs\n@attrs.define\nclass C:\n    lr: float\n    beta: float = 0.9",
        lambda c: c(0.1),
        ["has no field 'momentum' here", "in the message: lr, momentum; fields here: lr, beta"],
    ),
    "pydantic": (
        "import pydantic\nclass C(pydantic.BaseModel):\n    lr: float\n    momentum: float = 0.9",
        "import pydantic\nclass C(pydantic.BaseModel):\n    lr: float\n    beta: float = 0.9",
        lambda c: c(lr=0.1),
        ["has a field 'beta' here", "in the message: lr, momentum; fields here: lr, beta"],
    ),
    "namedtuple": (
        "import collections\nC = collections.namedtuple('C', 'x y')",
        "import collections\nC = collections.namedtuple('C', 'x y z')",
        lambda c: c(1, 2),
        ["has 3 fields here, but 2 in the message", "Fields here: x, y, z"],
    ),
    "enum": (
        "import enum\nclass C(enum.Enum):\n    LOW = 1\n    HIGH = 2",
        "import enum\nclass C(enum.Enum):\n    LOW = 1\n    TOP = 2",
        lambda c: c.HIGH,
        ["has no member 'HIGH' here", "Members here: LOW, TOP"],
    ),
    "flag": (
        "import enum\nclass C(enum.Flag):\n    R = 1\n    W = 2",
        "import enum\nclass C(enum.Flag):\n    R = 1",
        lambda c: c.R | c.W,
        ["has no member of the value 3 here", "Members here: R"],
    ),
    "another kind": (
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n    lr: float",
        "def C(): pass",
        lambda c: c(0.1),
        ["is a dataclass in the message, but not here"],
    ),
}


@pytest.mark.guarantee("changed-class")
@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.parametrize("get", ["get", "get_many", "take"])
def test_error_names_the_class_and_the_differing_fields(
    case: str, get: str, cell: types.ModuleType, pair: tuple[Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    sender, receiver = pair
    before, after, make, texts = OTHERS[case]
    cell.__dict__["__name__"] = NAME
    run(cell, before)
    ticket = sender.put({"config": [1, make(cell.C)], "data": b"x" * 100})
    sender.put("next")
    run(cell, after)
    with pytest.raises(shmtree.IncompatibleMessage) as caught:
        getattr(receiver, get)(*([1] if get == "get_many" else []))
    error = caught.value
    assert isinstance(error, shmtree.CorruptMessage) and error.ticket == ticket
    for text in (f"'{NAME}:C'", '["config"][1] of the message', *texts):
        assert text in str(error)
    assert error.path == '["config"][1]'
    shmtree.describe(error.frame)
    assert f"{NAME}:C" in capsys.readouterr().out
    assert receiver.get() == "next"
    run(cell, before)
    sender.put_frame(error.frame)
    assert receiver.get()["config"][1] == make(cell.C)


def test_error_of_a_published_value_keeps_its_frame(cell: types.ModuleType) -> None:
    before, after, make, _ = OTHERS["dataclass loses a field"]
    run(cell, before)
    broadcast, latest = shmtree.Broadcast(), shmtree.Latest()
    subscriber = broadcast.subscribe()
    broadcast.put([make(cell.C)])
    latest.publish([make(cell.C)])
    run(cell, after)
    for get in (subscriber.get, latest.get):
        with pytest.raises(shmtree.IncompatibleMessage, match=r"'momentum'.*at \[0\] of the message") as caught:
            get(timeout=60)
        shmtree.describe(caught.value.frame)
    run(cell, before)
    assert shmtree.unpack(caught.value.frame)[0] == make(cell.C)  # type: ignore[arg-type]


def test_missing_field_takes_the_default_of_the_class(cell: types.ModuleType, pair: tuple[Any, Any]) -> None:
    run(cell, "import dataclasses\n@dataclasses.dataclass\nclass C:\n    lr: float")
    pair[0].put(cell.C(0.1))
    run(cell, "import dataclasses\n@dataclasses.dataclass\nclass C:\n    lr: float\n    beta: float = 0.9")
    assert pair[1].get() == cell.C(0.1)


def test_instance_that_lacks_a_field_arrives_without_it(cell: types.ModuleType) -> None:
    run(
        cell,
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n    lr: float\n"
        "    late: int = dataclasses.field(init=False)",
    )
    got = shmtree.unpack(shmtree.pack(cell.C(0.1), allow_pickle=False))
    assert got.__dict__ == {"lr": 0.1}
    value = cell.C(0.1)
    del value.lr
    assert shmtree.unpack(shmtree.pack(value)).__dict__ == {}


def test_model_with_private_and_computed_attributes_arrives(cell: types.ModuleType) -> None:
    run(
        cell,
        "import pydantic, functools\n"
        "class C(pydantic.BaseModel, extra='allow'):\n"
        "    a: int\n"
        "    _secret: int = 5\n"
        "    @functools.cached_property\n"
        "    def twice(self): return 2 * self.a\n",
    )
    value = cell.C(a=2, more=[1])
    assert value.twice == 4
    got = shmtree.unpack(shmtree.pack(value, allow_pickle=False))
    assert got == value and got._secret == 5 and got.more == [1] and "twice" in got.__dict__
    partial = cell.C.model_construct(more=1)
    assert shmtree.unpack(shmtree.pack(partial)).__dict__ == partial.__dict__
